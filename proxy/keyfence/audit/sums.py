"""What an audit adds up: keys, bytes and broken rules, by entry, and by shape for keys of no entry.

Rule: a key is counted once and then forgotten. Keys are kept as they may be shown, and few of them; only a
bounded number waits in memory until their shapes are learned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keyfence.policy.verdict import Severity
from keyfence.shapes.shapes import Shapes

from .judge import Facts, Fault, Judge, Kind, Look, Place

MAX_EXAMPLES = 3  # of a broken rule in a group
MAX_WAITING = 10_000  # keys whose shape is still being learned
IDLE_DAYS = (7, 30, 90)  # keys that were not used for so many days are counted
_DAY = 86_400


@dataclasses.dataclass(slots=True)
class Broken:
    """A rule that keys of a group break."""

    keys: int = 0
    severity: Severity = "should"
    by_name: bool = False  # all keys were looked at, and not only the sample
    examples: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Extreme:
    """The key of a group with the greatest number of something."""

    key: str  # as it may be shown
    number: int
    type: str


@dataclasses.dataclass(slots=True)
class Group:
    """Keys that are counted together: those of an entry, or of a shape."""

    kind: Kind
    name: str
    scope: str
    owner: str
    shape: str
    keys: int = 0
    asked: int = 0  # of these, Redis was asked about
    size: int = 0  # bytes of those asked about
    without_ttl: int = 0
    types: dict[str, int] = dataclasses.field(default_factory=dict)
    idle: list[int] = dataclasses.field(default_factory=lambda: [0] * len(IDLE_DAYS))
    broken: dict[str, Broken] = dataclasses.field(default_factory=dict)
    biggest: Extreme | None = None
    oldest: Extreme | None = None
    sample: bytes = b""  # one key, to learn the group's shape from again; never written anywhere

    def estimate(self, number: int) -> int:
        """A number of those asked about, for all keys."""
        return number if self.asked in (0, self.keys) else round(number * self.keys / self.asked)

    def broken_keys(self, one: Broken) -> int:
        """How many keys break a rule; from a sample it is an estimate."""
        return one.keys if one.by_name else self.estimate(one.keys)

    def merge(self, other: Group) -> None:
        """Adds a group of other keys."""
        for name in ("keys", "asked", "size", "without_ttl"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, number in other.types.items():
            self.types[kind] = self.types.get(kind, 0) + number
        self.idle = [one + two for one, two in zip(self.idle, other.idle, strict=True)]
        for rule, theirs in other.broken.items():
            mine = self.broken.setdefault(rule, Broken(by_name=theirs.by_name))
            mine.keys += theirs.keys
            mine.severity = "must" if "must" in (mine.severity, theirs.severity) else "should"
            mine.examples = list(dict.fromkeys([*mine.examples, *theirs.examples]))[:MAX_EXAMPLES]
        self.biggest = _greater(self.biggest, other.biggest)
        self.oldest = _greater(self.oldest, other.oldest)

    def as_object(self) -> dict[str, Any]:
        """Plain values for JSON, without the key in `sample`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "sample"}

    @classmethod
    def from_object(cls, values: Mapping[str, Any]) -> Group:
        """The group that `as_object` made these values of. Raises TypeError, KeyError or ValueError."""
        group = cls(**values)
        group.broken = {rule: Broken(**one) for rule, one in values["broken"].items()}
        group.biggest = Extreme(**values["biggest"]) if values["biggest"] else None
        group.oldest = Extreme(**values["oldest"]) if values["oldest"] else None
        return group


Key = tuple[str, str, str, str]  # kind, name, scope, shape


class Sums:
    """The groups of an audit."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        secrecy = judge.policy.secrecy
        self._shapes = Shapes(trusting=secrecy is None, secrecy=secrecy)
        self.groups: dict[Key, Group] = {}
        self._waiting: list[tuple[bytes, Look, tuple[Fault, ...], Facts | None]] = []

    def add(self, key: bytes, look: Look, facts: Facts | None, of_facts: Iterable[Fault] = ()) -> None:
        """Counts a key. `facts` None: Redis was not asked about it."""
        faults = tuple(of_facts)
        if look.place.kind != "unregistered":
            self._count(key, look, faults, facts, "")
            return
        shape = self._shapes.shape(key)
        if self._shapes.is_open and len(self._waiting) < MAX_WAITING:
            self._waiting.append((key, look, faults, facts))
        else:
            self._count(key, look, faults, facts, shape)

    def _count(
        self, key: bytes, look: Look, of_facts: tuple[Fault, ...], facts: Facts | None, shape: str
    ) -> None:
        group = self._group(look.place, shape)
        group.keys += 1
        if shape and not group.sample:
            group.sample = key
        for by_name, faults in ((True, look.faults), (False, of_facts)):
            for fault in faults:
                broken = group.broken.setdefault(fault.rule, Broken(by_name=by_name))
                broken.keys += 1
                if fault.severity == "must":
                    broken.severity = "must"
                if len(broken.examples) < MAX_EXAMPLES:
                    shown = self._judge.shown(key, look.target)
                    broken.examples += [shown] if shown not in broken.examples else []
        if facts is None:
            return
        group.asked += 1
        group.size += facts.size
        group.without_ttl += facts.ttl < 0
        group.types[facts.type] = group.types.get(facts.type, 0) + 1
        for at, days in enumerate(IDLE_DAYS):
            group.idle[at] += facts.idle >= days * _DAY
        if facts.size > (group.biggest.number if group.biggest else 0):
            group.biggest = Extreme(self._judge.shown(key, look.target), facts.size, facts.type)
        if facts.idle > (group.oldest.number if group.oldest else 0):
            group.oldest = Extreme(self._judge.shown(key, look.target), facts.idle, facts.type)

    def _group(self, place: Place, shape: str) -> Group:
        name = (place.kind, place.name, place.scope, shape)
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(place.kind, place.name, place.scope, place.owner, shape)
        return group

    def settle(self) -> None:
        """Counts the waiting keys under the shapes that are known by now, and joins groups whose shapes have
        become one."""
        waiting, self._waiting = self._waiting, []
        for key, look, faults, facts in waiting:
            self._count(key, look, faults, facts, self._shapes.reshaped(key))
        for name, group in list(self.groups.items()):
            shape = self._shapes.reshaped(group.sample) if group.sample else group.shape
            if shape == group.shape:
                continue
            del self.groups[name]
            before = self.groups.setdefault((*name[:3], shape), group)
            if before is group:
                group.shape = shape
            else:
                before.merge(group)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups.values())

    def as_object(self) -> list[dict[str, Any]]:
        """Plain values for JSON; every key is counted."""
        self.settle()
        return [group.as_object() for group in self]

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Goes on from what `as_object` returned."""
        for row in rows:
            group = Group.from_object(row)
            self.groups[group.kind, group.name, group.scope, group.shape] = group


def _greater(one: Extreme | None, two: Extreme | None) -> Extreme | None:
    if one is None or two is None:
        return one or two
    return one if one.number >= two.number else two
