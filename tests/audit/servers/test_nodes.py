"""What is noticed of a cluster whose hash slots move while it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.audit.checkpoint import Checkpoint, CheckpointError
from keyfence.audit.scan import Options, in_order, work_of
from keyfence.audit.servers.links import Endpoint, LinkError
from keyfence.audit.servers.nodes import Topology, inspect
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.upstream.address import parse_upstream
from tests.audit.shop import endpoint, judge
from tests.clients.running import eventually
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, half_moved, running_cluster
from tests.end_to_end.clusters import moved_slot
from tests.servers import RedisServer, free_port

KEY = next(f"{number}" for number in range(100) if hash_slot(b"%d" % number) in range(6000, 10000))


def of(cluster: Cluster) -> Topology:
    return Topology(Endpoint(parse_upstream(cluster.url)))


def test_a_hash_slot_that_has_moved_is_counted(cluster: Cluster) -> None:
    before = of(cluster)
    assert before.moved_slots() == 0
    moved_slot(cluster, KEY)
    assert before.moved_slots() == 1
    moved_slot(cluster, KEY)
    assert before.moved_slots() == 0


def test_a_hash_slot_that_is_on_its_way_is_counted(cluster: Cluster) -> None:
    before = of(cluster)
    with half_moved(cluster, KEY):
        assert before.moved_slots() == 1
    assert before.moved_slots() == 0


@pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)
def test_a_failover_moves_no_hash_slot() -> None:
    with running_cluster(replicas=1) as cluster:  # the others' tests need the masters that they know
        before = of(cluster)
        heir = cluster.replicas[0]
        with heir.client() as client:
            client.execute_command("CLUSTER", "FAILOVER")
        eventually(lambda: cluster.port_of(0) == heir.port, "the replica takes over")
        assert before.moved_slots() == 0


def test_a_replica_that_does_not_follow_its_master_is_not_read(
    start_redis: Callable[..., RedisServer],
) -> None:
    master, other = start_redis(tcp=True), start_redis(tcp=True)
    with master.client() as primary, other.client() as client:
        client.set("old", "x")
        client.replicaof("127.0.0.1", free_port())
        with pytest.raises(LinkError, match="does not follow its master now; wait for it, or omit --replica"):
            Topology(endpoint(other)).replicas()
        client.replicaof("127.0.0.1", master.port)
        eventually(lambda: client.info("replication")["master_link_status"] == "up", "it follows")
        eventually(lambda: primary.role()[2], "the master lists it")
        assert Topology(endpoint(other)).replicas() == [endpoint(other)]
        (found,) = Topology(Endpoint(parse_upstream(master.url))).replicas()
        assert found.address.port == other.port
        assert inspect(found).keys == {}


def test_one_redis_has_no_hash_slots_that_move(redis_server: RedisServer) -> None:
    one = Topology(endpoint(redis_server))
    assert (one.slot_map(), one.moved_slots()) == (None, 0)


def test_an_audit_goes_on_only_while_hash_slots_stay_where_they_are(cluster: Cluster, tmp_path: Path) -> None:
    def checkpoint() -> Checkpoint:
        topology = of(cluster)
        work = work_of(
            judge(), in_order(map(inspect, topology.masters())), Options(), "", topology.slot_map()
        )
        return Checkpoint(str(tmp_path / "state"), "audit", work)

    checkpoint().save({})
    assert checkpoint().load() == {}
    moved_slot(cluster, KEY)
    try:
        with pytest.raises(CheckpointError, match="its hash slot map is not the same"):
            checkpoint().load()
    finally:
        moved_slot(cluster, KEY)
