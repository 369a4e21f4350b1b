"""Placeholders that are bound to who the client is: `<tenant>` in a key is the caller's own value.

Rule: a key has one value of such a placeholder, at a place that its pattern tells, and that is compared byte
for byte with the caller's. Nothing is kept of any caller: an answer that is remembered says what holds where
the value is the caller's own, and whether it is, is asked anew each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from keyfence.commands.model import READ
from keyfence.policy.patterns.expressions import ClassExpression
from keyfence.policy.patterns.patterns import Hole, KeyPattern
from keyfence.policy.patterns.patterns import Literal as Text

# What each binding's value is for a caller, by the binding's number; None: the caller has none.
Values = tuple[bytes | None, ...]
Source = Literal["user", "certificate"]


class Caller(NamedTuple):
    """What is known of a client that a placeholder can be bound to."""

    user: bytes | None = None  # the name with which it has logged in; None: it hasn't
    names: tuple[str, ...] = ()  # whom its certificate was issued to, the best name first


NOBODY = Caller()
OWN = "the caller's own "  # how a hint begins about a key that is another's; the placeholder's name follows


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """A placeholder whose value each client brings along."""

    name: str
    home: int  # the number of the file that it is the placeholder of
    source: Source
    writes_only: bool  # who reads and consumes needs no value
    across: frozenset[int]  # services that need none at all, …
    across_text: str  # … and their names
    text: str  # the form of the names that have a value
    pattern: KeyPattern  # the same, with a hole called `name` for the value
    expression: ClassExpression  # the placeholder's class
    is_secret: bool = False  # no text shows its value

    def value(self, caller: Caller) -> bytes | None:
        """The caller's value: of the first name that has one that fits the placeholder."""
        names = [] if caller.user is None else [caller.user]
        if self.source == "certificate":
            names = [name.encode("utf-8", "surrogateescape") for name in caller.names]
        for name in names:
            value = (self.pattern.capture(name) or {}).get(self.name, b"")
            if value and self.expression.matches(value):
                return value
        return None

    def described(self) -> str:
        """The binding as a text, equal for equal ones."""
        what = "writing alone, " if self.writes_only else ""
        some = f", not for {self.across_text}" if self.across else ""
        return (
            f"<{self.name}> is bound to the {self.source} ({what}{self.text}, {self.expression.text}{some})"
        )

    def why_none(self) -> str:
        """What a caller lacks that has no value."""
        form = f"{self.text}, with {self.expression.text} for <{self.name}>"
        if self.source == "user":
            return f"the caller has no {self.name}: it hasn't logged in as a user of the form {form}"
        return f"the caller has no {self.name}: its certificate has no name of the form {form}"


def values_of(bindings: Sequence[Binding], caller: Caller) -> Values:
    """The caller's values of these placeholders."""
    return tuple(one.value(caller) for one in bindings)


class Place(NamedTuple):
    """Where the keys of a pattern have the value of a bound placeholder."""

    binding: int
    name: str
    # What stands before it: literal text, other values of the caller (by the number of their bindings), and
    # None for a placeholder that isn't bound to it. The byte behind one of these can't be in its value.
    before: tuple[bytes | int | None, ...]
    after: int  # the byte that ends it, which it can't hold; -1: the key ends
    writes_only: bool  # who reads and consumes needs no value
    across: frozenset[int]  # services whose rights hold whatever the value is

    def beginning(self, values: Values) -> bytes | None:
        """What the caller's own keys begin with, up to the value's end; None where that isn't known."""
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
        """The same for all names of the pattern that begin so; `is_whole`: for that name alone."""
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
    """The text of a part of a place for this caller; None where it isn't known."""
    return value_in(values, part) if isinstance(part, int) else part


def value_in(values: Values, number: int) -> bytes | None:
    """The value for one binding; None where there is none."""
    return values[number] if number < len(values) else None


class Tenancy(NamedTuple):
    """What of a target's rights depends on the caller."""

    places: tuple[Place, ...]
    # By service: the rights on keys whose values aren't the caller's, where those bind writing alone.
    reading: tuple[int, ...]

    def held(self, service: int, rights: Sequence[int], own: Iterable[Place]) -> int:
        """The rights that are left of a target's, where the values at these places are the caller's own."""
        others = [place for place in self.places if place not in own and service not in place.across]
        if not others:
            return rights[service]
        return self.reading[service] if all(place.writes_only for place in others) else 0

    def bindings_to_read(self, service: int) -> Iterator[int]:
        """The numbers of the bindings whose values a key must have for a caller of the service to read it."""
        reads = self.reading[service] & READ
        return (
            place.binding
            for place in self.places
            if not (place.writes_only and reads) and service not in place.across
        )

    def own_places(self, key: bytes, pattern: KeyPattern, values: Values) -> list[Place]:
        """Those of its places where a key has the caller's own value."""
        return [place for place in self.places if place.is_own(key, pattern, values)]

    def limited_to(self, granted: int, services: Iterable[int]) -> Tenancy:
        """The same with no more than these rights, and for these services alone."""
        some = frozenset(services)
        reading = (held & granted if number in some else 0 for number, held in enumerate(self.reading))
        return self._replace(reading=tuple(reading))


def fixed_places(tenancy: Tenancy | None) -> tuple[tuple[int, int, int], ...]:
    """A tenancy's places where they are the same in every key: the binding's number, how far behind the key's
    beginning the value begins, and the byte behind it. The number is -1 where that depends on the key."""
    return tuple(map(_fixed, tenancy.places)) if tenancy is not None else ()


def _fixed(place: Place) -> tuple[int, int, int]:
    if place.before == ():
        return place.binding, 0, place.after
    text = place.before[0] if len(place.before) == 1 else None
    return (place.binding, len(text), place.after) if isinstance(text, bytes) else (-1, 0, -1)


class Places:
    """The places of many patterns, and which of them are the caller's own in a pattern of names."""

    def __init__(self, tenancies: Iterable[Tenancy | None]) -> None:
        self._by_text: dict[bytes, list[Place]] = {}
        for place in dict.fromkeys(place for one in tenancies if one is not None for place in one.places):
            text = place.before[0] if place.before else b""
            self._by_text.setdefault(text if isinstance(text, bytes) else b"", []).append(place)
        self._sizes = sorted({len(text) for text in self._by_text})

    def own(self, beginning: bytes, is_whole: bool, values: Values) -> frozenset[Place]:
        """The places at which every name that begins so has the caller's own value, if it has one there."""
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
    """Where the keys of a pattern have the values of the bound placeholders, of which these are the numbers.
    `across` are the services that need no value, by placeholder.

    Raises ValueError where some key could be read in more than one way.
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
    """The byte behind a hole, which must be none that the hole can hold."""
    hole = pattern.parts[at]
    assert isinstance(hole, Hole)
    if hole.variadic:
        raise ValueError(f"where <{hole.name}...> ends can't be told; write <{hole.name}>")
    if at + 1 == len(pattern.parts):
        return -1
    behind = pattern.parts[at + 1]
    if isinstance(behind, Hole):
        raise ValueError(f"where <{hole.name}> ends can't be told; write text between it and <{behind.name}>")
    if hole.expression.alphabet >> behind.text[0] & 1:
        byte = behind.text[:1].decode("ascii", "backslashreplace")
        message = f"where <{hole.name}> ends can't be told: it may hold {byte!r}, which stands behind it"
        raise ValueError(f"{message}; exclude that from its class under placeholders")
    return behind.text[0]


def head(pattern: KeyPattern, tenancy: Tenancy | None) -> tuple[Text | Hole, ...]:
    """What a pattern begins with, up to the first placeholder that isn't bound to the caller."""
    bound = {place.name for place in tenancy.places} if tenancy is not None else set()
    parts: list[Text | Hole] = []
    for part in pattern.parts:
        if isinstance(part, Hole) and part.name not in bound:
            break
        parts.append(part)
    return tuple(parts)


def marked(parts: Iterable[Text | Hole]) -> str:
    """The same as a text that can be compared: a placeholder in it is no text that a file can hold."""
    return "".join(
        part.text.decode("utf-8", "surrogateescape") if isinstance(part, Text) else mark(part.name)
        for part in parts
    )


def mark(name: str) -> str:
    """A placeholder in such a text."""
    return f"\ud800{name}\ud800"


def owners_values(count: int, keys: Iterable[tuple[bytes, KeyPattern, Tenancy | None]]) -> Values:
    """The values of whoever has these keys for its own, as far as they tell, of so many bindings."""
    found: dict[int, bytes] = {}
    for key, pattern, tenancy in keys:
        held = pattern.capture(key) if tenancy is not None else None
        for place in tenancy.places if tenancy is not None and held is not None else ():
            found.setdefault(place.binding, (held or {})[place.name])
    return tuple(found.get(number) for number in range(count))


def own_key(key: bytes, pattern: KeyPattern, tenancy: Tenancy, values: Values) -> bytes | None:
    """The key with the caller's values in place of others'; None where it has none, or that isn't known."""
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
    """Where a key differs in a bound placeholder from the keys before it: (name, value, earlier value).

    `first` has the value that each placeholder had first, and takes in those of this key.
    """
    for name, value in bound:
        if first.setdefault(name, value) != value:
            return name, value, first[name]
    return None
