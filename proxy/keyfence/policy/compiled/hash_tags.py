"""Which part two keys have in common, so that a hash tag there puts them into one hash slot.

Rule: only parts that vary are proposed. A constant tag would put all keys of its kind into one hash slot, and
a part with few values into few. Values are compared here and kept nowhere: a trace of 64 bits tells about how
many there are.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from .policy import CompiledPolicy

MAX_KEY = 512  # bytes; longer keys are not compared
_PART = re.compile(r"<[^<>]+>")

ENOUGH = 8  # values of a hash tag; with fewer, keys are in too few hash slots
Link = tuple[str, str]  # the placeholder of the first key, and that of the second, whose values are equal


class Linked(NamedTuple):
    """A link, how often it was seen, and a trace of its values: a bit for each, which few of them share."""

    link: Link
    times: int = 0
    trace: int = 0

    @property
    def values(self) -> int:
        """About how many values it had; at most 64."""
        return self.trace.bit_count()

    def joined(self, other: Linked) -> Linked:
        """This and more of the same link."""
        return Linked(self.link, self.times + other.times, self.trace | other.trace)


def worth(times: int, values: int) -> tuple[bool, int, int]:
    """The greater, the better a hash tag, by how often and with how many values it was seen."""
    return values >= ENOUGH, times, values


class Place(NamedTuple):
    """One key as an entry of the policy or a shape describes it, or (with entry "") the key alone."""

    entry: str
    key: bytes
    values: tuple[tuple[str, bytes], ...] = ()  # its placeholders, each with its value


NOWHERE = Place("", b"")


def place_of(policy: CompiledPolicy, key: bytes) -> Place:
    """Returns the place of a key."""
    target = policy.target(key)
    if target is None or target.kind != "entry":
        return Place("", key[:MAX_KEY])
    captured = target.pattern.capture(key) if len(key) <= MAX_KEY else None
    return Place(target.name, key[:MAX_KEY], tuple((captured or {}).items()))


def by_shape(place: Place, shape: str) -> Place:
    """Returns the place of a key of no entry by its shape: each segment that varies is a placeholder, whose
    name is its number in the key."""
    kinds, texts = shape.split(":"), place.key.split(b":")
    if len(kinds) != len(texts):
        return place._replace(values=())
    pairs = enumerate(zip(kinds, texts, strict=True), 1)
    values = tuple((str(at), text) for at, (kind, text) in pairs if _PART.fullmatch(kind))
    return place._replace(entry=shape, values=values)


def links(first: Place, second: Place, times: int = 1) -> tuple[Linked, ...]:
    """Returns the placeholders of two keys that have one value. Keys of one kind have their hash tag in one
    place, so there only a placeholder with itself counts."""
    are_alike = first.entry == second.entry
    return tuple(
        Linked((name, other), times, 1 << zlib.crc32(value) % 64)
        for name, value in first.values
        for other, same in second.values
        if value and value == same and (name == other or not are_alike)
    )


def tagged(text: str, placeholder: str) -> str:
    """Returns the text of an entry's pattern with the hash tag round this placeholder; the text itself if it
    lacks it, or has a hash tag."""
    if "{" in text:
        return text
    for written in (f"<{placeholder}>", f"<{placeholder}...>"):
        before, found, after = text.partition(written)
        if found:
            return f"{before}{{{found}}}{after}"
    return text


def tagged_shape(shape: str, number: str) -> str:
    """Returns a shape with the hash tag round the segment of this number."""
    parts = shape.split(":")
    at = int(number) - 1
    if "{" in shape or at >= len(parts):
        return shape
    parts[at] = f"{{{parts[at]}}}"
    return ":".join(parts)
