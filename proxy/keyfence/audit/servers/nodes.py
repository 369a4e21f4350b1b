"""The servers that hold the keys: one Redis, the masters of a cluster, or their replicas.

Rule: nothing is assumed about a server that it can say itself: its version, its databases, its cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keyfence.policy.compiled.hash_slots import SLOTS, hash_slot
from keyfence.upstream.cluster import topology

from .links import Endpoint, Link, LinkError

# In a node's own line of CLUSTER NODES. It gives the hash slot in `[77->-ID]`, and takes that in `[93-<-ID]`.
_ON_ITS_WAY = re.compile(rb"\[(\d{1,5})-[<>]-")


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """What a server says about itself."""

    endpoint: Endpoint
    run_id: str  # changes when the server starts again; cursors of SCAN are worth nothing then
    version: tuple[int, ...]
    keys: Mapping[int, int]  # by database
    tracks_idle: bool  # the policy for maxmemory does not count accesses instead
    is_in_cluster: bool

    @property
    def shown(self) -> str:
        return self.endpoint.address.shown


class Topology:
    """The servers of one Redis, as one of them describes them."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises LinkError."""
        self.endpoint = endpoint
        with contextlib.closing(Link(endpoint)) as link:
            info = info_of(link, "server") | info_of(link, "cluster")
            check_has_keys(endpoint, info)
            self.is_cluster = info.get("cluster_enabled") == "1"
            self.cluster = _cluster(link) if self.is_cluster else topology.Topology()
            role: Any = link.attempt("ROLE") if not self.is_cluster else None
        self._role = role if isinstance(role, list) and role else []

    def masters(self) -> list[Endpoint]:
        """The servers that hold each key once."""
        if not self.is_cluster:
            return [self.endpoint]
        return [self.endpoint.at(*one.address) for one in self.cluster.owners()]

    def replicas(self) -> list[Endpoint]:
        """A replica for each master. Raises LinkError if one has none that follows it."""
        if not self.is_cluster:
            return [_following(self._named_replicas())]
        chosen = []
        for master in self.cluster.owners():
            replicas = self.cluster.replicas_of(master.id)
            if not replicas:
                raise LinkError(f"the master {master.shown} has no replica; omit --replica to audit masters")
            chosen.append(_following([self.endpoint.at(*one.address) for one in replicas]))
        return chosen

    def slot_map(self) -> list[tuple[int, int, str]] | None:
        """Which master has which hash slots; None: it is no cluster."""
        ranges = [(*one, node.id) for node in self.cluster.owners() for one in node.slots]
        return sorted(ranges) if self.is_cluster else None

    def moved_slots(self) -> int:
        """How many hash slots another shard has now, or is about to have. Raises LinkError."""
        if not self.is_cluster:
            return 0
        now = self._again()
        was, on_their_way = self.cluster, now._on_their_way()
        return sum(
            slot in on_their_way or not _is_one_shard(was, was.owner(slot), now.cluster.owner(slot))
            for slot in range(SLOTS)
        )

    def _again(self) -> Topology:
        """The same now, as any of the masters describes it. Raises LinkError."""
        *others, last = dict.fromkeys((self.endpoint, *self.masters()))
        for one in others:
            with contextlib.suppress(LinkError):
                return Topology(one)
        return Topology(last)

    def _on_their_way(self) -> set[int]:
        """The hash slots that a master is giving to another one, as far as they say so."""
        found: set[int] = set()
        for one in self.masters():
            with contextlib.suppress(LinkError), contextlib.closing(Link(one)) as link:
                nodes = link.attempt("CLUSTER", "NODES") or b""
                found.update(map(int, _ON_ITS_WAY.findall(nodes)))
        return found

    def master_of(self, key: bytes) -> str:
        """The master that holds a key, as `at` takes it."""
        node = self.cluster.owner(hash_slot(key)) if self.is_cluster else None
        return node.id if node is not None else ""

    def has_replicas(self, master: str) -> bool:
        return bool(self.cluster.replicas_of(master))

    def at(self, master: str) -> Endpoint:
        node = self.cluster.nodes_by_id.get(master)
        return self.endpoint.at(*node.address) if node is not None else self.endpoint

    def _named_replicas(self) -> list[Endpoint]:
        """The replicas of a single Redis, or itself if it is one."""
        kind = self._role[0] if self._role else b""
        if kind == b"slave":
            return [self.endpoint]
        named = self._role[2] if kind == b"master" else []
        if not named:
            raise LinkError(f"{self.endpoint.address.shown} names no replica; name one yourself")
        return [self.endpoint.at(one[0].decode(), int(one[1])) for one in named]


def _following(replicas: Sequence[Endpoint]) -> Endpoint:
    """The first replica that has what its master has: while it still gets it, it holds a part or what is old.
    Raises LinkError."""
    why = ""
    for one in replicas:
        try:
            with contextlib.closing(Link(one)) as link:
                if info_of(link, "replication").get("master_link_status") == "up":
                    return one
            why = f"{one.address.shown} does not follow its master now; wait for it, or omit --replica"
        except LinkError as exc:
            why = str(exc)
    raise LinkError(why)


def _is_one_shard(was: topology.Topology, old: topology.Node | None, new: topology.Node | None) -> bool:
    """Whether a hash slot is where it was: at the same master, or at one of its replicas of then."""
    if old is None or new is None:
        return False
    return new.id == old.id or any(one.id == new.id for one in was.replicas_of(old.id))


def check_has_keys(endpoint: Endpoint, info: Mapping[str, str]) -> None:
    """Raises LinkError if a server is a Sentinel: it answers as a Redis without keys would. `info` has its
    section `server`."""
    if _mode(info) == "sentinel":
        address = endpoint.address
        raise LinkError(
            f"{address.shown} is a Sentinel, which has no keys; name the primary that it knows: "
            f"redis-cli -p {address.port} SENTINEL MASTERS shows its address"
        )


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
        _mode(info) == "cluster",
    )


def _mode(info: Mapping[str, str]) -> str:
    """What a server is: standalone, cluster or sentinel. Valkey has another word for it than Redis."""
    return info.get("server_mode") or info.get("redis_mode", "")


@contextlib.contextmanager
def visiting(server: Server, database: int) -> Iterator[Link]:
    """A connection to a server, with this database selected. Raises LinkError."""
    with contextlib.closing(Link(server.endpoint)) as link:
        if link.endpoint.address.database != database:
            link.one("SELECT", database)
        yield link


def leave_idle_times(link: Link, server: Server) -> None:
    """Reads through this connection do not make keys look used, if the server knows CLIENT NO-TOUCH (from
    Redis 7.2 on). A node of a cluster is not asked for that: Redis 8.0.2 and Valkey 8.1.1 crash when such a
    client names a key of a hash slot that moves."""
    if not server.is_in_cluster:
        link.attempt("CLIENT", "NO-TOUCH", "ON")


def info_of(link: Link, section: str) -> dict[str, str]:
    """The facts in a section of INFO."""
    text = link.one("INFO", section).decode("utf-8", "replace")
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _cluster(link: Link) -> topology.Topology:
    """The nodes of a cluster. Raises LinkError if hash slots are missing: their keys would be missing too."""
    try:
        found = topology.topology_in(
            link.one("CLUSTER", "SLOTS"), asked=link.endpoint.address.host or "127.0.0.1"
        )
    except topology.TopologyError as exc:
        raise LinkError(f"{link.shown} answers CLUSTER SLOTS, but {exc}") from None
    if found.covered < SLOTS:
        raise LinkError(f"{link.shown}: some hash slots of the cluster have no node; mend that first")
    return found
