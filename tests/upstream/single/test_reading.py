"""A client that reads from a cluster's replicas reads what it has written, whatever the nodes do.

The shares, the order, the cutting, the whereabouts and the exchanges are the real ones."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import RequestReader
from keyfence.upstream.exchange import Exchange
from keyfence.upstream.replicas.sorting import Sorter
from keyfence.upstream.single import reading, shares
from keyfence.upstream.single.reading import ReadingShares

from .model import HOST, KEYS, SPLITS, Link, ModelClient, ModelCluster, Pools, Server, ignore

SEEDS = 3000 if os.environ.get("KEYFENCE_LONG") else 24
NEVER = float("-inf")


class Logged(dict[bytes, bytes]):
    """The keys of a master, and all that has changed them."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[bytes, bytes | None]] = []

    def __setitem__(self, key: bytes, value: bytes) -> None:
        super().__setitem__(key, value)
        self.log.append((key, value))

    def __ior__(self, other: Any) -> Any:
        for key, value in dict(other).items():
            self[key] = value
        return self

    def pop(self, key: bytes, *default: Any) -> Any:
        if key in self:
            self.log.append((key, None))
        return super().pop(key, *default)


class ReadyLink(Link):
    @property
    def is_ready(self) -> bool:
        return self._server.exchange.is_open


class ReadyPools(Pools):
    def link(self, _profile: Any, sharer: Any) -> Link:
        return ReadyLink(self._server, sharer)


class ReplicaServer(Server):
    """A replica: it has a part of what has changed its master's keys."""

    def __init__(self, master: Server, cluster: ReadingCluster) -> None:
        super().__init__(master.number, cluster)
        self.master = master
        self.applied = 0
        self.trouble = b""  # the error that it answers
        self.served = 0  # reads
        self._requests: deque[list[bytes]] = deque()

    @property
    def _inbox(self) -> deque[list[bytes]]:
        return self._requests

    def replicate(self, most: int) -> None:
        log = self.master.keys.log  # type: ignore[attr-defined]
        for key, value in log[self.applied : self.applied + most]:
            self.applied += 1
            if value is None:
                self.keys.pop(key, None)
            else:
                self.keys[key] = value

    def _refusal(self, argv: list[bytes], asking: bool) -> bytes:  # noqa: ARG002
        name, *keys = argv
        assert name in (b"GET", b"MGET"), "it was sent what is no read"
        if self.trouble:
            return self.trouble
        owner = self.owners[hash_slot(keys[0])]
        if owner != self.number:
            return b"-MOVED %d %b:%d\r\n" % (hash_slot(keys[0]), HOST.encode(), 7000 + owner)
        self.served += 1
        return b""

    def lose(self) -> None:
        """The connection ends, and another one is there."""
        exchange, self.exchange = self.exchange, Exchange(self._cluster.faults.append, ignore)
        self.exchange.open()
        self._requests.clear()
        self._reader = RequestReader(IDENTIFIED)
        self.to_client.clear()
        for share in exchange.fail():
            if share.sharer is not None:
                share.awaited = 0
                share.sharer.shared_lost(share, "it has gone")


class Replica:
    """What keyfence knows of a replica."""

    def __init__(self, number: int, server: ReplicaServer) -> None:
        self.number = -100 - number
        self.server = server
        self.upstream = server.upstream
        self.pools = ReadyPools(server)
        self.has_all_of = NEVER
        self.trouble = ""
        self.readers = 0
        self.has_left = False

    def why_not(self, _now: float) -> str:
        return self.trouble

    def doubt(self, why: str) -> None:
        self.trouble, self.has_all_of = why, NEVER


class Group:
    """The replica of one master."""

    def __init__(self, master: Server, replica: Replica) -> None:
        self.master = master
        self.replica = replica
        self.asked: tuple[float, int] | None = None  # a check has asked the master
        self.waiting: dict[Any, None] = {}

    def choose(self, now: float) -> Replica | None:
        return None if self.replica.why_not(now) else self.replica

    def when_checked(self, act: Any) -> None:
        self.waiting[act] = None

    def forget(self, act: Any) -> None:
        self.waiting.pop(act, None)

    def look_again(self) -> None:
        pass

    def count_reads(self, replica: Any, count: int) -> None:
        pass

    def ask(self, now: float) -> None:
        self.asked = now, len(self.master.keys.log)  # type: ignore[attr-defined]

    def end_check(self) -> None:
        if self.asked is None:
            return
        (at, offset), self.asked = self.asked, None
        server = self.replica.server
        if server.trouble:
            self.replica.doubt("it does not serve")
        else:
            self.replica.trouble = ""
            if server.applied >= offset:
                self.replica.has_all_of = max(self.replica.has_all_of, at)
        waiting, self.waiting = self.waiting, {}
        for act in waiting:
            act()


class Replicas:
    def __init__(self, groups: list[Group]) -> None:
        self.sorter = Sorter([b"GET", b"MGET"])
        self.groups = groups

    def take(self, *_: Any) -> None:
        """The model has the same ones all the time."""

    def of(self, master: int) -> Group | None:
        return self.groups[master] if master < len(self.groups) else None


class ReadingClient(ModelClient):
    def __init__(self, cluster: ModelCluster, name: bytes, *, splits: bool = False) -> None:
        super().__init__(cluster, name)
        self.shares.close()
        self.splits = splits
        after_write = cluster.random.choice([0.0, 0.0, 30.0])
        self.shares: Any = ReadingShares(self, cluster.masters, after_write)
        if splits:
            self.shares.split(SPLITS)


class ReadingCluster(ModelCluster):
    """Three masters, each with a replica, and clients that read there."""

    def __init__(self, seed: int, clients: int = 2, *, splits: bool = False) -> None:
        super().__init__(seed, clients=0)
        self.now = 0.0
        self.masters.clock = lambda: self.now
        for server in self.servers:
            server.keys = Logged()
        self.replicas = [ReplicaServer(one, self) for one in self.servers]
        for one in self.replicas:
            one.owners = dict(self.owner)
        self.groups = [Group(one.master, Replica(number, one)) for number, one in enumerate(self.replicas)]
        replicas: Any = Replicas(self.groups)
        self.masters.replicas = replicas
        self.clients = [ReadingClient(self, b":%d" % number, splits=splits) for number in range(clients)]

    def step(self) -> None:
        self.now += 1.0
        drawn = self.random
        happens = drawn.random()
        replica, group = drawn.choice(self.replicas), drawn.choice(self.groups)
        if happens < 0.5:
            super().step()
        elif happens < 0.65:
            replica.work()
            replica.deliver(drawn.choice([1, 3, 20, 200]))
        elif happens < 0.78:
            replica.replicate(drawn.choice([1, 2, 50]))
        elif happens < 0.86:
            group.ask(self.now)
        elif happens < 0.94:
            group.end_check()
        elif happens < 0.95:
            replica.trouble = drawn.choice(
                [b"", b"", b"-LOADING it loads\r\n", b"-MASTERDOWN it is cut off\r\n", b"-CLUSTERDOWN no\r\n"]
            )
        elif happens < 0.97:
            replica.owners.update(self.owner)
        elif happens < 0.98:
            if not replica.to_client:
                replica.lose()
        else:
            for one in self.clients:
                one.shares.tick()

    def settle(self) -> None:
        for one in self.replicas:
            one.trouble = b""
        super().settle()

    def go_round(self) -> None:
        """Everything is answered, and the replicas have all."""
        self.now += 1.0
        for one in self.replicas:
            one.owners = dict(self.owner)
            one.replicate(1_000_000)
        for group in self.groups:
            group.ask(self.now)
        self.now += 1.0
        for group in self.groups:
            group.end_check()
        for server in (*self.servers, *self.replicas):
            server.take_in()
            while server._inbox:
                server.work()
            server.deliver(1_000_000)
        if self.later.waiting:
            self.later.run_next()


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
@pytest.mark.parametrize("block", range(4))
def test_a_client_reads_what_it_has_written_in_random_schedules(
    block: int, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block % 2:  # few requests are sent at once
        monkeypatch.setattr(shares, "FIRST_SIZE", 20)
        monkeypatch.setattr(shares, "MOST_ASKED", 60)
    served = 0
    for seed in range(block * SEEDS // 4, (block + 1) * SEEDS // 4, 1 + in_parts):
        cluster = ReadingCluster(seed, splits=in_parts)
        for _ in range(500):
            cluster.step()
        cluster.settle()
        assert cluster.faults == [], seed
        assert all(one.lost in ("", "it has gone") for one in cluster.clients), seed
        served += sum(one.served for one in cluster.replicas)
    assert served > SEEDS / 4, "reads go to replicas"


def away(cluster: ReadingCluster) -> tuple[Any, bytes, ReplicaServer]:
    """A client whose next read of the key goes to this replica, which has all."""
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    client.ask([b"SET", key, b"1"])
    for _ in range(8):
        cluster.go_round()
        client.ask([b"GET", key])
    for _ in range(4):
        cluster.go_round()
    replica = cluster.replicas[cluster.node_of(key)]
    assert replica.served
    client.replies = replica.served = 0
    return client, key, replica


def cluster_of_one(*, splits: bool = False) -> ReadingCluster:
    for seed in range(100):
        cluster = ReadingCluster(seed, clients=1, splits=splits)
        if cluster.clients[0].shares._after_write == 0.0:
            return cluster
    raise LookupError


def test_a_read_goes_to_the_replica_and_a_write_to_the_master() -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    client.ask([b"GET", key], [b"SET", key, b"2"], [b"GET", key])
    cluster.go_round()
    cluster.go_round()
    assert client.replies == 3
    assert replica.served == 1, "the last read follows the write at the master"


@pytest.mark.parametrize("error", [b"-LOADING it loads", b"-MASTERDOWN cut off", b"-CLUSTERDOWN no"])
def test_a_replica_that_refuses_is_not_used_and_its_master_answers(error: bytes) -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    replica.trouble = error + b"\r\n"
    client.ask([b"GET", key], [b"GET", key])
    for _ in range(3):
        cluster.go_round()
    assert (client.replies, client.errors) == (2, [])
    assert cluster.groups[replica.number].replica.trouble


def test_after_a_replica_has_refused_a_read_none_of_its_replies_that_are_due_counts() -> None:
    """The first read is answered by the master, which may have more. So must be the second."""
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    client.ask([b"GET", key], [b"GET", key])
    replica.take_in()
    replica.trouble = b"-LOADING it loads\r\n"
    replica.work()
    replica.trouble = b""
    replica.work()
    replica.master.keys[key] = client.values[key] = b"2"
    assert replica.served == 1
    while replica.to_client:
        replica.deliver(7)
    for _ in range(3):
        cluster.go_round()
    assert (client.replies, client.errors) == (2, [])
    assert cluster.faults == []


def test_a_read_at_the_master_waits_for_the_reads_at_the_replica_before_it() -> None:
    """Those may have to be read from the master as well, which may have more by then."""
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    master = replica.master
    client.ask([b"GET", key])
    replica.take_in()
    cluster.groups[replica.number].replica.doubt("it does not answer")
    client.ask([b"GET", key])
    master.work()
    master.deliver(1_000)
    master.keys[key] = client.values[key] = b"2"
    replica.trouble = b"-LOADING it loads\r\n"
    replica.work()
    replica.deliver(1_000)
    for _ in range(3):
        cluster.go_round()
    assert (client.replies, client.errors) == (2, [])
    assert cluster.faults == []


def test_a_key_that_has_left_is_read_where_it_is_now() -> None:
    """The replica of the former node just does not have it; that node itself leads to the next one."""
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    source, slot = replica.master, hash_slot(key)
    target = cluster.servers[(source.number + 1) % 3]
    target.imports.add(slot)
    source.migrates[slot] = target.number
    target.keys[key] = source.keys.pop(key)
    replica.replicate(100)
    client.ask([b"GET", key], [b"MGET", key])
    for _ in range(6):
        cluster.go_round()
    assert (client.replies, client.errors) == (2, [])
    assert replica.served


def test_a_hash_slot_with_another_node_voids_what_is_known_of_its_replica() -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    source, slot = replica.master, hash_slot(key)
    target = cluster.servers[(source.number + 1) % 3]
    target.keys[key] = source.keys.pop(key)
    cluster.owner[slot] = target.number
    for server in (*cluster.servers, *cluster.replicas):
        server.owners = dict(cluster.owner)
    cluster.tell()
    while cluster.later.waiting:
        cluster.later.run_next()
    later = cluster.replicas[target.number]
    client.ask([b"GET", key])
    later.work()
    assert later.served == 0, "it has not got the key yet"
    for _ in range(3):
        cluster.go_round()
    assert (client.replies, client.errors) == (1, [])


def test_reads_at_a_replica_that_is_lost_are_read_from_its_master() -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    client.ask([b"GET", key], [b"GET", key])
    replica.take_in()
    replica.lose()
    for _ in range(3):
        cluster.go_round()
    assert (client.replies, client.errors, client.lost) == (2, [], "")


def test_reads_at_a_replica_that_is_silent_are_read_from_its_master() -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    client.ask([b"GET", key])
    cluster.groups[replica.number].replica.doubt("it does not answer")
    client.shares.tick()
    while cluster.later.waiting:
        cluster.later.run_next()
    replica.master.work()
    replica.master.deliver(1_000)
    assert client.replies == 1


def test_a_reply_that_confirms_a_replica_does_not_keep_the_client_from_it() -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    missing = key[:3] + b"nothing" + client.name
    for _ in range(4):
        client.ask([b"GET", missing])
        for _ in range(2):
            cluster.go_round()
    assert replica.served == 4
    assert client.replies == 4


def test_a_long_reply_that_may_have_holes_is_held_or_read_from_the_master() -> None:
    cluster = cluster_of_one()
    client, key, replica = away(cluster)
    for size in (50_000, 3_000_000):
        client.ask([b"SET", key, b"x" * size])
        for _ in range(4):
            cluster.go_round()
        before = replica.served
        client.expect([b"MGET", key])
        client.shares.send([encode.command(b"MGET", key)], [1], False)
        replica.work()
        assert replica.served == before + 1
        while replica.to_client:
            replica.deliver(20_000)
        for _ in range(6):
            cluster.go_round()
    assert client.errors == []
    assert not client.expected


def replies_of(
    cluster: ReadingCluster, client: ModelClient, *requests: list[bytes], chunk: int
) -> list[bytes]:
    """What the client gets, as the replica sends its replies in pieces of this length."""
    got: list[bytes] = []
    client._check = lambda _argv, reply: got.append(reply)  # type: ignore[assignment,method-assign]
    client.ask(*requests)
    for server in cluster.replicas:
        server.work()
        while server.to_client:
            server.deliver(chunk)
    for _ in range(30):
        cluster.go_round()
    return got


@pytest.mark.parametrize(("most", "chunk"), [(1_000, 1_000), (8, 6), (8, 5)])
def test_a_long_reply_is_read_again_whole_whatever_was_read_after_it(
    monkeypatch: pytest.MonkeyPatch, most: int, chunk: int
) -> None:
    monkeypatch.setattr(reading, "MOST_HELD", most)
    cluster = cluster_of_one()
    client, key, _ = away(cluster)
    got = replies_of(cluster, client, [b"MGET", key, key], [b"GET", key], chunk=chunk)
    assert got == [b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n", b"$1\r\n1\r\n"]


@pytest.mark.parametrize("later", [False, True])
def test_a_key_that_moves_is_not_missing_whatever_was_read_after_it(later: bool) -> None:
    cluster = cluster_of_one()
    client, key, _ = away(cluster)
    moved = key.replace(b"a:", b"b:")
    giver = cluster.servers[cluster.node_of(key)]
    taker = cluster.servers[(giver.number + 1) % 3]
    giver.migrates[hash_slot(key)] = taker.number
    taker.imports.add(hash_slot(key))
    taker.keys[moved] = b"there"
    requests = [[b"MGET", key, moved], *([[b"GET", key]] if later else [])]
    first, *rest = replies_of(cluster, client, *requests, chunk=1_000)
    assert first.startswith(b"-TRYAGAIN")
    assert rest == [b"$1\r\n1\r\n"] * later
