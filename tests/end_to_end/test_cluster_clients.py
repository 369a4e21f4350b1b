"""Cluster clients of three libraries at work while a hash slot moves and a replica takes over: through
keyfence they see what a control sees that speaks to the nodes itself."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis

from tests.clients.running import eventually
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import Load, moved_slot, nodes, port_of, running_keyfence
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence

NODE = PROJECT / "tests" / "node"
LIBRARIES = ("ioredis", "redis", "redis3")
SHARED = "app:{moving}"  # the keys of all arms that begin with this are in the hash slot that moves

pytestmark = [
    pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER),
    pytest.mark.skipif(not shutil.which("node"), reason="no node here"),
    pytest.mark.skipif(not (NODE / "node_modules").is_dir(), reason="`npm ci` was not run in tests/node"),
]


class Seen(NamedTuple):
    """What an application sees."""

    rounds: int
    wrong: list[str]
    errors: set[str]


def keys_of(arm: str) -> list[str]:
    """Returns an arm's own keys: some in the hash slot that moves, the others anywhere."""
    moving = [f"{SHARED}:{arm}:{number}" for number in range(3)]
    return moving + [f"app:{arm}:{number}" for number in range(9)]


class NodeArm:
    """A client of Node at work."""

    def __init__(self, library: str, port: int, arm: str) -> None:
        self._process = subprocess.Popen(
            ["node", "cluster_load.js", library, f"127.0.0.1:{port}", *keys_of(arm)],
            cwd=NODE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n"

    def end(self) -> Seen:
        out, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        found = json.loads(out)
        return Seen(found["rounds"], found["wrong"], set(found["errors"]))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class PythonArm:
    """redis-py at work."""

    def __init__(self, protocol: int, port: int, arm: str) -> None:
        self._client = redis.RedisCluster(host="127.0.0.1", port=port, protocol=protocol)
        self._load = Load(self._client, keys_of(arm)).start()
        self._load.goes_on()

    def end(self) -> Seen:
        self._load.goes_on()
        self._load.end()
        return Seen(self._load.rounds, self._load.wrong, self._load.errors)

    def close(self) -> None:
        self._load.end()
        self._client.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=1) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    with running_keyfence(tmp_path_factory.mktemp("clients"), cluster, "workers: 2") as one:
        yield one


def test_clients_see_what_a_control_sees_during_a_move_and_a_failover(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    assert cluster.masters[0].port is not None
    ports = {"keyfence": port_of(keyfence), "control": cluster.masters[0].port}
    arms: dict[tuple[str, str], NodeArm | PythonArm] = {}
    with contextlib.ExitStack() as stack:
        for where, port in ports.items():
            for library in LIBRARIES:
                arms[where, library] = NodeArm(library, port, f"{where}-{library}")
                stack.callback(arms[where, library].close)
            for protocol in (2, 3):
                arms[where, f"redis-py {protocol}"] = PythonArm(protocol, port, f"{where}-py{protocol}")
                stack.callback(arms[where, f"redis-py {protocol}"].close)
        moved_slot(cluster, SHARED)
        (replica,) = cluster.replicas
        with replica.client() as one:
            one.execute_command("CLUSTER", "FAILOVER")
        address = f"127.0.0.1:{replica.port}"
        eventually(
            lambda: any(one["node"] == address and one["role"] == "master" for one in nodes(keyfence)),
            "keyfence notices the failover",
        )
        seen = {arm: one.end() for arm, one in arms.items()}
    for (where, client), one in seen.items():
        assert one.wrong == [], (where, client)
        assert one.rounds > 1, (where, client)
    for client in (*LIBRARIES, "redis-py 2", "redis-py 3"):
        assert seen["keyfence", client].errors <= seen["control", client].errors, client
