"""Placeholders bound to the caller: `<tenant>` in a key must be the caller's own value.

Rule: a key has one value of such a placeholder, at a place that its pattern shows, and this value is compared
byte for byte with the caller's. Nothing is cached for a caller: a cached decision applies to keys with the
caller's own value, and each key's value is compared anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from keyfence.commands.model import READ
from keyfence.policy.patterns.expressions import ClassExpression
from keyfence.policy.patterns.patterns import Hole, KeyPattern
from keyfence.policy.patterns.patterns import Literal as Text

# A caller's values by the number of the binding; None: the caller has no value for it.
Values = tuple[bytes | None, ...]
Source = Literal["user", "certificate"]


class Caller(NamedTuple):
    """The names of a client that a placeholder can be bound to."""

    user: bytes | None = None  # the user that it has logged in as; None: it has not
    names: tuple[str, ...] = ()  # the names in its certificate, the best one first


NOBODY = Caller()
OWN = (
    "the caller's own "  # the beginning of a hint about another caller's key; the placeholder's name follows
)


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """A placeholder whose value depends on the client."""

    name: str
    home: int  # the number of its file
    source: Source
    writes_only: bool  # readers and consumers need no value
    across: frozenset[int]  # services that need no value …
    across_text: str  # … and their names
    text: str  # the form of the names that have a value
    pattern: KeyPattern  # the same, with a hole called `name` for the value
    expression: ClassExpression  # the placeholder's class
    is_secret: bool = False  # messages never show its value

    def value(self, caller: Caller) -> bytes | None:
        """Returns the caller's value: that of its first name whose value fits the placeholder; None without
        one."""
        names = [] if caller.user is None else [caller.user]
        if self.source == "certificate":
            names = [name.encode("utf-8", "surrogateescape") for name in caller.names]
        for name in names:
            value = (self.pattern.capture(name) or {}).get(self.name, b"")
            if value and self.expression.matches(value):
                return value
        return None

    def described(self) -> str:
        """Returns the binding as text. Equal bindings have equal texts."""
        what = "writing alone, " if self.writes_only else ""
        some = f", not for {self.across_text}" if self.across else ""
        return (
            f"<{self.name}> is bound to the {self.source} ({what}{self.text}, {self.expression.text}{some})"
        )

    def why_none(self) -> str:
        """Returns why a caller has no value."""
        form = f"{self.text}, with {self.expression.text} for <{self.name}>"
        if self.source == "user":
            return f"the caller has no {self.name}: it has not logged in as a user of the form {form}"
        return f"the caller has no {self.name}: its certificate has no name of the form {form}"


def values_of(bindings: Sequence[Binding], caller: Caller) -> Values:
    """Returns the caller's values of these placeholders."""
    return tuple(one.value(caller) for one in bindings)


class Place(NamedTuple):
    """The place of a bound placeholder's value in the keys of a pattern."""

    binding: int
    name: str
    # The parts before it: literal text, other values of the caller (by the numbers of their bindings), and
    # None for a placeholder that is not bound. The byte after such a placeholder cannot be in its value.
    before: tuple[bytes | int | None, ...]
    after: int  # the byte that ends it, which cannot be in it; -1: the end of the key
    writes_only: bool  # readers and consumers need no value
    across: frozenset[int]  # services whose rights do not depend on the value

    def beginning(self, values: Values) -> bytes | None:
        """Returns the beginning of the caller's own keys, up to the end of the value; None if it is not
        known."""
        begins = b""
        for part in (*self.before, self.binding):
            text = _text_of(part, values)
            if text is None:
                return None
            begins += text
        return begins

    def is_own(self, key: bytes, pattern: KeyPattern, values: Values) -> bool:
        """Whether the value in a key of the pattern is the caller's."""
        value = value_in(values, self.binding)
        if value is None:
            return False
        begins = self.beginning(values)
        if begins is not None and key.startswith(begins):
            behind = key[len(begins) : len(begins) + 1]
            return behind == (bytes([self.after]) if self.after >= 0 else b"")
        if len(self.before) < 2:
            return False
        return (pattern.capture(key) or {}).get(self.name) == value

    def is_own_in_all(self, beginning: bytes, is_whole: bool, values: Values) -> bool:
        """Like `is_own`, for all names of the pattern with this beginning; `is_whole`: for this name only."""
        at = 0
        for number, part in enumerate((*self.before, self.binding)):
            if part is None:
                follows = self.before[number + 1]
                assert isinstance(follows, bytes)
                at = beginning.find(follows[:1], at)
                if at < 0:
                    return False
                continue
            text = _text_of(part, values)
            if text is None or not beginning.startswith(text, at):
                return False
            at += len(text)
        behind = beginning[at : at + 1]
        return behind == bytes([self.after]) if self.after >= 0 else is_whole and not behind


def _text_of(part: bytes | int | None, values: Values) -> bytes | None:
    """Returns the text of one part before a value, for this caller; None if it is not known."""
    return value_in(values, part) if isinstance(part, int) else part


def value_in(values: Values, number: int) -> bytes | None:
    """Returns the value for one binding; None if there is none."""
    return values[number] if number < len(values) else None


class Tenancy(NamedTuple):
    """How the rights on a target depend on the caller's values."""

    places: tuple[Place, ...]
    # By service: the rights on keys with other callers' values, if the placeholders bind writing only.
    reading: tuple[int, ...]

    def held(self, service: int, rights: Sequence[int], own: Iterable[Place]) -> int:
        """Returns the rights of a service if a key has the caller's own values at the places `own`."""
        others = [place for place in self.places if place not in own and service not in place.across]
        if not others:
            return rights[service]
        return self.reading[service] if all(place.writes_only for place in others) else 0

    def bindings_to_read(self, service: int) -> Iterator[int]:
        """Yields the numbers of the bindings that a caller of the service needs its own values of, to read a
        key."""
        reads = self.reading[service] & READ
        return (
            place.binding
            for place in self.places
            if not (place.writes_only and reads) and service not in place.across
        )

    def own_places(self, key: bytes, pattern: KeyPattern, values: Values) -> list[Place]:
        """Returns the places where a key has the caller's own value."""
        return [place for place in self.places if place.is_own(key, pattern, values)]

    def limited_to(self, granted: int, services: Iterable[int]) -> Tenancy:
        """Returns the same tenancy with at most these rights, for these services only."""
        some = frozenset(services)
        reading = (held & granted if number in some else 0 for number, held in enumerate(self.reading))
        return self._replace(reading=tuple(reading))


def fixed_places(tenancy: Tenancy | None) -> tuple[tuple[int, int, int], ...]:
    """Returns for each place (number of the binding, offset of the value in the key, byte after the value).
    The number is -1 if the offset differs from key to key."""
    return tuple(map(_fixed, tenancy.places)) if tenancy is not None else ()


def _fixed(place: Place) -> tuple[int, int, int]:
    if place.before == ():
        return place.binding, 0, place.after
    text = place.before[0] if len(place.before) == 1 else None
    return (place.binding, len(text), place.after) if isinstance(text, bytes) else (-1, 0, -1)


class Places:
    """Finds, among the places of many patterns, those where names with a common beginning have own values."""

    def __init__(self, tenancies: Iterable[Tenancy | None]) -> None:
        self._by_text: dict[bytes, list[Place]] = {}
        for place in dict.fromkeys(place for one in tenancies if one is not None for place in one.places):
            text = place.before[0] if place.before else b""
            self._by_text.setdefault(text if isinstance(text, bytes) else b"", []).append(place)
        self._sizes = sorted({len(text) for text in self._by_text})

    def own(self, beginning: bytes, is_whole: bool, values: Values) -> frozenset[Place]:
        """Returns the places where every name with this beginning has the caller's own value, if it has
        any."""
        found = (self._by_text.get(beginning[:size], ()) for size in self._sizes if size <= len(beginning))
        return frozenset(
            place for places in found for place in places if place.is_own_in_all(beginning, is_whole, values)
        )


def places_in(
    pattern: KeyPattern,
    numbers: Mapping[str, int],
    writes_only: Iterable[str],
    across: Mapping[str, frozenset[int]],
) -> tuple[Place, ...]:
    """Returns the places of the bound placeholders in the keys of a pattern. `numbers` are those of the
    bindings and `across` the services that need no value, both by placeholder.

    Raises ValueError if some key could be split in more than one way.
    """
    places: list[Place] = []
    before: list[bytes | int | None] = []
    last = max((at for at, part in enumerate(pattern.parts) if _is_bound(part, numbers)), default=-1)
    for at, part in enumerate(pattern.parts[: last + 1]):
        if isinstance(part, Text):
            before.append(part.text)
            continue
        after = _byte_after(pattern, at)
        number = numbers.get(part.name)
        if number is not None:
            freed = across.get(part.name, frozenset())
            places.append(Place(number, part.name, tuple(before), after, part.name in writes_only, freed))
        before.append(number)
    return tuple(places)


def _is_bound(part: Text | Hole, numbers: Mapping[str, int]) -> bool:
    return isinstance(part, Hole) and part.name in numbers


def _byte_after(pattern: KeyPattern, at: int) -> int:
    """Returns the byte after a hole. Raises ValueError if the hole can hold this byte."""
    hole = pattern.parts[at]
    assert isinstance(hole, Hole)
    if hole.variadic:
        raise ValueError(f"keys do not show where <{hole.name}...> ends; write <{hole.name}>")
    if at + 1 == len(pattern.parts):
        return -1
    behind = pattern.parts[at + 1]
    if isinstance(behind, Hole):
        raise ValueError(
            f"keys do not show where <{hole.name}> ends; write text between it and <{behind.name}>"
        )
    if hole.expression.alphabet >> behind.text[0] & 1:
        byte = behind.text[:1].decode("ascii", "backslashreplace")
        message = f"keys do not show where <{hole.name}> ends: it may hold {byte!r}, which also follows it"
        raise ValueError(f"{message}; exclude that byte from its class under placeholders")
    return behind.text[0]


def head(pattern: KeyPattern, tenancy: Tenancy | None) -> tuple[Text | Hole, ...]:
    """Returns the parts of a pattern up to the first placeholder that is not bound to the caller."""
    bound = {place.name for place in tenancy.places} if tenancy is not None else set()
    parts: list[Text | Hole] = []
    for part in pattern.parts:
        if isinstance(part, Hole) and part.name not in bound:
            break
        parts.append(part)
    return tuple(parts)


def marked(parts: Iterable[Text | Hole]) -> str:
    """Returns parts as comparable text. A placeholder in it is text that no file can have."""
    return "".join(
        part.text.decode("utf-8", "surrogateescape") if isinstance(part, Text) else mark(part.name)
        for part in parts
    )


def mark(name: str) -> str:
    """Returns a placeholder as `marked` writes it."""
    return f"\ud800{name}\ud800"


def owners_values(count: int, keys: Iterable[tuple[bytes, KeyPattern, Tenancy | None]]) -> Values:
    """Returns the values of the caller who owns these keys, as far as the keys show them, for `count`
    bindings."""
    found: dict[int, bytes] = {}
    for key, pattern, tenancy in keys:
        held = pattern.capture(key) if tenancy is not None else None
        for place in tenancy.places if tenancy is not None and held is not None else ():
            found.setdefault(place.binding, (held or {})[place.name])
    return tuple(found.get(number) for number in range(count))


def own_key(key: bytes, pattern: KeyPattern, tenancy: Tenancy, values: Values) -> bytes | None:
    """Returns the key with the caller's values in place of others'; None if the caller lacks a value."""
    held = pattern.capture(key)
    if held is None or any(value_in(values, place.binding) is None for place in tenancy.places):
        return None
    own = {place.name: value_in(values, place.binding) or b"" for place in tenancy.places}
    return b"".join(
        part.text if isinstance(part, Text) else own.get(part.name, held[part.name]) for part in pattern.parts
    )


def differing(
    first: dict[str, bytes], bound: tuple[tuple[str, bytes], ...]
) -> tuple[str, bytes, bytes] | None:
    """Returns the first bound placeholder in which a key differs from the keys before it: (name, value,
    earlier value); None if there is none.

    `first` has the first value of each placeholder; the values of this key are added.
    """
    for name, value in bound:
        if first.setdefault(name, value) != value:
            return name, value, first[name]
    return None
