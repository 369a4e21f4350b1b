"""keyfence before a real Redis Cluster, for clients that know clusters: they stay with keyfence, whatever
moves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest
import redis
from redis.cluster import LoadBalancingStrategy
from redis.crc import key_slot

from tests.clients.running import eventually, metric
from tests.cluster import NO_CLUSTER, SLOTS, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import (
    KEYS,
    Load,
    announced,
    knows,
    moved_slot,
    nodes,
    port_of,
    running_keyfence,
    stir,
    strangers,
)
from tests.servers import PROJECT, Keyfence, free_port, running_redis

NODE_MODULES = PROJECT / "tests" / "node" / "node_modules"

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=1) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    with running_keyfence(tmp_path_factory.mktemp("cluster"), cluster) as one:
        yield one


@pytest.fixture
def client(keyfence: Keyfence) -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster(host="127.0.0.1", port=port_of(keyfence)) as one:
        yield one


def test_a_client_finds_all_nodes_at_addresses_of_keyfence(
    keyfence: Keyfence, cluster: Cluster, client: redis.RedisCluster
) -> None:
    assert {f"{one.host}:{one.port}" for one in client.get_nodes()} == announced(keyfence)
    assert len(announced(keyfence)) == len(cluster.masters) + len(cluster.replicas)


def test_metrics_show_the_nodes_and_the_topology(keyfence: Keyfence, cluster: Cluster) -> None:
    eventually(lambda: metric(keyfence, "keyfence_upstream_slots_covered") == SLOTS, "it is reported")
    for index, master in enumerate(cluster.masters):
        node = f"127.0.0.1:{master.port}"
        slots = SLOTS * (index + 1) // 3 - SLOTS * index // 3
        assert metric(keyfence, "keyfence_upstream_node_up", node=node) == 1
        assert metric(keyfence, "keyfence_upstream_node_role", node=node, role="master") == 1
        assert metric(keyfence, "keyfence_upstream_node_slots", node=node) == slots
    (replica,) = cluster.replicas
    node = f"127.0.0.1:{replica.port}"
    assert metric(keyfence, "keyfence_upstream_node_role", node=node, role="replica") == 1
    assert metric(keyfence, "keyfence_upstream_topology_age_seconds") < 60
    assert metric(keyfence, "keyfence_upstream_topology_refreshes_total", reason="start") == 1
    assert metric(keyfence, "keyfence_upstream_cluster_troubles", kind="slots_without_node") == 0


def test_redirects_are_counted_by_node(keyfence: Keyfence) -> None:
    before = metric(keyfence, "keyfence_upstream_node_redirects_total", error="MOVED")
    moved = 0
    with keyfence.client() as one:
        for key in KEYS:
            try:
                one.get(key)
            except redis.exceptions.MovedError:
                moved += 1
    assert moved
    assert metric(keyfence, "keyfence_upstream_node_redirects_total", error="MOVED") == before + moved


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


def test_a_client_reads_from_a_replica_by_its_listener_under_the_same_policy(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    """It sends READONLY there itself."""
    (replica,) = cluster.replicas
    key = next(key for key in KEYS if cluster.port_of(key_slot(key.encode())) == cluster.masters[0].port)
    in_turn = LoadBalancingStrategy.ROUND_ROBIN
    with (
        redis.RedisCluster(
            host="127.0.0.1", port=port_of(keyfence), load_balancing_strategy=in_turn
        ) as client,
        replica.client() as direct,
    ):
        client.set(key, "x")
        direct.config_resetstat()
        eventually(lambda: [client.get(key) for _ in range(4)] == [b"x"] * 4, "the replica has it")
        assert int(direct.info("commandstats")["cmdstat_get"]["calls"]) >= 2
        for _ in range(4):
            with pytest.raises(redis.ResponseError, match=r"key\.unregistered"):
                client.get(f"other:{{{key}}}")
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
    with Load(client) as load:
        moved_slot(cluster, KEYS[0], load.goes_on)
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
    eventually(lambda: f" {address} is the master of " in keyfence.stderr(), "operators are told")
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
        every = [server.client() for server in (*cluster.masters, *cluster.replicas)]
        for other in every:  # a node that has not heard of it yet would hear after the others forgot it
            eventually(partial(knows, other, new_id), "the node is known")
        for other in every:
            other.execute_command("CLUSTER", "FORGET", new_id)
            other.close()
        one.execute_command("CLUSTER", "RESET", "HARD")
        stir(cluster)
        eventually(lambda: all(row["id"] != new_id for row in nodes(keyfence)), "the node is not named")
