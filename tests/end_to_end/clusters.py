"""What the tests of keyfence before a Redis Cluster share: a configuration, questions, and a load.

Rule: a load writes rising values to each key and reads them back, so it notices what is lost and what is old.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from tests.clients.running import ask, eventually
from tests.cluster import Cluster
from tests.servers import Keyfence, RedisServer, first_port

POLICY = """policy: p
services: [app]
scopes: {all: {prefix: "app:", writers: [app], unregistered: allow}}
"""
CONFIG = """policy: policy.yaml
upstream:
  cluster: ["127.0.0.1:{seed}", "127.0.0.1:{other}"]
  announce: {{host: 127.0.0.1, ports: {first}-{last}}}
listeners: [{{listen: "127.0.0.1:0", service: app}}]
admin: "127.0.0.1:0"
findings: none
modes: [{{mode: enforce}}]
"""
KEYS = [f"app:{number}" for number in range(60)]


@contextlib.contextmanager
def running_keyfence(folder: Path, cluster: Cluster, *more: str) -> Iterator[Keyfence]:
    """Starts keyfence before a cluster, with `more` lines in its configuration."""
    first = first_port()
    one, other, *_ = cluster.masters
    text = CONFIG.format(seed=one.port, other=other.port, first=first, last=first + 99)
    with keyfence_with(folder, POLICY, text + "".join(f"{line}\n" for line in more)) as started:
        yield started


@contextlib.contextmanager
def keyfence_with(folder: Path, policy: str, config: str) -> Iterator[Keyfence]:
    """Starts keyfence before a cluster, with these files."""
    (folder / "policy.yaml").write_text(policy)
    path = folder / "keyfence.yaml"
    path.write_text(config)
    # The notices of stderr are about nodes and workers that join, fail and leave, and about reloads.
    with Keyfence("--config", path, expect_stderr="(?s).*") as started:
        yield started


def port_of(keyfence: Keyfence) -> int:
    return keyfence.address()[1]


def status_of(keyfence: Keyfence) -> dict[str, Any]:
    """Returns what /status says of the cluster."""
    found: dict[str, Any] = json.loads(ask(keyfence, "/status")[1])["upstream"]["cluster"]
    return found


def nodes(keyfence: Keyfence) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = status_of(keyfence)["nodes"]
    return found


def pids(keyfence: Keyfence) -> set[int]:
    """Returns the processes that serve clients."""
    return {one["pid"] for one in json.loads(ask(keyfence, "/workers")[1]) if one["state"] == "serving"}


def announced(keyfence: Keyfence) -> set[str]:
    return {one["announced"] for one in nodes(keyfence)}


def ports_of_process(pid: int) -> set[str]:
    """Returns the local TCP ports of a process' sockets."""
    links = (os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink())
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {str(int(row[1].rpartition(":")[2], 16)) for row in rows if row[9] in inodes}


def stir(cluster: Cluster) -> None:
    """Has keyfence ask for the topology before the time: connections end."""
    with cluster.masters[0].client() as one:
        one.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def knows(node: redis.Redis, other: str) -> bool:
    return other in str(node.execute_command("CLUSTER", "NODES"))


def strangers(keyfence: Keyfence, cluster: Cluster) -> list[str]:
    """Returns the clients of the nodes that are neither keyfence nor nodes."""
    found = []
    for server in (*cluster.masters, *cluster.replicas):
        with server.client() as watcher:  # by the unix socket
            rows = watcher.client_list()
        own = {port for pid in {keyfence.process.pid, *pids(keyfence)} for port in ports_of_process(pid)}
        for row in rows:
            # Of nodes: replication, and what MIGRATE leaves open.
            is_node = bool({"S", "M"} & set(row["flags"])) or row["cmd"] == "restore-asking"
            if not is_node and row["addr"].startswith("127.") and row["addr"].rpartition(":")[2] not in own:
                found.append(str(row))
    return found


def moved_slot(
    cluster: Cluster, key: str, step: Callable[[], None] = lambda: None, at_once: int = 100
) -> RedisServer:
    """Moves the hash slot of a key to another master, with what it holds, so many keys at once. `step` is
    called while it is under way. Returns that master."""
    slot = key_slot(key.encode())
    port = cluster.port_of(slot)
    source = next(one for one in (*cluster.masters, *cluster.replicas) if one.port == port)
    target = next(one for one in cluster.masters if one.port != port)
    with source.client() as old, target.client() as new:
        old_id, new_id = old.execute_command("CLUSTER", "MYID"), new.execute_command("CLUSTER", "MYID")
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        step()
        while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, at_once):
            old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            step()
        for one in (new, old):
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)
        step()
    return target


class Load:
    """Writes rising values to keys and reads them back again and again, in a thread, until it ends."""

    def __init__(self, client: redis.RedisCluster, keys: Sequence[str] = KEYS) -> None:
        self.rounds = 0
        self.wrong: list[str] = []
        self._client = client
        self._keys = keys
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        assert self.wrong == []

    def _work(self) -> None:
        while not self._ends.is_set():
            for key in self._keys:
                value = f"{self.rounds}"
                try:
                    self._client.set(key, value)
                    got = self._client.get(key)
                except redis.ConnectionError:
                    continue  # it may not have run
                except (redis.TimeoutError, redis.ResponseError) as exc:
                    self.wrong.append(f"{key}: {exc!r}")
                    continue
                if got != value.encode():
                    self.wrong.append(f"{key}: {got!r} and not {value}")
            self.rounds += 1

    def goes_on(self) -> None:
        """Wait for two more rounds."""
        last = self.rounds + 2
        eventually(lambda: self.rounds >= last, "the load goes on")
