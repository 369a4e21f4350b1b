"""Reads from the replicas of a real cluster behind one address: plain clients, and values that never fall."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.clients.running import ask, eventually, metric
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import keyfence_with, moved_slot
from tests.end_to_end.test_replicas import calls
from tests.servers import Keyfence, RedisServer

POLICY = """policy: p
services: [app, plain]
scopes: {all: {prefix: "app:", writers: [app, plain], unregistered: allow}}
"""
CONFIG = """policy: policy.yaml
upstream: {{cluster: ["127.0.0.1:{seed}"], expose: single}}
listeners:
  - {{listen: "127.0.0.1:0", service: app}}
  - {{listen: "127.0.0.1:0", service: plain}}
reads: {{app: {{at: replicas, after_write: {after_write}}}}}
split: {{app: [MGET, EXISTS]}}
admin: "127.0.0.1:0"
findings: none
modes: [{{mode: observe}}]
"""
KEYS = [f"app:{number}" for number in range(12)]
MOVING = [f"app:{{moves}}{number}" for number in range(6)]

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=3, settings={"cluster-node-timeout": 2000}) as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reads")


@pytest.fixture(scope="module")
def keyfence(folder: Path, cluster: Cluster) -> Iterator[Keyfence]:
    config = CONFIG.format(seed=cluster.masters[0].port, after_write="20ms")
    with keyfence_with(folder, POLICY, config) as one:
        until_used(one, 3)
        yield one


def replicas_of(keyfence: Keyfence) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask(keyfence, "/status")[1])["upstream"]["replicas"]
    return found


def used(keyfence: Keyfence) -> int:
    """Returns how many replicas are used."""
    return sum(not one["reason"] for one in replicas_of(keyfence))


def until_used(keyfence: Keyfence, count: int) -> None:
    eventually(lambda: used(keyfence) == count, f"{count} replicas are used")


def at_replicas(cluster: Cluster, name: str) -> list[int]:
    """Returns how often each node that is a replica now has run a command."""
    return [calls(one, name) for one in (*cluster.masters, *cluster.replicas) if not is_master(one)]


def is_master(server: RedisServer) -> bool:
    with server.client() as client:
        return str(client.info("replication")["role"]) == "master"


@contextlib.contextmanager
def held_back(server: RedisServer) -> Iterator[None]:
    """A server that stands still."""
    pid = server.embedded.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Readers:
    """A client that writes rising values and reads them, and one that only reads, each on one connection."""

    def __init__(self, keyfence: Keyfence) -> None:
        self.rounds = [0, 0]
        self.wrong: list[str] = []
        self.losses = [0, 0]
        self._keyfence = keyfence
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=[number]) for number in range(2)]

    def __enter__(self) -> Readers:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for one in self._threads:
            one.join()
        assert self.wrong == []

    def _work(self, number: int) -> None:
        while not self._ends.is_set():
            with self._keyfence.client("app", single_connection_client=True) as client:
                known: dict[str, int] = {}  # of this connection
                try:
                    while not self._ends.is_set():
                        self._round(client, known, writes=not number)
                        self.rounds[number] += 1
                except redis.ConnectionError:
                    self.losses[number] += 1
                except redis.RedisError as exc:
                    self.wrong.append(repr(exc))
                    return

    def _round(self, client: redis.Redis, known: dict[str, int], *, writes: bool) -> None:
        keys = [*KEYS, *MOVING]
        if writes:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.incr(key)
            for key, value in zip(keys, pipe.execute(), strict=True):
                self._see(known, key, value)
            time.sleep(0.03)
        for _ in range(3):
            for key in keys:
                self._see(known, key, client.get(key))
        for key, value in zip(keys, client.mget(keys), strict=True):
            self._see(known, key, value)
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.get(key)
        for key, value in zip(keys, pipe.execute(), strict=True):
            self._see(known, key, value)

    def _see(self, known: dict[str, int], key: str, value: object) -> None:
        now = int(value or 0)  # type: ignore[call-overload]
        if now < known.get(key, 0):
            self.wrong.append(f"{key}: {now} after {known[key]}")
        known[key] = now

    def go_on(self) -> None:
        """Wait for two more rounds of each."""
        last = [one + 2 for one in self.rounds]
        eventually(
            lambda: self.wrong or all(now >= then for now, then in zip(self.rounds, last, strict=True)),
            "the readers go on",
        )


def test_reads_go_to_the_replicas_and_all_else_to_the_masters(keyfence: Keyfence, cluster: Cluster) -> None:
    with keyfence.client("app", single_connection_client=True) as client:
        for key in KEYS:
            client.set(key, "1")

        def reads_at_replicas() -> bool:
            before = sum(at_replicas(cluster, "get"))
            assert [client.get(key) for key in KEYS] == [b"1"] * len(KEYS)
            return sum(at_replicas(cluster, "get")) == before + len(KEYS)

        eventually(reads_at_replicas, "all reads go to replicas")
        assert min(at_replicas(cluster, "get")) > 0
        pipe = client.pipeline(transaction=False)
        for key in KEYS:
            pipe.get(key)
            pipe.strlen(key)
        assert pipe.execute() == [b"1", 1] * len(KEYS)
        assert client.mget(KEYS) == [b"1"] * len(KEYS)
        assert client.exists(*KEYS) == len(KEYS)
        assert min(at_replicas(cluster, "mget")) > 0
        assert min(at_replicas(cluster, "exists")) > 0
        with client.pipeline(transaction=True) as transaction:
            transaction.get(KEYS[0])
            assert transaction.execute() == [b"1"]
    assert sum(at_replicas(cluster, "exec")) == 0


def test_a_service_that_does_not_ask_for_it_reads_from_the_masters(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    before = sum(at_replicas(cluster, "get"))
    with keyfence.client("plain") as client:
        for key in KEYS:
            client.set(key, "1")
            client.get(key)
    assert sum(at_replicas(cluster, "get")) == before


def test_a_key_that_is_missing_at_a_replica_is_missing_at_its_master_too(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    """A reply without anything in it is confirmed, and reads go on at the replicas."""
    with keyfence.client("app", single_connection_client=True) as client:
        missing = [f"app:missing{number}" for number in range(9)]
        eventually(lambda: used(keyfence) == 3, "the replicas are used")
        before = sum(at_replicas(cluster, "get"))
        for _ in range(3):
            assert [client.get(key) for key in missing] == [None] * 9
            assert client.mget(missing) == [None] * 9
            assert client.exists(*missing) == 0
            assert client.hgetall(missing[0]) == {}
            assert client.ttl(missing[1]) == -2
            assert client.type(missing[2]) == b"none"
            assert client.hmget(missing[3], "a", "b") == [None, None]
        assert sum(at_replicas(cluster, "get")) == before + 27


def test_values_never_fall_while_replicas_lag(keyfence: Keyfence, cluster: Cluster) -> None:
    with Readers(keyfence) as readers:
        readers.go_on()
        for server in cluster.replicas:
            with held_back(server):
                readers.go_on()
        until_used(keyfence, 3)
        readers.go_on()
    assert readers.losses == [0, 0]


def test_values_never_fall_while_a_hash_slot_moves(keyfence: Keyfence, cluster: Cluster) -> None:
    before = sum(at_replicas(cluster, "get"))
    with Readers(keyfence) as readers:
        for _ in range(2):
            readers.go_on()
            moved_slot(cluster, MOVING[0], readers.go_on)
        readers.go_on()
    assert readers.losses == [0, 0]
    assert sum(at_replicas(cluster, "get")) > before


def test_operators_see_what_is_read_where(keyfence: Keyfence, cluster: Cluster) -> None:
    with keyfence.client("app", single_connection_client=True) as client:
        for key in KEYS:
            client.set(key, "1")
            client.get(key)
    for one in cluster.replicas:
        assert metric(keyfence, "keyfence_upstream_replica_up", replica=f"127.0.0.1:{one.port}") == 1
    for role in ("master", "replica"):
        eventually(
            lambda role=role: metric(keyfence, "keyfence_upstream_reads_total", role=role) > 0,
            f"the reads at a {role} are counted",
        )


def test_values_never_fall_while_a_replica_takes_over(keyfence: Keyfence, cluster: Cluster) -> None:
    replica, former = cluster.replicas[1], cluster.masters[1]
    with Readers(keyfence) as readers:
        readers.go_on()
        with replica.client() as one:
            one.execute_command("CLUSTER", "FAILOVER")
        eventually(lambda: is_master(replica), "the replica takes over")
        readers.go_on()
        until_used(keyfence, 3)
        before = calls(former, "get")
        readers.go_on()
        eventually(lambda: calls(former, "get") > before, "the former master is read from")
    assert [one for one in readers.losses if one > 1] == []


def test_no_client_notices_a_replica_that_is_killed(keyfence: Keyfence, cluster: Cluster) -> None:
    with Readers(keyfence) as readers:
        readers.go_on()
        cluster.replicas[2].kill()
        readers.go_on()
        until_used(keyfence, 2)
        readers.go_on()
    assert readers.losses == [0, 0]


def test_values_never_fall_when_a_master_is_killed_that_its_replica_has_caught_up_with(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    """What the replica lacks then is lost for readers too, as it is in Redis."""
    master, replica = cluster.masters[0], cluster.replicas[0]
    with Readers(keyfence) as readers:
        readers.go_on()
        with master.client() as one:
            one.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
            assert one.wait(1, 5_000) == 1
        master.kill()
        eventually(lambda: is_master(replica), "the replica takes over")
        readers.go_on()


def test_a_reload_ends_the_reads_from_replicas(keyfence: Keyfence, cluster: Cluster, folder: Path) -> None:
    config = folder / "keyfence.yaml"
    config.write_text(config.read_text().replace("at: replicas", "at: primary"))
    keyfence.process.send_signal(signal.SIGHUP)
    eventually(lambda: replicas_of(keyfence) == [], "no replica is asked")
    running = [*cluster.masters[1:], *cluster.replicas[:2]]
    before = sum(calls(one, "get") for one in running if not is_master(one))
    with keyfence.client("app") as client:
        for key in KEYS:
            client.get(key)
    assert sum(calls(one, "get") for one in running if not is_master(one)) == before
