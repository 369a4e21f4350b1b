"""What a real cluster answers is read, and rewritten, in both protocols."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import hiredis
import pytest

from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer
from keyfence.upstream.cluster.announced import Addresses, Announcement, ports_of
from keyfence.upstream.cluster.rewriting import redirected, rewritten
from keyfence.upstream.cluster.topology import Topology, topology_in
from tests.cluster import NO_CLUSTER, SLOTS, Cluster, cluster_binary, running_cluster
from tests.servers import PATIENCE_SECONDS, RedisServer

BOTH = pytest.mark.parametrize("resp", [2, 3])
ANNOUNCEMENT = Announcement("192.0.2.1", range(7200, 7300))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries, and a replica of the first."""
    if cluster_binary() is None:
        pytest.skip(NO_CLUSTER)
    with running_cluster(replicas=1) as running:
        yield running


def ask(server: RedisServer, resp: int, *words: str) -> bytes:
    """The bytes of a server's reply."""
    assert server.port is not None
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS)) as sock:
        for request in (("HELLO", str(resp)), words):
            sock.sendall(encode.command(*request))
            framer, reply = ReplyFramer(), b""
            while not framer.completed:
                part = sock.recv(65536)
                framer.advance(part, 0, 1)
                reply += part
    return reply


def read(reply: bytes) -> Topology:
    reader = hiredis.Reader()
    reader.feed(reply)
    return topology_in(reader.gets(), "127.0.0.1")


@BOTH
def test_all_commands_tell_the_same_cluster(cluster: Cluster, resp: int) -> None:
    server = cluster.masters[0]
    told = [read(ask(server, resp, "CLUSTER", name)) for name in ("NODES", "SLOTS", "SHARDS")]
    assert {one.address for one in told[0].nodes} == {
        ("127.0.0.1", one.port) for one in (*cluster.masters, *cluster.replicas)
    }
    assert (told[0].covered, told[0].epoch) == (SLOTS, 3)
    assert told[0].same_as(told[1])
    assert told[0].same_as(told[2])


@BOTH
@pytest.mark.parametrize("name", ["NODES", "SLOTS", "SHARDS"])
def test_a_rewritten_reply_tells_the_same_cluster_at_keyfences_addresses(
    cluster: Cluster, resp: int, name: str
) -> None:
    server = cluster.masters[0]
    topology = read(ask(server, resp, "CLUSTER", "NODES"))
    ports = ports_of(topology, ANNOUNCEMENT).by_id
    reply = ask(server, resp, "CLUSTER", name)
    seen = read(rewritten(f"CLUSTER {name}", reply, Addresses(topology, ANNOUNCEMENT.host, ports)))
    assert [one.address for one in seen.nodes] == [
        (ANNOUNCEMENT.host, ports[one.id]) for one in topology.nodes
    ]
    assert [(one.id, one.is_primary, one.slots) for one in seen.nodes] == [
        (one.id, one.is_primary, one.slots) for one in topology.nodes
    ]


@BOTH
def test_the_lines_of_replicas_and_redirects_name_keyfence(cluster: Cluster, resp: int) -> None:
    server = cluster.masters[0]
    topology = read(ask(server, resp, "CLUSTER", "NODES"))
    addresses = Addresses(topology, ANNOUNCEMENT.host, ports_of(topology, ANNOUNCEMENT).by_id)
    (replica,) = [one for one in topology.nodes if not one.is_primary]
    new = rewritten(
        "CLUSTER REPLICAS", ask(server, resp, "CLUSTER", "REPLICAS", replica.primary_id), addresses
    )
    assert f"{replica.id} 192.0.2.1:{addresses.at(*replica.address, 0).port}@" in new.decode()
    owner = topology.owner(12182)  # of the key foo
    moved = ask(server, resp, "GET", "foo")
    assert (
        redirected(moved[1:-2], addresses).decode() == f"MOVED 12182 192.0.2.1:{addresses.of(owner.id).port}"
    )


@BOTH
@pytest.mark.parametrize("kind", ["hostname", "unknown-endpoint", "ip"])
def test_a_cluster_is_read_whatever_endpoints_it_prefers(cluster: Cluster, resp: int, kind: str) -> None:
    server = cluster.masters[0]
    ask(server, 2, "CONFIG", "SET", "cluster-announce-hostname", "one.example")
    ask(server, 2, "CONFIG", "SET", "cluster-preferred-endpoint-type", kind)
    topology = read(ask(server, resp, "CLUSTER", "NODES"))
    addresses = Addresses(topology, ANNOUNCEMENT.host, ports_of(topology, ANNOUNCEMENT).by_id)
    named = topology.node_at("one.example", server.port)
    assert named is not None
    assert named.host == "127.0.0.1"
    for name in ("SLOTS", "SHARDS"):
        reply = ask(server, resp, "CLUSTER", name)
        hosts = {one.host for one in read(reply).nodes}
        assert hosts == ({"127.0.0.1", "one.example"} if kind == "hostname" else {"127.0.0.1"})
        new = rewritten(f"CLUSTER {name}", reply, addresses)
        assert {one.host for one in read(new).nodes} == {ANNOUNCEMENT.host}
        assert b"127.0.0.1" not in new
        assert b"one.example" not in new
    owner = topology.owner(12182)
    moved = redirected(ask(server, resp, "GET", "foo")[1:-2], addresses).decode()
    assert moved == f"MOVED 12182 192.0.2.1:{addresses.of(owner.id).port}"
