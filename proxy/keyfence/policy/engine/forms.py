"""Which arguments of a command are options: what tells one form of it from another; and what the rest is.

Rule: what isn't surely an option is none.
"""

from __future__ import annotations

from keyfence.commands.arguments import integer, word
from keyfence.commands.model import Access
from keyfence.policy.compiled.policy import Entry

LONGEST_FORM = 6  # arguments
# What stands behind the key is no longer than the arguments are, and no more …
_ELEMENTS = frozenset(
    {"APPEND", "GEOADD", "LINSERT", "LPUSH", "LPUSHX", "LSET", "RPUSH", "RPUSHX", "SADD", "ZADD", "ZINCRBY"}
)
_LENGTHS = frozenset({"SETBIT", "SETRANGE"})  # … or is longer, by a number
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


def looks_at_elements(name: str, entry: Entry) -> bool | None:
    """Whether the arguments behind the key must be looked at, of a command that writes neither one value nor
    fields; None: something else, too."""
    if name in _LENGTHS:
        return False if entry.max_value is None else None
    if name not in _ELEMENTS or entry.members is not None or entry.scores is not None:
        return None
    return entry.max_value is not None or entry.max_members is not None
