"""An audit of real servers: what it counts, that it only reads, and that it goes on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.audit.checkpoint import Checkpoint, CheckpointError
from keyfence.audit.facts import CannotAsk
from keyfence.audit.plan import Header, Plan, PlanWriter
from keyfence.audit.scan import Audit, Interrupted, Options, Result, in_order, work_of
from keyfence.audit.servers.links import Endpoint, LinkError
from keyfence.audit.servers.nodes import Server, Topology, inspect
from keyfence.audit.sums import Group
from keyfence.upstream.address import parse_upstream
from tests.audit.shop import endpoint, fill, judge
from tests.cluster import Cluster, half_moved
from tests.servers import RedisServer

ALL = Options()
NOTHING = Checkpoint("", "audit", {})
READS = {
    *("scan", "type", "pttl", "memory|usage", "object|idletime", "hscan", "info", "select", "readonly"),
    *("hlen", "strlen", "llen", "scard", "zcard", "xlen", "role", "auth", "hello"),
    *("client|no-touch", "client|setname", "client|setinfo", "memory", "object", "client"),
}


def audited(server: RedisServer, options: Options = ALL) -> Result:
    return Audit(judge(), [inspect(endpoint(server))], options, NOTHING).run()


def group(result: Result, name: str = "", *, kind: str = "entry") -> Group:
    (found,) = [one for one in result.sums if (one.kind, one.name) == (kind, name)]
    return found


def broken(result: Result) -> dict[tuple[str, str], int]:
    return {
        (one.name or one.shape or one.scope, rule): found.keys
        for one in result.sums
        for rule, found in one.broken.items()
    }


FOUND = {
    ("order", "type.mismatch"): 1,
    ("order", "field.unknown"): 1,
    ("order", "ttl.forbidden"): 1,
    ("order", "key.legacy"): 1,
    ("cart", "ttl.required"): 1,
    ("cart", "ttl.range"): 1,
    ("page", "value.size"): 1,
    ("page", "key.legacy"): 1,
    ("queue", "key.members"): 1,
}


def test_every_kind_of_fault_is_found_once(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        fill(client)
        size = client.dbsize()
    result = audited(redis_server)
    assert result.seen == size == sum(one.keys for one in result.sums)
    found = broken(result)
    assert {place: number for place, number in found.items() if place[1] != "key.unregistered"} == FOUND | {
        place: 1 for place in found if place[1] == "key.format"
    }
    assert sum(number for (_, rule), number in found.items() if rule == "key.unregistered") == 3
    orders = group(result, "order")
    assert orders.keys == 23
    assert orders.types == {"hash": 22, "string": 1}
    assert orders.without_ttl == 22
    assert orders.size > 0


def test_an_audit_only_reads(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    with server.client() as client:
        fill(client)
        client.config_resetstat()
        dirty = client.info("persistence")["rdb_changes_since_last_save"]
        audited(server)
        used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
        assert client.info("persistence")["rdb_changes_since_last_save"] == dirty
    assert used - READS <= {"config|resetstat", "config"}


def test_idle_times_survive_an_audit_where_redis_can_keep_them(redis_server: RedisServer) -> None:
    """HSCAN uses a key; CLIENT NO-TOUCH (Redis 7.2) hides it. Times themselves are not faked."""
    with redis_server.client() as client:
        client.hset("shop:main:order:1", "state", "paid")
        client.set("shop:free:1", "x", ex=60)
    assert group(audited(redis_server), "order").idle == [0, 0, 0]


def test_a_sample_counts_all_names_and_asks_about_some(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        for number in range(400):
            client.hset(f"shop:main:order:{number}", "state", "paid")
            client.set(f"user:{number}:name", "x")
    result = audited(redis_server, Options(sample=0.1))
    orders = group(result, "order")
    assert (result.seen, orders.keys) == (800, 400)
    assert 10 < orders.asked < 90
    assert orders.estimate(orders.size) > 2 * orders.size
    unregistered = group(result, kind="unregistered")
    assert unregistered.broken_keys(unregistered.broken["key.unregistered"]) == 400


def test_every_database_that_holds_keys_is_looked_at(redis_server: RedisServer) -> None:
    for number in (0, 3):
        with redis_server.client(db=number) as client:
            client.hset("shop:main:order:1", "state", "paid")
    assert audited(redis_server).databases == {0: 1, 3: 1}
    assert audited(redis_server, Options(databases=(3,))).databases == {3: 1}


def test_an_empty_redis_has_nothing(redis_server: RedisServer) -> None:
    result = audited(redis_server)
    assert (result.seen, list(result.sums)) == (0, [])


def test_a_policy_that_counts_accesses_has_no_idle_times(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(arguments=["--maxmemory-policy", "allkeys-lfu"])
    with server.client() as client:
        fill(client)
    result = audited(server)
    assert list(result.notes) == [
        "idle times are not known: Redis' maxmemory-policy counts accesses (LFU) instead"
    ]
    assert broken(result).items() >= FOUND.items()


def login(server: RedisServer) -> Endpoint:
    url = f"unix://auditor:secret@{server.socket_path}"
    return Endpoint(parse_upstream(url))


def test_what_redis_refuses_is_said_once_and_left_out(start_redis: Callable[..., RedisServer]) -> None:
    rights = "+scan +type +pttl +info +select +role +client"
    server = start_redis(acl=[f"auditor on >secret ~* -@all {rights}"])
    with server.client() as client:
        fill(client)
    result = Audit(judge(), [inspect(login(server))], Options(), NOTHING).run()
    assert len(result.notes) == 3
    assert all("NOPERM" in note or "permissions" in note for note in result.notes)
    assert group(result, "order").size == 0
    assert broken(result)["cart", "ttl.required"] == 1


def test_without_scan_there_is_no_audit(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["auditor on >secret ~* -@all +info +role +select"])
    with server.client() as client:
        fill(client)
    with pytest.raises(CannotAsk, match="refuses SCAN: "):
        Audit(judge(), [inspect(login(server))], Options(), NOTHING).run()


def test_a_wrong_password_is_one_sentence_without_it(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["auditor on >other ~* +@all"])
    with pytest.raises(LinkError) as caught:
        Topology(login(server))
    assert "cannot be reached: " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(LinkError, match=r"redis://127\.0\.0\.1:1 cannot be reached: connection refused"):
        inspect(Endpoint(parse_upstream("redis://127.0.0.1:1")))


# -- interruptions


def many(server: RedisServer) -> None:
    with server.client() as client, client.pipeline() as pipeline:
        for number in range(3000):
            pipeline.hset(f"shop:main:order:{number}", "state", "paid")
            pipeline.hset(f"order-{number}", "state", "paid")
            pipeline.set(f"user:{number}:name", "x")
        pipeline.execute()


def at(server: Server, path: Path, plan: str = "", **options: object) -> tuple[Options, Checkpoint]:
    chosen = Options(**options)  # type: ignore[arg-type]
    return chosen, Checkpoint(str(path), "audit", work_of(judge(), [server], chosen, plan))


def test_an_interrupted_audit_goes_on_and_counts_every_key_once(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    many(redis_server)
    server = inspect(endpoint(redis_server))
    header, plan = Header("shop", "r1", "here"), str(tmp_path / "plan")
    runs = 0
    while True:
        runs += 1
        options, checkpoint = at(server, tmp_path / "state", plan)
        one = Audit(judge(), [server], options, checkpoint, lambda at: PlanWriter(header, plan, at=at))
        begins: list[int] = []

        def watch(seen: int, _all: int, one: Audit = one, begins: list[int] = begins) -> None:
            begins.append(seen)
            if seen - begins[0] >= 2500:
                one.stop()

        one._watch = watch
        try:
            result = one.run()
            break
        except Interrupted:
            kept = json.loads((tmp_path / "state").read_text())
            assert sum(row["keys"] for row in kept["state"]["groups"]) == one.result.seen
    assert runs > 2
    assert result.seen == 9000
    assert {(one.kind, one.keys) for one in result.sums} == {
        ("entry", 3000),
        ("legacy", 3000),
        ("unregistered", 3000),
    }
    written = Plan(plan)
    assert (written.renames, result.plan_renames) == (3000, 3000)
    assert len({one.old for one in written}) == 3000
    assert (tmp_path / "state").exists()  # until the report is given


def test_a_lost_connection_keeps_what_was_counted(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    redis = start_redis()
    many(redis)
    server = inspect(endpoint(redis))
    options, checkpoint = at(server, tmp_path / "state")
    one = Audit(judge(), [server], options, checkpoint, watch=lambda _seen, _all: redis.kill())
    with pytest.raises(LinkError, match="does not answer any more"):
        one.run()
    kept = json.loads((tmp_path / "state").read_text())["state"]
    assert kept["seen"] == sum(row["keys"] for row in kept["groups"]) > 0


def test_an_audit_does_not_go_on_at_a_server_that_has_started_again(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    first, second = start_redis(), start_redis()
    options, checkpoint = at(inspect(endpoint(first)), tmp_path / "state")
    checkpoint.save({})
    server = inspect(endpoint(second))
    options, checkpoint = at(server, tmp_path / "state")
    with pytest.raises(CheckpointError, match="its server is not the same"):
        Audit(judge(), [server], options, checkpoint).run()


def test_a_damaged_checkpoint_is_one_sentence(redis_server: RedisServer, tmp_path: Path) -> None:
    server = inspect(endpoint(redis_server))
    options, checkpoint = at(server, tmp_path / "state")
    checkpoint.save({"at": [0, "0"]})
    with pytest.raises(CheckpointError, match="is damaged; remove it to begin anew"):
        Audit(judge(), [server], options, checkpoint).run()


# -- clusters


def of(cluster: Cluster) -> Topology:
    return Topology(Endpoint(parse_upstream(cluster.url)))


def test_every_master_of_a_cluster_is_looked_at(cluster: Cluster) -> None:
    client = cluster.client()
    for number in range(300):
        client.hset(f"shop:main:order:{number}", "state", "paid")
    client.close()
    topology = of(cluster)
    servers = in_order(map(inspect, topology.masters()))
    assert len(servers) == 3
    assert all(sum(server.keys.values()) for server in servers)
    result = Audit(judge(), servers, Options(), NOTHING).run()
    assert group(result, "order").keys == 300


def test_a_key_whose_hash_slot_moves_is_left_out_and_counted(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number in range(30):
            client.hset(f"shop:main:order:{number}", "state", "paid")
    with half_moved(cluster, "shop:main:stock:v2:1"):
        servers = in_order(map(inspect, of(cluster).masters()))
        result = Audit(judge(), servers, Options(), NOTHING).run()
    assert (result.seen, result.moving, result.gone) == (31, 1, 0)
    assert group(result, "order").keys == 30
    assert group(result, "order").size > 0
    assert result.notes == {}


def test_a_master_without_a_replica_is_named(cluster: Cluster) -> None:
    with pytest.raises(LinkError, match="has no replica; omit --replica to audit masters"):
        of(cluster).replicas()


def test_a_replica_of_a_cluster_is_read(cluster: Cluster) -> None:
    client = cluster.client()
    for number in range(300):
        client.set(f"shop:main:stock:v2:{number}", "1")
    client.close()
    with cluster.masters[0].client() as first:
        own = first.dbsize()
        assert first.wait(1, 30_000) == 1
    replica = inspect(Endpoint(parse_upstream(cluster.replicas[0].url)))
    assert 0 < own < 300
    assert group(Audit(judge(), [replica], Options(), NOTHING).run(), "stock-v2").keys == own
