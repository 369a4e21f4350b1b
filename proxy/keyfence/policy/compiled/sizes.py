"""Sizes: how long a value may be, and how many fields or elements a key may have.

Rule: what one command shows to be too much is a violation at once; how much is there with what it adds, only
Redis can tell, and until it has told nobody is accused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from keyfence.commands.growth import COUNTERS, LONGEST_INTEGER, may_grow
from keyfence.commands.model import Access, Streamed
from keyfence.policy.units import size_text

from .policy import Entry

Kind = Literal["value", "fields", "members"]

MOST_IN_A_TEST: Final = 64
LATE_SECONDS: Final = 5  # after a write that may have made it too large, Redis is asked

# What tells the size of a key, by the type that the key must have.
_BY_TYPE: Final[tuple[tuple[str, bytes, Kind], ...]] = (
    ("string", b"STRLEN", "value"),
    ("hash", b"HLEN", "fields"),
    ("list", b"LLEN", "members"),
    ("set", b"SCARD", "members"),
    ("zset", b"ZCARD", "members"),
    ("stream", b"XLEN", "members"),
)


class Question(NamedTuple):
    """A command that tells how large a key is, and how large it may be."""

    command: bytes
    kind: Kind
    most: int


class Excess(NamedTuple):
    """Too much of something, in words."""

    rule: str
    message: str
    hint: str


def questions(entry: Entry, access: Access) -> tuple[Question, ...]:
    """What to ask about a key that a command may have made too large. Where its type isn't known, each type
    that it may have is asked for: the server refuses the others."""
    types: Sequence[str] = access.types or entry.types
    most = {"value": entry.max_value, "fields": entry.max_fields, "members": entry.max_members}
    return tuple(
        Question(command, kind, limit)
        for name, command, kind in _BY_TYPE
        if (limit := most[kind]) is not None and (not types or name in types)
    )


def asks(name: str, access: Access, entry: Entry) -> bool:
    """Whether the command `name` leaves open how large the key is. Whether it is only the first of many that
    do doesn't matter here: `pending_sizes` keeps one question for each key."""
    if not may_grow(name, access) or not questions(entry, access):
        return False
    if name in COUNTERS and (entry.max_value or 0) >= LONGEST_INTEGER:
        return False
    content = access.content
    most = entry.max_members
    trims = content is not None and content.maxlen is not None and not content.maxlen_approximate
    return not (trims and content is not None and most is not None and (content.maxlen or 0) <= most)


def answers(rule: str, access: Access) -> bool:
    """Whether a rule that an access is found to break at once tells what would be asked about its key."""
    return rule == "key.members" or (rule == "value.size" and "string" in access.types)


def length(value: bytes) -> int:
    """How long a value is, of which perhaps only the beginning is at hand."""
    return value.size if isinstance(value, Streamed) else len(value)


def late_excess(question: Question, size: int, command: str, key: str) -> Excess | None:
    """What is wrong with a key of which the server says how large it is, some time after `command`."""
    if size <= question.most:
        return None
    after = f"{LATE_SECONDS}s after {command}"
    if question.kind == "value":
        told = f"the value of {key} is {size} bytes long {after}"
        return Excess("value.size", told, at_most_bytes(question.most))
    return Excess("key.members", f"{key} has {size} {noun(question)} {after}", f"at most {question.most}")


def noun(question: Question) -> str:
    """What is counted."""
    return "fields" if question.kind == "fields" else "entries" if question.command == b"XLEN" else "elements"


def at_most_bytes(most: int) -> str:
    """A limit on a value's length, as a hint."""
    return f"at most {size_text(most)}"


def testable_rules(entry: Entry) -> Iterator[str]:
    """The rules that an entry's limits give, and that one command of a policy test can show to be broken:
    SETRANGE for a string of any length, else so many fields or elements."""
    if entry.max_value is not None and (not entry.types or "string" in entry.types):
        yield "value.size"
    counts = [most for most in (entry.max_fields, entry.max_members) if most is not None]
    if counts and min(counts) <= MOST_IN_A_TEST:
        yield "key.members"
