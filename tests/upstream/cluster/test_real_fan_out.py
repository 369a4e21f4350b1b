"""A plain client gets one reply from a real cluster, as one Redis would give it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from keyfence.policy.compiled.hash_slots import hash_slot
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, move_at_once, moves_at_once, running_cluster
from tests.servers import ServerBinary, all_server_binaries

from .nodes import Nodes, connected

KEYS = [b"key:%d" % number for number in range(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries, and a replica of the first."""
    if cluster_binary() is None:
        pytest.skip(NO_CLUSTER)
    with running_cluster(replicas=1) as running:
        yield running


@pytest.fixture(params=[2, 3])
def nodes(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    with cluster.client() as client:
        client.flushall()
        with client.pipeline() as pipeline:
            for key in KEYS:
                pipeline.set(key, b"1")
            pipeline.execute()
    with connected(cluster, request.param) as one:
        yield one


def test_all_keys_are_meant(nodes: Nodes) -> None:
    keys = nodes.value("KEYS", "*")
    assert isinstance(keys, list)
    assert sorted(keys) == sorted(KEYS)
    assert nodes.value("DBSIZE") == len(KEYS)
    assert nodes.value("RANDOMKEY") in KEYS
    assert nodes.value("FLUSHALL") == b"OK"
    assert nodes.value("DBSIZE") == 0
    assert nodes.call("RANDOMKEY") in (b"$-1\r\n", b"_\r\n")


def test_scripts_are_on_all_nodes(nodes: Nodes) -> None:
    digest = nodes.value("SCRIPT", "LOAD", "return 1")
    assert isinstance(digest, bytes)
    assert nodes.value("SCRIPT", "EXISTS", digest.decode(), "0" * 40) == [1, 0]
    assert nodes.value("EVALSHA", digest.decode(), "0") == 1
    assert nodes.call("SCRIPT", "KILL").startswith(b"-NOTBUSY ")
    assert nodes.value("SCRIPT", "FLUSH") == b"OK"
    assert nodes.value("SCRIPT", "EXISTS", digest.decode()) == [0]


def test_functions_are_on_all_primaries(nodes: Nodes) -> None:
    code = "#!lua name=lib\nredis.register_function('f', function() return 7 end)"
    assert nodes.value("FUNCTION", "LOAD", "REPLACE", code) == b"lib"
    assert all(
        nodes.ask(one, b"*3\r\n$5\r\nFCALL\r\n$1\r\nf\r\n$1\r\n0\r\n") == b":7\r\n"
        for one in nodes.topology.owners()
    )
    assert b"running_script" in nodes.call("FUNCTION", "STATS")
    assert nodes.value("FUNCTION", "DELETE", "lib") == b"OK"
    assert nodes.call("FUNCTION", "DELETE", "lib") == b"-ERR Library not found\r\n"


def test_settings_and_logs_are_those_of_all_nodes(nodes: Nodes) -> None:
    assert nodes.value("CONFIG", "SET", "slowlog-log-slower-than", "0") == b"OK"
    assert nodes.value("CONFIG", "SET", "slowlog-log-slower-than", "-1") == b"OK"
    entries = nodes.value("SLOWLOG", "GET", "2")
    assert isinstance(entries, list)
    assert nodes.value("SLOWLOG", "LEN") >= len(entries) >= len(nodes.topology.nodes)  # type: ignore[operator]
    assert nodes.value("SLOWLOG", "RESET") == b"OK"
    assert nodes.value("SLOWLOG", "LEN") == 0
    assert nodes.call("CONFIG", "SET", "no-such", "1").startswith(b"-ERR Unknown option")
    assert nodes.value("ACL", "LOG", "RESET") == b"OK"
    assert nodes.value("ACL", "LOG") == []


def test_the_minimum_of_the_replicas_is_awaited(nodes: Nodes) -> None:
    assert nodes.value("WAIT", "0", "10") == 0  # two primaries have no replica


def test_subscribers_of_all_nodes_count(nodes: Nodes, cluster: Cluster) -> None:
    clients = [one.client() for one in cluster.masters[:2]]
    subscribers = [client.pubsub() for client in clients]
    for subscriber in subscribers:
        subscriber.subscribe("news")
        subscriber.get_message(timeout=5)
    assert nodes.value("PUBSUB", "CHANNELS", "n*") == [b"news"]
    assert nodes.value("PUBSUB", "NUMSUB", "news", "other") == [b"news", 2, b"other", 0]
    assert nodes.value("PUBSUB", "NUMPAT") == 0
    for subscriber, client in zip(subscribers, clients, strict=True):
        subscriber.close()
        client.close()


def test_all_connections_are_listed(nodes: Nodes) -> None:
    lines = nodes.value("CLIENT", "LIST")
    assert isinstance(lines, bytes)
    assert lines.count(b"cmd=client|list") == len(nodes.topology.nodes)


def test_a_client_sees_a_redis_without_a_cluster(nodes: Nodes) -> None:
    info = nodes.value("INFO")
    assert isinstance(info, bytes)
    assert b"_mode:standalone\r\n" in info
    assert b"cluster_enabled:0\r\n" in info
    assert nodes.call("CLUSTER", "SLOTS") == b"-ERR This instance has cluster support disabled\r\n"
    assert nodes.call("SWAPDB", "0", "1") == b"-ERR SWAPDB is not allowed in cluster mode\r\n"


def scanned(nodes: Nodes, between: Iterator[None] | None = None) -> list[bytes]:
    cursor, found = b"0", []
    while True:
        page = nodes.value("SCAN", cursor.decode(), "COUNT", "7")
        assert isinstance(page, list)
        cursor = page[0]
        found += page[1]
        if cursor == b"0":
            return found
        if between is not None:
            next(between, None)


def test_a_scan_goes_over_all_nodes(nodes: Nodes) -> None:
    assert sorted(scanned(nodes)) == sorted(KEYS)
    assert nodes.call("SCAN", "x") == b"-ERR invalid cursor\r\n"
    assert nodes.call("SCAN", "0", "COUNT") == b"-ERR syntax error\r\n"


def test_a_scan_finds_keys_whose_hash_slots_move(nodes: Nodes, cluster: Cluster) -> None:
    def moves() -> Iterator[None]:
        """All keys of the last node go to the first, which has been scanned or is being scanned."""
        taker, giver = cluster.masters[0], cluster.masters[2]
        with taker.client() as there, giver.client() as here:
            ids = [client.execute_command("CLUSTER", "MYID").decode() for client in (there, here)]
            slots = {hash_slot(key) for key in KEYS}
            for slot in [one for one in sorted(slots) if nodes.topology.owner(one).id == ids[1]][:20]:
                there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[1])
                here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[0])
                yield
                keys = here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
                here.execute_command("MIGRATE", "127.0.0.1", taker.port, "", 0, 5000, "KEYS", *keys)
                yield
                for client in (there, here):
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[0])
                nodes.topology = nodes.known()
                yield

    assert set(scanned(nodes, moves())) == set(KEYS)


@pytest.mark.parametrize("binary", [*filter(moves_at_once, all_server_binaries())], ids=lambda one: one.id)
def test_a_scan_finds_keys_whose_hash_slots_move_at_once(binary: ServerBinary) -> None:
    with running_cluster(binary=binary) as cluster, cluster.client() as client:
        for key in KEYS:
            client.set(key, b"1")
        with connected(cluster) as nodes:
            assert sorted(scanned(nodes)) == sorted(KEYS)
            assert set(scanned(nodes, many_move(cluster, nodes, binary))) == set(KEYS)
            assert nodes.topology.owner(15_999) is nodes.topology.owner(0)


def many_move(cluster: Cluster, nodes: Nodes, binary: ServerBinary) -> Iterator[None]:
    """Most hash slots of the last node go to the first, a range at a time."""
    taker, giver = cluster.masters[0], cluster.masters[2]
    with taker.client() as there, giver.client() as here:
        for first in range(11_000, 16_000, 1000):
            last = first + 999
            move_at_once(binary, here, there, first, last)
            yield
            while cluster.port_of(last) != taker.port:
                time.sleep(0.02)
            yield
            nodes.topology = nodes.known()
