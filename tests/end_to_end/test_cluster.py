"""keyfence before a real Redis Cluster, for clients that know clusters: they stay with keyfence, whatever
moves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.clients.running import ask, eventually
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.servers import PROJECT, Keyfence, free_port, running_redis

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
NODE_MODULES = PROJECT / "tests" / "node" / "node_modules"

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=1) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    folder = tmp_path_factory.mktemp("cluster")
    first = 20_000 + free_port() % 10_000
    (folder / "policy.yaml").write_text(POLICY)
    config = folder / "keyfence.yaml"
    one, other, *_ = cluster.masters
    config.write_text(CONFIG.format(seed=one.port, other=other.port, first=first, last=first + 99))
    # The notices of stderr are about nodes that join, fail and leave here.
    with Keyfence("--config", config, expect_stderr="(?s).*") as one_:
        yield one_


def port_of(keyfence: Keyfence) -> int:
    return keyfence.address()[1]


@pytest.fixture
def client(keyfence: Keyfence) -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster(host="127.0.0.1", port=port_of(keyfence)) as one:
        yield one


def nodes(keyfence: Keyfence) -> list[dict[str, Any]]:
    _, body = ask(keyfence, "/status")
    found: list[dict[str, Any]] = json.loads(body)["upstream"]["cluster"]["nodes"]
    return found


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
        own = ports_of_process(keyfence.process.pid)
        for row in rows:
            # Of nodes: replication, and what MIGRATE leaves open.
            is_node = bool({"S", "M"} & set(row["flags"])) or row["cmd"] == "restore-asking"
            if not is_node and row["addr"].startswith("127.") and row["addr"].rpartition(":")[2] not in own:
                found.append(str(row))
    return found


class Load:
    """Writes and reads all keys again and again, in a thread, until it ends."""

    def __init__(self, client: redis.RedisCluster) -> None:
        self.rounds = 0
        self.wrong: list[str] = []
        self._client = client
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
            for key in KEYS:
                value = f"{self.rounds}"
                try:
                    self._client.set(key, value)
                    got = self._client.get(key)
                except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError) as exc:
                    self.wrong += [] if isinstance(exc, redis.ConnectionError) else [f"{key}: {exc!r}"]
                    continue
                if got != value.encode():
                    self.wrong.append(f"{key}: {got!r} and not {value}")
            self.rounds += 1

    def goes_on(self) -> None:
        """Wait for two more rounds."""
        last = self.rounds + 2
        eventually(lambda: self.rounds >= last, "the load goes on")


def test_a_client_finds_all_nodes_at_addresses_of_keyfence(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    assert {f"{one.host}:{one.port}" for one in client.get_nodes()} == announced(keyfence)
    assert len(announced(keyfence)) == len(cluster.masters) + len(cluster.replicas)


def test_commands_pipelines_and_transactions_work_over_many_hash_slots(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    for key in KEYS:
        client.set(key, key)
    pipe = client.pipeline()
    for key in KEYS:
        pipe.get(key)
    assert pipe.execute() == [key.encode() for key in KEYS]
    assert strangers(keyfence, cluster) == []


def test_a_client_of_one_node_gets_redirects_that_name_keyfence(keyfence: Keyfence) -> None:
    seen = set()
    with keyfence.client() as one:
        for key in KEYS:
            try:
                one.get(key)
            except redis.exceptions.MovedError as exc:
                seen.add(f"{exc.host}:{exc.port}")
    assert seen
    assert seen <= announced(keyfence)


def test_redirects_inside_transactions_name_keyfence(keyfence: Keyfence) -> None:
    """EXEC's own reply has none, for a redirect aborts the transaction; it comes in place of +QUEUED."""
    with keyfence.connect() as sock:
        sock.sendall(b"".join(f"MULTI\r\nGET {key}\r\nDISCARD\r\n".encode() for key in KEYS))
        lines: list[bytes] = []
        stream = sock.makefile("rb")
        while len(lines) < 3 * len(KEYS):
            lines.append(stream.readline())
    moved = {line.split()[2].decode() for line in lines if line.startswith(b"-MOVED")}
    assert moved
    assert moved <= announced(keyfence)


def test_a_refused_command_is_refused_on_every_node(client: redis.RedisCluster) -> None:
    for node in client.get_nodes():
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"key\.unregistered"):
            client.execute_command("SET", "other:1", "x", target_nodes=node)


def test_redis_cli_follows_redirects_to_keyfence(keyfence: Keyfence, cluster: Cluster) -> None:
    cli = shutil.which("redis-cli")
    if cli is None:
        pytest.skip("redis-cli is not installed")
    words = "".join(f"SET {key} cli\nGET {key}\n" for key in KEYS[:12])
    done = subprocess.run(
        [cli, "-c", "-p", str(port_of(keyfence))], input=words, capture_output=True, text=True, check=True
    )
    assert done.stdout.split().count("cli") == 12, done.stdout
    assert strangers(keyfence, cluster) == []


def test_ioredis_finds_all_nodes(keyfence: Keyfence, cluster: Cluster) -> None:
    if shutil.which("node") is None or not NODE_MODULES.exists():
        pytest.skip("node or its modules are not installed")
    keys = [f"app:js:{number}" for number in range(30)]
    subprocess.run(
        ["node", "cluster.js", f"127.0.0.1:{port_of(keyfence)}", *keys], cwd=NODE_MODULES.parent, check=True
    )
    with cluster.client() as direct:
        assert [direct.get(key) for key in keys] == [b"x"] * len(keys)


def test_a_hash_slot_moves_under_load(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    slot = client.keyslot(KEYS[0])
    port = cluster.port_of(slot)
    source = next(one for one in cluster.masters if one.port == port)
    target = next(one for one in cluster.masters if one.port != port)
    with Load(client) as load, source.client() as old, target.client() as new:
        old_id, new_id = old.execute_command("CLUSTER", "MYID"), new.execute_command("CLUSTER", "MYID")
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        load.goes_on()
        while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            load.goes_on()
        for one in (new, old):
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)
        load.goes_on()
    assert strangers(keyfence, cluster) == []


def test_a_replica_takes_over_under_load(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    (replica,) = cluster.replicas
    address = f"127.0.0.1:{replica.port}"
    with Load(client) as load:
        with replica.client() as one:
            one.execute_command("CLUSTER", "FAILOVER")
        eventually(
            lambda: any(one["node"] == address and one["role"] == "master" for one in nodes(keyfence)),
            "keyfence notices the failover",
        )
        load.goes_on()
    assert strangers(keyfence, cluster) == []


def test_a_node_that_joins_gets_an_address_and_one_that_leaves_is_not_named_any_more(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    bus = free_port()
    binary = cluster_binary()
    assert binary is not None
    arguments = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
    with running_redis(binary, tcp=True, arguments=arguments) as new, new.client() as one:
        with cluster.masters[0].client() as first:
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", new.port, bus)
        new_id = one.execute_command("CLUSTER", "MYID").decode()
        stir(cluster)
        eventually(
            lambda: any(row["id"] == new_id and row["announced"] and row["up"] for row in nodes(keyfence)),
            "the node has an address",
        )
        for server in (*cluster.masters, *cluster.replicas):
            with server.client() as other:
                eventually(partial(knows, other, new_id), "the node is known")
                other.execute_command("CLUSTER", "FORGET", new_id)
        one.execute_command("CLUSTER", "RESET", "HARD")
        stir(cluster)
        eventually(lambda: all(row["id"] != new_id for row in nodes(keyfence)), "the node is not named")
