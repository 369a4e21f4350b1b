"""Sizes: the limits on the length of values and on the number of fields and elements.

Rule: if one command alone exceeds a limit, that is a violation at once. Only Redis knows the size of a key
that a command adds to, so no violation is reported before Redis has answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from keyfence.commands.effects import COUNTERS, LONGEST_INTEGER, may_grow
from keyfence.commands.model import Access, Streamed
from keyfence.policy.units import size_text

from .policy import Entry

Kind = Literal["value", "fields", "members"]

LATE_SECONDS: Final = 5  # from a write that may have made a key too large to the question

# The commands that return the size of a key, each with the type that the key must have.
_BY_TYPE: Final[tuple[tuple[str, bytes, Kind], ...]] = (
    ("string", b"STRLEN", "value"),
    ("hash", b"HLEN", "fields"),
    ("list", b"LLEN", "members"),
    ("set", b"SCARD", "members"),
    ("zset", b"ZCARD", "members"),
    ("stream", b"XLEN", "members"),
)


class Question(NamedTuple):
    """A command that returns the size of a key, and the greatest size that is allowed."""

    command: bytes
    kind: Kind
    most: int


class Excess(NamedTuple):
    """An exceeded limit, in words."""

    rule: str
    message: str
    hint: str


def questions(entry: Entry, access: Access) -> tuple[Question, ...]:
    """Returns the questions about a key that a command may have made too large. If its type is not known,
    there is one for each possible type; the server refuses those for other types."""
    types: Sequence[str] = access.types or entry.types
    most = {"value": entry.max_value, "fields": entry.max_fields, "members": entry.max_members}
    return tuple(
        Question(command, kind, limit)
        for name, command, kind in _BY_TYPE
        if (limit := most[kind]) is not None and (not types or name in types)
    )


def asks(name: str, access: Access, entry: Entry) -> bool:
    """Whether the command `name` leaves the size of the key open. Repeated writes do not matter: `pending`
    keeps one question for each key."""
    if not may_grow(name, access) or not questions(entry, access):
        return False
    if name in COUNTERS and (entry.max_value or 0) >= LONGEST_INTEGER:
        return False
    content = access.content
    most = entry.max_members
    trims = content is not None and content.maxlen is not None and not content.maxlen_approximate
    return not (trims and content is not None and most is not None and (content.maxlen or 0) <= most)


def answers(rule: str, access: Access) -> bool:
    """Whether a violation of this rule makes the questions about an access's key needless."""
    return rule == "key.members" or (rule == "value.size" and "string" in access.types)


def length(value: bytes) -> int:
    """Returns the length of a value, even if only its beginning is held."""
    return value.size if isinstance(value, Streamed) else len(value)


def late_excess(question: Question, size: int, command: str, key: str) -> Excess | None:
    """Returns the exceeded limit of a key with this size, some time after `command`; None if it keeps the
    limit."""
    if size <= question.most:
        return None
    after = f"{LATE_SECONDS}s after {command}"
    if question.kind == "value":
        message = f"the value of {key} is {size} bytes long {after}"
        return Excess("value.size", message, at_most_bytes(question.most))
    return Excess("key.members", f"{key} has {size} {noun(question)} {after}", f"at most {question.most}")


def noun(question: Question) -> str:
    """Returns the word for the counted things."""
    return "fields" if question.kind == "fields" else "entries" if question.command == b"XLEN" else "elements"


def at_most_bytes(most: int) -> str:
    """Returns the hint for a limit on a value's length."""
    return f"at most {size_text(most)}"
