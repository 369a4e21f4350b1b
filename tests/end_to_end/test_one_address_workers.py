"""keyfence with workers before a real Redis Cluster behind one address: one process follows the cluster, and
all serve all of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import redis

from tests.clients.running import ask, eventually, metric
from tests.cluster import NO_CLUSTER, SLOTS, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import keyfence_with, moved_slot, nodes, pids
from tests.end_to_end.test_one_address import CONFIG, KEYS, POLICY, TAGGED, Load, directly
from tests.servers import Keyfence

WORKERS = 2
CONNECTIONS = 12  # so that each worker has some of them

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=1) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    config = CONFIG.format(seed=cluster.masters[0].port) + f"workers: {WORKERS}\ndrain: 1s\n"
    with keyfence_with(tmp_path_factory.mktemp("workers"), POLICY, config) as one:
        yield one


@pytest.fixture
def clients(keyfence: Keyfence) -> Iterator[list[redis.Redis]]:
    """Many connections."""
    every = [keyfence.client() for _ in range(CONNECTIONS)]
    yield every
    for one in every:
        one.close()


def test_each_worker_serves_the_keys_of_all_nodes(keyfence: Keyfence, clients: list[redis.Redis]) -> None:
    assert len(pids(keyfence)) == WORKERS
    for number, one in enumerate(clients):
        for key in KEYS:
            one.set(f"{key}:{number}", key)
    for number, one in enumerate(reversed(clients)):
        assert [one.get(f"{key}:{number}") for key in KEYS] == [key.encode() for key in KEYS]


def test_one_process_reports_the_cluster(keyfence: Keyfence, cluster: Cluster) -> None:
    eventually(lambda: metric(keyfence, "keyfence_upstream_slots_covered") == SLOTS, "it is reported")
    assert metric(keyfence, "keyfence_upstream_topology_refreshes_total", reason="start") == 1
    assert len(nodes(keyfence)) == len(cluster.masters) + len(cluster.replicas)
    assert all(one["up"] for one in nodes(keyfence))


def test_a_scan_goes_on_at_any_worker(clients: list[redis.Redis]) -> None:
    first = clients[0]
    for key in KEYS:
        first.set(f"{key}:scanned", 1)
    found, cursor, turn = set(), 0, 0
    while True:
        cursor, keys = clients[turn % CONNECTIONS].scan(cursor, match="*:scanned", count=7)
        found.update(keys)
        turn += 1
        if not cursor:
            break
    assert found == {f"{key}:scanned".encode() for key in KEYS}


def test_a_hash_slot_that_has_moved_is_known_to_all_workers(
    keyfence: Keyfence, cluster: Cluster, clients: list[redis.Redis]
) -> None:
    with Load(keyfence, "moves") as load:
        load.goes_on()
        moved_slot(cluster, TAGGED[0])
        load.goes_on()
    for one in clients:
        one.set(TAGGED[0], "moved")
    eventually(lambda: not redirected(keyfence, clients), "no worker asks the former node")


def redirected(keyfence: Keyfence, clients: list[redis.Redis]) -> bool:
    """Whether any of these clients' commands is sent to a node that has not its key."""

    def count() -> float:
        return metric(keyfence, "keyfence_upstream_node_redirects_total", error="MOVED")

    before = count()
    for one in clients:
        one.get(TAGGED[0])
    return count() != before


def test_a_rolling_restart_under_load(keyfence: Keyfence) -> None:
    before = pids(keyfence)
    with Load(keyfence, "restart") as load:
        load.goes_on()
        code, text = ask(keyfence, "/-/restart", {})
        assert code == 200, text
        load.goes_on()
    assert not before & pids(keyfence)


def test_a_worker_that_is_killed_is_replaced_by_one_that_knows_the_nodes(keyfence: Keyfence) -> None:
    victim = min(pids(keyfence))
    with Load(keyfence, "killed") as load:
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(pids(keyfence) - {victim}) == WORKERS, "another worker serves")
        load.goes_on()
    with keyfence.client() as one:
        assert [one.set(key, 1) for key in KEYS] == [True] * len(KEYS)


def test_a_replica_takes_over_under_load(keyfence: Keyfence, cluster: Cluster) -> None:
    (replica,) = cluster.replicas
    address = f"127.0.0.1:{replica.port}"
    with Load(keyfence, "failover") as load, directly(replica) as one:
        load.goes_on()
        one.execute_command("CLUSTER", "FAILOVER")
        eventually(
            lambda: any(node["node"] == address and node["role"] == "master" for node in nodes(keyfence)),
            "keyfence notices the failover",
        )
        load.goes_on()
