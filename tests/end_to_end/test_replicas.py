"""A running keyfence sends the reads of a service to replicas, and all else to the primary."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.adversity.fault_proxy import Direction, FaultProxy
from tests.clients.running import ask, eventually, metric
from tests.end_to_end.test_sentinel import client_of, until_it_writes
from tests.sentinel import POLICY, following, running_sentinels
from tests.servers import Keyfence, RedisServer, running_redis

CONFIG = """policy: policy.yaml
upstream:
  url: redis://127.0.0.1:{primary}
  replicas: [{replicas}]
reads: {{app: {{at: replicas, after_write: {after_write}}}}}
listeners: [{{listen: "127.0.0.1:0", service: app}}]
modes: [{{mode: enforce}}]
admin: "127.0.0.1:0"
findings: none
"""


class Nodes(NamedTuple):
    """A primary, its replicas, and a keyfence that reads from them."""

    primary: RedisServer
    replicas: list[RedisServer]
    keyfence: Keyfence

    def used(self) -> list[bool]:
        """Whether each replica is used."""
        found = json.loads(ask(self.keyfence, "/status")[1])["upstream"]["replicas"]
        return [not one["reason"] for one in found]


def calls(node: RedisServer, name: str) -> int:
    """How often a node has run a command."""
    with node.client() as client:
        stats = client.info("commandstats").get(f"cmdstat_{name}", {})
    return int(stats.get("calls", 0))


def reads_at_a_replica(client: redis.Redis, nodes: Nodes) -> bool:
    """Whether the client's next read goes to a replica."""
    before = sum(calls(one, "get") for one in nodes.replicas)
    client.get("app:k")
    return sum(calls(one, "get") for one in nodes.replicas) == before + 1


@contextlib.contextmanager
def keyfence_before(
    folder: Path, primary: RedisServer, replicas: list[RedisServer], after_write: str
) -> Iterator[Nodes]:
    """Starts a keyfence, and waits until it uses the replicas."""
    (folder / "policy.yaml").write_text(POLICY)
    named = ", ".join(f'"127.0.0.1:{one.port}"' for one in replicas)
    config = CONFIG.format(primary=primary.port, replicas=named, after_write=after_write)
    (folder / "keyfence.yaml").write_text(config)
    with Keyfence("--config", folder / "keyfence.yaml") as keyfence:
        nodes = Nodes(primary, replicas, keyfence)
        eventually(lambda: all(nodes.used()), "the replicas are used")
        yield nodes


@contextlib.contextmanager
def running_nodes(folder: Path, after_write: str) -> Iterator[Nodes]:
    """Starts a primary, two replicas and a keyfence."""
    with contextlib.ExitStack() as servers:
        at_once = ["--repl-diskless-sync-delay", "0"]
        primary = servers.enter_context(running_redis(tcp=True, arguments=at_once))
        of = ["--replicaof", "127.0.0.1", str(primary.port), *at_once]
        replicas = [servers.enter_context(running_redis(tcp=True, arguments=of)) for _ in range(2)]
        yield servers.enter_context(keyfence_before(folder, primary, replicas, after_write))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Nodes that a test leaves as it found them. Reads return to replicas soon after a write."""
    with running_nodes(tmp_path_factory.mktemp("replicas"), "20ms") as running:
        yield running


def test_reads_go_to_a_replica_and_writes_to_the_primary(nodes: Nodes) -> None:
    with client_of(nodes.keyfence) as client:
        client.set("app:k", "1")
        eventually(lambda: reads_at_a_replica(client, nodes), "reads go to a replica")
        before = [calls(one, "get") for one in nodes.replicas], calls(nodes.primary, "get")
        for _ in range(10):
            assert client.get("app:k") == "1"
        now = [calls(one, "get") for one in nodes.replicas]
        assert sorted(b - a for a, b in zip(before[0], now, strict=True)) == [0, 10], "it keeps its replica"
        assert calls(nodes.primary, "get") == before[1]
        assert calls(nodes.primary, "set") >= 1


def test_a_client_reads_what_it_has_written(nodes: Nodes) -> None:
    with client_of(nodes.keyfence) as client:
        read_at_replicas = sum(calls(one, "get") for one in nodes.replicas)
        for number in range(60):
            client.set("app:own", number)
            for pause in (0.0, 0.02, 0.02):
                time.sleep(pause)
                assert client.get("app:own") == str(number)
        assert sum(calls(one, "get") for one in nodes.replicas) > read_at_replicas


def test_a_value_read_after_the_clients_own_write_is_never_older_although_replicas_lag(
    tmp_path: Path,
) -> None:
    """Replication stands still: both replicas say that they are connected, and have old values."""
    with contextlib.ExitStack() as servers:
        at_once = ["--repl-diskless-sync-delay", "0"]
        primary = servers.enter_context(running_redis(tcp=True, arguments=at_once))
        between = servers.enter_context(FaultProxy(primary.port))
        of = ["--replicaof", "127.0.0.1", str(between.port), *at_once]
        replica = servers.enter_context(running_redis(tcp=True, arguments=of))
        nodes = servers.enter_context(keyfence_before(tmp_path, primary, [replica], "10ms"))
        client = servers.enter_context(client_of(nodes.keyfence))
        client.set("app:k", "0")
        eventually(lambda: reads_at_a_replica(client, nodes), "reads go to the replica")
        with between.doing(to_client=Direction(hang=True)):
            client.set("app:k", "1")
            for _ in range(20):
                time.sleep(0.02)
                assert client.get("app:k") == "1"
            with replica.client() as direct:
                assert direct.get("app:k") == b"0"
                assert direct.info("replication")["master_link_status"] == "up"
        between.cut()
        eventually(lambda: reads_at_a_replica(client, nodes), "it has caught up")


def test_pipelines_of_reads_and_writes_get_what_redis_alone_would_answer(nodes: Nodes) -> None:
    drawn = random.Random(7)
    with (
        running_redis(tcp=True) as alone,
        alone.client(decode_responses=True) as direct,
        client_of(nodes.keyfence) as client,
    ):
        client.delete(*[f"app:f{number}" for number in range(4)])
        for number in range(300):
            through, straight = client.pipeline(transaction=False), direct.pipeline(transaction=False)
            for _ in range(drawn.randint(1, 12)):
                key, act = f"app:f{drawn.randrange(4)}", drawn.randrange(10)
                for pipeline in (through, straight):
                    _add(pipeline, act, key, number)
            got, expected = (one.execute(raise_on_error=False) for one in (through, straight))
            assert [*map(str, got)] == [*map(str, expected)]
            if number % 10 == 0:
                time.sleep(0.05)  # so that it returns to its replica


def _add(pipeline: redis.client.Pipeline, act: int, key: str, number: int) -> None:
    if act == 0:
        pipeline.set(key, "x" * (number % 50))
    elif act == 1:
        pipeline.append(key, "y")
    elif act == 2:
        pipeline.incr(key)  # mostly an error
    elif act == 3:
        pipeline.mget(key, "app:f0")
    elif act == 4:
        pipeline.strlen(key)
    elif act == 5:
        pipeline.execute_command("LLEN", key)  # an error if the key is there
    else:
        pipeline.get(key)


def test_a_refusal_is_the_same_for_a_read_that_would_go_to_a_replica(nodes: Nodes) -> None:
    asked = [calls(one, "get") for one in nodes.replicas]
    with client_of(nodes.keyfence) as client, pytest.raises(redis.ResponseError, match=r"key\.unregistered"):
        client.get("other:k")
    assert [calls(one, "get") for one in nodes.replicas] == asked


def test_operators_see_what_is_read_where(nodes: Nodes) -> None:
    with client_of(nodes.keyfence) as client:
        eventually(lambda: reads_at_a_replica(client, nodes), "reads go to a replica")
    for one in nodes.replicas:
        replica = f"127.0.0.1:{one.port}"
        assert metric(nodes.keyfence, "keyfence_upstream_replica_up", replica=replica) == 1
    names = [f"127.0.0.1:{one.port}" for one in nodes.replicas]

    def sent() -> float:
        name = "keyfence_upstream_replica_commands_total"
        return sum(metric(nodes.keyfence, name, replica=replica) for replica in names)

    eventually(lambda: sent() > 0, "the reads are counted")


def test_clients_outlive_a_replica_that_is_killed(tmp_path: Path) -> None:
    """Under load, only connections that await a reply of it are lost. Values never fall."""
    with running_nodes(tmp_path, "10ms") as nodes:
        wrong: list[str] = []
        losses: list[int] = []
        ends = threading.Event()

        def work(number: int) -> None:
            key, value, lost = f"app:w{number}", 0, 0
            with client_of(nodes.keyfence) as client:
                while not ends.is_set():
                    try:
                        if value % 20 == 0:
                            time.sleep(0.02)
                        value = int(client.incr(key))
                        for _ in range(5):
                            found = int(client.get(key) or 0)
                            if found != value:
                                wrong.append(f"{key}: {found} in place of {value}")
                    except redis.ConnectionError:
                        lost += 1
                        value = int(client.get(key) or 0)
            losses.append(lost)

        threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        nodes.replicas[0].kill()
        eventually(lambda: nodes.used() == [False, True], "the replica is not used")
        time.sleep(0.5)
        ends.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert max(losses) <= 1


def test_sentinels_know_the_replicas(tmp_path: Path) -> None:
    """With KEYFENCE_LONG=1 also after a failover, which Sentinels take half a minute to know all of."""
    more = "reads: {app: {at: replicas, after_write: 20ms}}"
    with (
        running_sentinels(tmp_path) as watched,
        following(tmp_path, watched, more, told="^", replicas=True) as keyfence,
        client_of(keyfence) as client,
    ):
        nodes = Nodes(watched.primary, watched.replicas, keyfence)
        client.set("app:k", "before")
        eventually(lambda: reads_at_a_replica(client, nodes), "reads go to the replica")
        if not os.environ.get("KEYFENCE_LONG"):
            return
        watched.fail_over()
        until_it_writes(client, "after")
        assert client.get("app:k") == "after"
        turned = Nodes(watched.replica, [watched.primary], keyfence)
        with client_of(keyfence) as later:

            def reads_at_the_former_primary() -> bool:
                assert later.get("app:k") == "after"
                return reads_at_a_replica(later, turned)

            eventually(reads_at_the_former_primary, "reads go to the former primary")
