"""What a rehearsal of a cluster has seen: how often each service met each obstacle, and how often a command
of the same kind would work.

Rule: rows hold names of entries and shapes of keys, never a key. The table is bounded; what comes beyond is
counted without its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from keyfence.policy.compiled.hash_tags import Link, Linked, Place, by_shape, links
from keyfence.policy.compiled.obstacles import BY_NAME, COMMAND, Seen
from keyfence.policy.engine.counts import Admitted
from keyfence.shapes.shapes import Shapes

MAX_ROWS = 2_000
MAX_LINKS = 16  # of one row
MAX_SCRIPTS = 100  # that one service's rows name: there are services that write a text for each key
PART = 100  # rows that one part of the increments has at most
_SEVERAL = "slot.cross"  # the rule that only commands with several keys are evidence of


class Name(NamedTuple):
    """A kind of key: an entry of the policy, or (with `is_entry` false) a shape. "": there is no key."""

    name: str
    is_entry: bool = False


NONE = Name("")


class Key(NamedTuple):
    """What tells one row from another."""

    service: str
    obstacle: str
    command: str
    first: Name = NONE
    second: Name = NONE
    script: str = ""  # its SHA-1, or the function's name


class Count:
    """The counts of one row."""

    __slots__ = ("links", "times", "works")

    def __init__(self) -> None:
        self.times = 0  # the obstacle was met
        self.works = 0  # a command of the same kind would work
        self.links: dict[Link, Linked] = {}  # placeholders with one value in both keys

    def add(self, times: int, works: int, found: Iterable[Linked]) -> None:
        self.times += times
        self.works += works
        for one in found:
            if one.link in self.links or len(self.links) < MAX_LINKS:
                self.links[one.link] = self.links.get(one.link, Linked(one.link)).joined(one)


class Rehearsal:
    """The table of one process, or (in a parent) of all of its workers."""

    def __init__(self) -> None:
        self.rows: dict[Key, Count] = {}
        self._sent: dict[Key, Count] = {}  # since the last increments
        self._scripts: dict[str, set[str]] = {}  # by service

    def admitted(self, service: str, admitted: Admitted, times: int) -> None:
        """Count commands that both caches have admitted."""
        obstacle = BY_NAME.get(admitted.name)
        if obstacle is not None:
            self._add(Key(service, obstacle, admitted.name), times, 0, ())
        elif _SEVERAL in admitted.evidence.rules:
            self._add(Key(service, COMMAND, admitted.name), 0, times, ())

    def seen(self, service: str, seen: Seen, shapes: Shapes) -> None:
        """Count what one command has shown."""
        if seen.works:
            self._add(Key(service, seen.obstacle, seen.command), 0, seen.times, ())
            return
        first, one = _named(seen.first, shapes)
        second, other = _named(seen.second, shapes)
        found = links(one, other, seen.times) if second.name else ()
        key = Key(service, seen.obstacle, seen.command, first, second, seen.script)
        self._add(key, seen.times, 0, found)

    def parts(self) -> Iterator[list[Any]]:
        """What was counted since the last time, as values that JSON can carry, part by part."""
        sent, self._sent = self._sent, {}
        rows = [_packed(key, count) for key, count in sent.items()]
        for at in range(0, len(rows), PART):
            yield rows[at : at + PART]

    def absorb(self, rows: Iterable[Any]) -> None:
        """Add what a worker sends."""
        for service, obstacle, command, first, second, script, times, works, found in rows:
            key = Key(service, obstacle, command, Name(*first), Name(*second), script)
            linked = [Linked((one, other), number, trace) for one, other, number, trace in found]
            self._add(key, times, works, linked)

    def _add(self, key: Key, times: int, works: int, found: Iterable[Linked]) -> None:
        if key.script and not self._names(key.service, key.script):
            key = key._replace(script="")
        if key not in self.rows and len(self.rows) >= MAX_ROWS:
            key = Key(key.service, key.obstacle, key.command)
        found = list(found)
        for table in (self.rows, self._sent):
            count = table.get(key)
            if count is None:
                count = table[key] = Count()
            count.add(times, works, found)

    def _names(self, service: str, script: str) -> bool:
        """Whether rows of a service name a script; they go on to, once they do."""
        known = self._scripts.setdefault(service, set())
        if script not in known and len(known) < MAX_SCRIPTS:
            known.add(script)
        return script in known


def _packed(key: Key, count: Count) -> list[Any]:
    found = [[*one.link, one.times, one.trace] for one in count.links.values()]
    return [*key[:3], list(key.first), list(key.second), key.script, count.times, count.works, found]


def _named(place: Place, shapes: Shapes) -> tuple[Name, Place]:
    """The name of a key's kind, and the key with the parts that vary."""
    if place.entry or not place.key:
        return Name(place.entry, bool(place.entry)), place
    shape = shapes.shape(place.key)
    return Name(shape), by_shape(place, shape)


def as_rows(rows: Mapping[Key, Count]) -> list[dict[str, Any]]:
    """The table as plain values."""
    return [
        {
            "service": key.service,
            "obstacle": key.obstacle,
            "command": key.command,
            "keys": [one._asdict() for one in (key.first, key.second) if one.name],
            "script": key.script,
            "times": count.times,
            "works": count.works,
            "links": [_link(one) for one in count.links.values()],
        }
        for key, count in rows.items()
    ]


def _link(one: Linked) -> dict[str, Any]:
    first, second = one.link
    return {"first": first, "second": second, "times": one.times, "values": one.values}
