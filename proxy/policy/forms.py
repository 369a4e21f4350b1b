"""Which arguments of a command are options: what tells one form of it from another.

Rule: what isn't surely an option is none.
"""

from __future__ import annotations

from ..commands.model import Access
from ..commands.words import integer, word
from .compiled import Entry

LONGEST_FORM = 6  # arguments
_SCORED_OPTIONS = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})


def options_before_scores(argv: list[bytes]) -> tuple[bytes, ...]:
    """NX, CH … between the key and the first score."""
    at = 2
    while at < len(argv) and at < 2 + LONGEST_FORM and word(argv[at]) in _SCORED_OPTIONS:
        at += 1
    return tuple(argv[2:at])


def is_trimmed(options: tuple[bytes, ...]) -> bool:
    """MAXLEN, ~ or =, a number: then what stands behind is the ID, whatever follows."""
    trims = word(options[0]) == b"MAXLEN" and word(options[1]) in (b"~", b"=")
    return trims and integer(options[2]) is not None


def trims(access: Access, entry: Entry) -> bool:
    """Whether XADD keeps the stream as short as it must be."""
    content = access.content
    if entry.maxlen is None:
        return True
    if content is None or content.maxlen is None:
        return False
    return content.maxlen <= entry.maxlen and not (entry.maxlen_exact and content.maxlen_approximate)
