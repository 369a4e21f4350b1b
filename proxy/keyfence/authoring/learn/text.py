"""The draft as YAML text, with the evidence of each line as its comment.

Rule: what comes from a source is written only as a quoted scalar, or as one line of a comment.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from keyfence.policy.show import in_lines, one_line, printable

from .kinds import Kind, Slot
from .requirements import Setting, quoted
from .seen import MARK, Facts
from .values import is_harmless, leads_to_secret, may_be_secret

WIDTH = 110
HIDDEN = "<…>"  # in place of a text that may be a secret
_PIECES = re.compile("([:{}|])")
_LONG_IDS = re.compile("(?=[A-Za-z_+/=-]*[0-9])[A-Za-z0-9_+/=-]{12,}")
_WILDCARDS = "*?"
_COMMENT_AT = 58  # the column at which comments behind settings begin, if there is room


def shown(key: str) -> str:
    """Returns a key as people read it."""
    parts = key.split(MARK)
    marked = "".join(f"<{part}>" if index % 2 else part for index, part in enumerate(parts))
    return printable(marked.encode("utf-8", "surrogateescape"), 96)


def masked(name: str, known: Collection[str] = ()) -> str:
    """Returns a key, channel or glob without texts that may be secrets. `known` are names that are none."""
    pieces = _PIECES.split(name)
    before = ""
    for at in range(0, len(pieces), 2):
        core = pieces[at].strip(_WILDCARDS)
        if core and core != HIDDEN:
            is_shown = (core in known or is_harmless(core)) and not (
                leads_to_secret(before) and not core.isalpha()
            )
            pieces[at] = pieces[at] if is_shown and not may_be_secret(core, before) else HIDDEN
            before = core
    return "".join(pieces)


def without_ids(text: str) -> str:
    """Returns text without what looks like an id, which may be a secret."""
    return _LONG_IDS.sub(HIDDEN, text)


def secret_slots(kind: Kind) -> Iterator[Slot]:
    """Yields the placeholders of a kind that may stand for secrets."""
    for before, slot in itertools.pairwise(kind.parts):
        if isinstance(slot, Slot) and isinstance(before, str):
            words = [piece.rstrip("_.-=") for piece in _PIECES.split(before)[::2] if piece]
            if any(map(leads_to_secret, words[-2:])):
                yield slot


def example_of(kind: Kind) -> str:
    """Returns a key of a kind as people may read it: with the placeholder in place of what may be a
    secret."""
    key = kind.example or kind.keys[0]
    values = kind.values_in(key)
    if values is None:
        return kind.pattern
    hidden = {id(slot) for slot in secret_slots(kind)}
    parts = []
    for part in kind.parts:
        if isinstance(part, str):
            parts.append(part)
            continue
        value = values.pop(0)
        is_shown = MARK in value or (is_harmless(value) and id(part) not in hidden)
        parts.append(value if is_shown else f"<{part.name}>")
    return shown("".join(parts))


def comment(text: str, indent: int = 0) -> list[str]:
    """Returns a comment, wrapped."""
    before = " " * indent + "# "
    return in_lines(one_line(text), WIDTH, before, before + "  ")


def with_comment(line: str, why: str, *, guess: bool = False) -> list[str]:
    """Returns a line with its comment behind it, or above it if there is no room."""
    if not why:
        return [line]
    note = f"guess: {one_line(why)}" if guess else one_line(why)
    beside = f"{line:<{_COMMENT_AT}}  # {note}" if len(line) < _COMMENT_AT else f"{line}  # {note}"
    if len(beside) <= WIDTH + 6:
        return [beside]
    return [*comment(note, len(line) - len(line.lstrip())), line]


def setting_lines(setting: Setting, indent: int) -> list[str]:
    """Returns the lines of a setting. A long mapping gets one line for each item."""
    line = f"{' ' * indent}{setting.name}: {setting.text}"
    if len(line) <= WIDTH or not setting.text.startswith("{"):
        return with_comment(line, setting.why, guess=setting.is_guess)
    items = [f"{' ' * (indent + 2)}{item}" for item in _items(setting.text[1:-1])]
    return [*with_comment(f"{' ' * indent}{setting.name}:", setting.why, guess=setting.is_guess), *items]


def _items(text: str) -> list[str]:
    """Splits the items of a mapping on one line."""
    found, depth, quote, start = [], 0, False, 0
    for at, char in enumerate(text):
        if char == '"' and (at == 0 or text[at - 1] != "\\"):
            quote = not quote
        elif not quote and char in "[{":
            depth += 1
        elif not quote and char in "]}":
            depth -= 1
        elif not quote and not depth and char == "," and text[at + 1 : at + 2] == " ":
            found.append(text[start:at])
            start = at + 2
    return [*found, text[start:]]


def listed(names: Iterable[str]) -> str:
    """Returns a list of names on one line."""
    return f"[{', '.join(plain(name) for name in names)}]"


def plain(name: str) -> str:
    """Returns a name as a plain scalar, or quoted if it must be."""
    is_plain = name and name.isascii() and all(char.isalnum() or char in "_-." for char in name)
    return name if is_plain and name[0].isalpha() else quoted(one_line(name))


def spoken(names: Sequence[str]) -> str:
    """Returns names as a part of a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def seen_by(facts: Facts, services: Iterable[str], most: int = 4) -> str:
    """Returns which commands services sent: `HGETALL 900, HSET 41`."""
    several = list(services)
    words = []
    for service in several:
        commands = facts.commands.get(service, Counter())
        often = sorted(commands.items(), key=lambda one: (-one[1], one[0]))
        text = ", ".join(f"{name} {times:,}" for name, times in often[:most])
        text += f" and {len(often) - most} more" if len(often) > most else ""
        words.append(f"{service}: {text}" if len(several) > 1 else text)
    return "; ".join(words)


def span(facts_first: str, facts_last: str) -> str:
    """Returns a window of time: `2026-11-21 00:25 to 01:25`."""
    if not facts_first:
        return ""
    first, last = facts_first[:16].replace("T", " "), facts_last[:16].replace("T", " ")
    if first == last:
        return first
    return f"{first} to {last[11:] if first[:10] == last[:10] else last}"
