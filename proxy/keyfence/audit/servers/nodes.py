"""The servers that hold the keys: one Redis, the masters of a cluster, or their replicas.

Rule: nothing is assumed about a server that it can say itself: its version, its databases, its cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .links import Endpoint, Link, LinkError

SLOT_COUNT = 16384  # of a cluster


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """What a server says about itself."""

    endpoint: Endpoint
    run_id: str  # changes when the server starts again; cursors of SCAN are worth nothing then
    version: tuple[int, ...]
    keys: Mapping[int, int]  # by database
    tracks_idle: bool  # the policy for maxmemory does not count accesses instead

    @property
    def shown(self) -> str:
        return self.endpoint.address.shown


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    """A range of hash slots, with the addresses of those that hold it."""

    first: int
    last: int
    master: tuple[str, int]
    replicas: tuple[tuple[str, int], ...]


class Topology:
    """The servers of one Redis, as one of them describes them."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises LinkError."""
        self.endpoint = endpoint
        with contextlib.closing(Link(endpoint)) as link:
            info = info_of(link, "cluster")
            self.is_cluster = info.get("cluster_enabled") == "1"
            self.slots = _slots(link) if self.is_cluster else ()
            role: Any = link.attempt("ROLE") if not self.is_cluster else None
        self._role = role if isinstance(role, list) and role else []

    def masters(self) -> list[Endpoint]:
        """The servers that hold each key once."""
        if not self.is_cluster:
            return [self.endpoint]
        return [self.endpoint.at(*one) for one in dict.fromkeys(slots.master for slots in self.slots)]

    def replicas(self) -> list[Endpoint]:
        """A replica for each master. Raises LinkError if one has none."""
        if not self.is_cluster:
            return [self._single_replica()]
        chosen = {}
        for slots in self.slots:
            if not slots.replicas:
                host, port = slots.master
                raise LinkError(f"the master {host}:{port} has no replica; omit --replica to audit masters")
            chosen[slots.master] = slots.replicas[0]
        return [self.endpoint.at(*one) for one in chosen.values()]

    def _single_replica(self) -> Endpoint:
        kind = self._role[0] if self._role else b""
        if kind == b"slave":
            return self.endpoint
        named = self._role[2] if kind == b"master" else []
        if not named:
            raise LinkError(f"{self.endpoint.address.shown} names no replica; name one yourself")
        return self.endpoint.at(named[0][0].decode(), int(named[0][1]))


def inspect(endpoint: Endpoint) -> Server:
    """What a server says about itself. Raises LinkError."""
    with contextlib.closing(Link(endpoint)) as link:
        info = info_of(link, "server") | info_of(link, "memory") | info_of(link, "keyspace")
    numbers = re.findall(r"\d+", info.get("redis_version", ""))[:3]
    keys = {
        int(name[2:]): int(found[1])
        for name, text in info.items()
        if re.fullmatch(r"db\d+", name) and (found := re.search(r"keys=(\d+)", text))
    }
    return Server(
        endpoint,
        info.get("run_id", ""),
        tuple(map(int, numbers)),
        keys,
        "lfu" not in info.get("maxmemory_policy", ""),
    )


@contextlib.contextmanager
def visiting(server: Server, database: int) -> Iterator[Link]:
    """A connection to a server, with this database selected. Raises LinkError."""
    with contextlib.closing(Link(server.endpoint)) as link:
        if link.endpoint.address.database != database:
            link.one("SELECT", database)
        yield link


def info_of(link: Link, section: str) -> dict[str, str]:
    """The facts in a section of INFO."""
    text = link.one("INFO", section).decode("utf-8", "replace")
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _slots(link: Link) -> tuple[Slots, ...]:
    """The ranges of a cluster. Raises LinkError if slots are missing: their keys would be missing too."""
    found = []
    for first, last, master, *replicas in link.one("CLUSTER", "SLOTS"):
        near = [_node(one, link) for one in (master, *replicas)]
        found.append(Slots(int(first), int(last), near[0], tuple(near[1:])))
    if sum(one.last - one.first + 1 for one in found) < SLOT_COUNT:
        raise LinkError(f"{link.shown}: nobody holds some slots of the cluster; mend it first")
    return tuple(found)


def _node(row: Any, link: Link) -> tuple[str, int]:
    host = row[0].decode() if row[0] else ""
    if host in ("", "?"):  # it does not know its own address: it is the one that was asked
        host = link.endpoint.address.host or "127.0.0.1"
    return host, int(row[1])
