"""keyfence with workers before a real Redis Cluster: one follows the cluster, and all serve each node."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.clients.running import ask, eventually, metric
from tests.cluster import NO_CLUSTER, SLOTS, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import (
    KEYS,
    Load,
    announced,
    nodes,
    pids,
    port_of,
    running_keyfence,
    stir,
    strangers,
)
from tests.servers import PATIENCE_SECONDS, Keyfence, free_port, running_redis

WORKERS = 2
CONNECTIONS = 12  # so that each worker has some of them

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=1) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    folder = tmp_path_factory.mktemp("workers")
    with running_keyfence(folder, cluster, f"workers: {WORKERS}", "drain: 1s") as one:
        yield one


@pytest.fixture
def client(keyfence: Keyfence) -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster(host="127.0.0.1", port=port_of(keyfence)) as one:
        yield one


def asked(port: int, request: bytes) -> bytes:
    """Returns the beginning of the reply on a new connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(request)
        return sock.recv(65536)


def slots_told(keyfence: Keyfence) -> set[bytes]:
    """Returns the different answers to CLUSTER SLOTS of many connections."""
    return {asked(port_of(keyfence), b"CLUSTER SLOTS\r\n") for _ in range(CONNECTIONS)}


def all_ports_answer(keyfence: Keyfence) -> None:
    for address in announced(keyfence):
        port = int(address.rpartition(":")[2])
        assert {asked(port, b"PING\r\n") for _ in range(CONNECTIONS)} == {b"+PONG\r\n"}


def test_all_workers_announce_the_same_addresses_and_listen_there(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    assert len(pids(keyfence)) == WORKERS
    assert len(announced(keyfence)) == len(cluster.masters) + len(cluster.replicas)
    (told,) = slots_told(keyfence)
    for server in cluster.masters:
        assert str(server.port).encode() not in told
    all_ports_answer(keyfence)


def test_clients_use_many_hash_slots(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    for key in KEYS:
        client.set(key, key)
    pipe = client.pipeline()
    for key in KEYS:
        pipe.get(key)
    assert pipe.execute() == [key.encode() for key in KEYS]
    assert strangers(keyfence, cluster) == []


def test_the_parent_reports_the_cluster_once(keyfence: Keyfence) -> None:
    eventually(lambda: metric(keyfence, "keyfence_upstream_slots_covered") == SLOTS, "it is reported")
    assert metric(keyfence, "keyfence_upstream_topology_refreshes_total", reason="start") == 1
    assert all(one["up"] for one in nodes(keyfence))


def test_a_rolling_restart_keeps_the_ports_open(keyfence: Keyfence, client: redis.RedisCluster) -> None:
    before, ports = pids(keyfence), announced(keyfence)
    with Load(client) as load:
        load.goes_on()
        code, text = ask(keyfence, "/-/restart", {})
        assert code == 200, text
        load.goes_on()
    assert not before & pids(keyfence)
    assert announced(keyfence) == ports
    assert len(slots_told(keyfence)) == 1
    all_ports_answer(keyfence)


def test_a_worker_that_is_killed_is_replaced_by_one_that_knows_the_nodes(
    keyfence: Keyfence, client: redis.RedisCluster
) -> None:
    victim = min(pids(keyfence))
    with Load(client) as load:
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(pids(keyfence) - {victim}) == WORKERS, "another worker serves")
        load.goes_on()
    assert len(slots_told(keyfence)) == 1
    all_ports_answer(keyfence)


def test_a_replica_takes_over_and_all_workers_hear_of_it(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    (replica,) = cluster.replicas
    address = f"127.0.0.1:{replica.port}"
    (before,) = slots_told(keyfence)
    with Load(client) as load:
        with replica.client() as one:
            one.execute_command("CLUSTER", "FAILOVER")
        eventually(
            lambda: any(one["node"] == address and one["role"] == "master" for one in nodes(keyfence)),
            "keyfence notices the failover",
        )
        load.goes_on()
    eventually(lambda: len(told := slots_told(keyfence)) == 1 and before not in told, "all workers know it")
    assert strangers(keyfence, cluster) == []


def test_a_node_that_joins_is_served_by_all_workers(keyfence: Keyfence, cluster: Cluster) -> None:
    bus = free_port()
    binary = cluster_binary()
    assert binary is not None
    arguments = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
    with running_redis(binary, tcp=True, arguments=arguments) as new, new.client() as one:
        with cluster.masters[0].client() as first:
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", new.port, bus)
        new_id = one.execute_command("CLUSTER", "MYID").decode()
        stir(cluster)

        def port() -> int:
            rows = [row for row in nodes(keyfence) if row["id"] == new_id and row["announced"]]
            return int(rows[0]["announced"].rpartition(":")[2]) if rows else 0

        eventually(port, "the node has an address")
        # Each worker listens there: two that share a port get about half of the connections each.
        for _ in range(CONNECTIONS):
            assert new_id.encode() in asked(port(), b"CLUSTER MYID\r\n")
        assert ask(keyfence, "/-/restart", {})[0] == 200
        assert new_id.encode() in asked(port(), b"CLUSTER MYID\r\n")


def test_the_nodes_ports_refuse_connections_while_keyfence_drains(tmp_path: Path, cluster: Cluster) -> None:
    with (
        running_keyfence(tmp_path, cluster, f"workers: {WORKERS}", "drain: 10m") as keyfence,
        keyfence.connect() as stays,
    ):
        ports = [int(address.rpartition(":")[2]) for address in announced(keyfence)]
        stays.sendall(b"MULTI\r\n")
        assert stays.recv(100) == b"+OK\r\n"
        keyfence.process.send_signal(signal.SIGTERM)
        for port in ports:
            eventually(partial(refuses, port), "connections are refused")
        stays.sendall(b"EXEC\r\n")
        assert stays.recv(100) == b"*0\r\n"


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    return False
