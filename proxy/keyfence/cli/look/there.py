"""The keys that a Redis holds: their kinds by shape, with numbers, sizes, types and times to live.

Rule: Redis is only read, at the pace of an audit, and no more than MAX_KEYS keys of one database. Which keys
these are is chance, because SCAN returns them in no order; so they stand for the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from keyfence.audit.facts import Asker
from keyfence.audit.judge import Facts, Judge
from keyfence.audit.pace import Pace
from keyfence.audit.servers.links import Endpoint, Link, LinkError
from keyfence.audit.servers.nodes import Server, check_has_keys, info_of, inspect, visiting
from keyfence.cli.keyspace.asked import RATE
from keyfence.shapes.shapes import Shapes

from .kinds import Seen

MAX_KEYS = 10_000
_AT_ONCE = 100  # keys of one SCAN and of the pipeline after it


@dataclasses.dataclass(slots=True)
class Kind:
    """Keys of one kind, among those that were looked at."""

    name: str
    keys: int = 0
    size: int = 0  # bytes
    types: dict[str, int] = dataclasses.field(default_factory=dict)
    lasting: int = 0  # keys without a time to live
    longest: int = 0  # time to live, in milliseconds

    def add(self, facts: Facts) -> None:
        self.keys += 1
        self.size += facts.size
        self.types[facts.type] = self.types.get(facts.type, 0) + 1
        self.lasting += facts.ttl < 0
        self.longest = max(self.longest, facts.ttl)

    @property
    def by_number(self) -> list[str]:
        """The types, the most frequent first."""
        return sorted(self.types, key=lambda kind: -self.types[kind])


@dataclasses.dataclass(frozen=True, slots=True)
class There:
    """What a database holds."""

    database: int
    total: int  # keys
    looked_at: int
    kinds: list[Kind]  # the most frequent first
    seen: Seen  # the same keys, by shape
    others: dict[int, int]  # keys of databases that were not looked at
    notes: list[str]  # what Redis did not answer

    @property
    def is_sample(self) -> bool:
        """Whether there are keys that were not looked at."""
        return self.looked_at < self.total

    def estimate(self, number: int) -> int:
        """A number of the keys that were looked at, for all keys."""
        return round(number * self.total / self.looked_at) if self.looked_at and self.is_sample else number


def primary_at(endpoint: Endpoint) -> Server:
    """What the Redis says about itself. Raises LinkError, also if keyfence cannot stand before it."""
    shown = endpoint.address.shown
    with contextlib.closing(Link(endpoint)) as link:
        info = info_of(link, "server") | info_of(link, "replication") | info_of(link, "cluster")
    check_has_keys(endpoint, info)
    if info.get("cluster_enabled") == "1":
        raise LinkError(
            f"{shown} is a node of a Redis Cluster, whose clients connect to each node themselves; keyfence "
            "draft and keyfence audit read the keys of all its masters"
        )
    if info.get("role") == "slave":
        primary = f"{info.get('master_host', 'HOST')}:{info.get('master_port', 'PORT')}"
        raise LinkError(f"{shown} is a replica, and its clients cannot write; look at its primary {primary}")
    return inspect(endpoint)


def keys_there(server: Server, judge: Judge, is_ended: Callable[[], bool]) -> There:
    """The keys in the database of the server's address. `is_ended` says whether to stop looking. Raises
    LinkError, CannotAsk."""
    database = server.endpoint.address.database
    shapes = Shapes(trusting=True)
    seen: list[tuple[bytes, Facts]] = []
    notes: dict[str, None] = {}
    with visiting(server, database) as link:
        asker = Asker(link, dataclasses.replace(server, tracks_idle=False), judge, notes)
        for keys in _batches(link):
            for key, facts in zip(keys, asker.ask([(key, judge.look(key)) for key in keys]), strict=True):
                if facts is not None:
                    shapes.shape(key)
                    seen.append((key, facts))
            if is_ended() or len(seen) >= MAX_KEYS:
                break
    kinds, known = _kinds([(shapes.reshaped(key), facts) for key, facts in seen])
    others = {number: keys for number, keys in server.keys.items() if number != database}
    total = max(server.keys.get(database, 0), len(seen))
    return There(database, total, len(seen), kinds, known, others, list(notes))


def _kinds(keys: Sequence[tuple[str, Facts]]) -> tuple[list[Kind], Seen]:
    """The kinds of these keys, of which the shapes are known."""
    seen = Seen()
    for shape, facts in keys:
        seen.add_keys(shape, {facts.type: 1})
    names, found = seen.kinds(), dict[str, Kind]()
    for shape, facts in keys:
        found.setdefault(names[shape], Kind(names[shape])).add(facts)
    return sorted(found.values(), key=lambda one: (-one.keys, one.name)), seen


def _batches(link: Link) -> Iterator[list[bytes]]:
    """The keys of a database, a few at a time."""
    pace, cursor = Pace(RATE), b"0"
    while True:
        cursor, keys = link.scan(cursor, _AT_ONCE)
        if keys:
            yield list(keys)
        if cursor == b"0":
            return
        pace.wait(max(len(keys), 1))
