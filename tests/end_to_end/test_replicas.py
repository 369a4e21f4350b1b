"""A running keyfence sends the reads of a service to replicas, and all else to the primary."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.clients.running import ask, eventually
from tests.end_to_end.test_sentinel import client_of
from tests.sentinel import POLICY
from tests.servers import Keyfence, RedisServer, running_redis

CONFIG = """policy: policy.yaml
upstream:
  url: redis://127.0.0.1:{primary}
  replicas: [{replicas}]
reads: {{app: {{at: replicas, after_write: {after_write}}}}}
listeners: [{{listen: "127.0.0.1:0", service: app}}]
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
def running_nodes(folder: Path, after_write: str, told: str = "") -> Iterator[Nodes]:
    """Starts them, and waits until the replicas are used."""
    with contextlib.ExitStack() as servers:
        at_once = ["--repl-diskless-sync-delay", "0"]
        primary = servers.enter_context(running_redis(tcp=True, arguments=at_once))
        of = ["--replicaof", "127.0.0.1", str(primary.port), *at_once]
        replicas = [servers.enter_context(running_redis(tcp=True, arguments=of)) for _ in range(2)]
        (folder / "policy.yaml").write_text(POLICY)
        named = ", ".join(f'"127.0.0.1:{one.port}"' for one in replicas)
        (folder / "keyfence.yaml").write_text(
            CONFIG.format(primary=primary.port, replicas=named, after_write=after_write)
        )
        keyfence = servers.enter_context(Keyfence("--config", folder / "keyfence.yaml", expect_stderr=told))
        nodes = Nodes(primary, replicas, keyfence)
        eventually(lambda: all(nodes.used()), "the replicas are used")
        yield nodes


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
