from __future__ import annotations

import pytest
import redis

from keyfence.audit.facts import MAX_FIELDS, CannotAsk
from keyfence.audit.held import MOST_AT_ONCE, Held, held_keys
from keyfence.audit.servers.links import Endpoint
from keyfence.audit.servers.nodes import Topology, inspect
from keyfence.upstream.address import parse_upstream
from tests.audit.shop import endpoint
from tests.cluster import Cluster, half_moved, running_cluster
from tests.servers import RedisServer, ServerBinary, all_server_binaries

KNOWS_NO_TOUCH = [one for one in all_server_binaries() if one.numbers >= (7, 2)]


def held(server: RedisServer) -> dict[bytes, Held]:
    servers = [inspect(one) for one in Topology(endpoint(server)).masters()]
    return {one.key: one for one in held_keys(servers, 0)}


def test_every_key_has_its_type_its_time_to_live_and_its_fields(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    client.set("s", "x", px=90_000)
    client.hset("h", mapping={"a": "1", "b": "2"})
    client.zadd("z", {"m": 1})
    client.xadd("x", {"f": "v"})
    found = held(redis_server)
    assert {key: (one.type, one.fields) for key, one in found.items()} == {
        b"s": ("string", ()),
        b"h": ("hash", (b"a", b"b")),
        b"z": ("zset", ()),
        b"x": ("stream", ()),
    }
    assert 0 < found[b"s"].ttl <= 90_000
    assert found[b"h"].ttl < 0


def test_many_keys_and_many_fields_come_in_batches(client: redis.Redis, redis_server: RedisServer) -> None:
    client.mset({f"k:{number}": "x" for number in range(3 * MOST_AT_ONCE)})
    client.hset("h", mapping={f"f{number}": "x" for number in range(5000)})
    found = held(redis_server)
    assert len(found) == 3 * MOST_AT_ONCE + 1
    assert 0 < len(found[b"h"].fields) <= MAX_FIELDS


def test_all_databases_are_read(redis_server: RedisServer) -> None:
    with redis_server.client() as zero, redis_server.client(db=3) as three:
        zero.set("a", "x")
        three.set("b", "x")
        found = held(redis_server)
        assert {key: one.database for key, one in found.items()} == {b"a": 0, b"b": 3}
        three.flushdb()


def test_all_masters_of_a_cluster_are_read(cluster: Cluster) -> None:
    with redis.RedisCluster.from_url(cluster.url) as client:
        for number in range(60):
            client.set(f"held:{number}", "x")
    servers = [inspect(one) for one in Topology(Endpoint(parse_upstream(cluster.url))).masters()]
    assert len({one.key for one in held_keys(servers, 0) if one.key.startswith(b"held:")}) == 60


@pytest.mark.parametrize("binary", KNOWS_NO_TOUCH, ids=lambda one: one.id)
def test_no_server_of_a_cluster_crashes_when_a_hash_slot_moves(binary: ServerBinary) -> None:
    """Redis 8.0.2 and Valkey 8.1.1 do, if a client with CLIENT NO-TOUCH names a key of that hash slot."""
    with running_cluster(binary=binary) as cluster:
        test_a_key_whose_hash_slot_moves_is_left_out(cluster)


def test_a_key_whose_hash_slot_moves_is_left_out(cluster: Cluster) -> None:
    with redis.RedisCluster.from_url(cluster.url) as client:
        client.set("held:1", "x")
    left_out: list[bytes] = []
    with half_moved(cluster, "held:2"):
        servers = [inspect(one) for one in Topology(Endpoint(parse_upstream(cluster.url))).masters()]
        found = [one.key for one in held_keys(servers, 0, left_out=left_out.append)]
    assert (found, left_out) == ([b"held:1"], [b"held:2"])


def test_a_server_that_refuses_scan_is_named(client: redis.Redis, redis_server: RedisServer) -> None:
    client.set("a", "x")
    client.execute_command("ACL", "SETUSER", "default", "-scan")
    try:
        with pytest.raises(CannotAsk, match="refuses SCAN: "):
            held(redis_server)
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+scan")
