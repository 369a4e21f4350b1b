from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from keyfence.audit.servers.links import Endpoint, Link, LinkError
from keyfence.audit.servers.nodes import Topology, check_has_keys, inspect
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.downstream.tls import upstream_context
from keyfence.upstream.address import parse_upstream
from keyfence.upstream.cluster import topology as cluster_topology
from tests.audit.shop import endpoint
from tests.cluster import Cluster
from tests.servers import Certificates, RedisServer, running_redis


def test_replies_come_in_order_and_errors_are_values(redis_server: RedisServer) -> None:
    link = Link(endpoint(redis_server))
    replies = link.ask([("SET", "a", 1), ("LPUSH", "a", 1), ("GET", b"a")])
    assert replies[0] == b"OK"
    assert isinstance(replies[1], ResponseError)
    assert replies[2] == b"1"
    assert link.attempt("NONSENSE") is None
    with pytest.raises(LinkError, match="refuses NONSENSE: "):
        link.one("NONSENSE")
    link.close()


def test_a_connection_uses_the_database_of_its_address(redis_server: RedisServer) -> None:
    with redis_server.client(db=3) as client:
        client.set("a", "1")
    link = Link(Endpoint(parse_upstream(f"{redis_server.embedded.url}?db=3")))
    assert link.one("DBSIZE") == 1
    link.close()


@pytest.fixture
def tls_redis(certificates: Certificates) -> Iterator[RedisServer]:
    with running_redis(tls=certificates, acl=["auditor on >secret ~* +@all"]) as server:
        yield server


def test_a_login_and_tls_apply(tls_redis: RedisServer, certificates: Certificates, tmp_path: Path) -> None:
    server = tls_redis
    config = tmp_path / "keyfence.yaml"
    url = server.url.replace("//", "//auditor:secret@")
    config.write_text(f"policy: none\nupstream: {{url: '{url}', ca: '{certificates.ca}'}}\n")
    settings = load_settings(str(config), Overrides(), needs_policy=False)
    assert settings.upstream is not None
    here = Endpoint(settings.upstream, upstream_context(settings))
    link = Link(here)
    assert link.one("ACL", "WHOAMI") == b"auditor"
    link.close()
    other = Endpoint(settings.upstream, None).at("127.0.0.1", server.port or 0)
    assert other.address.server_name == "127.0.0.1"
    again = Link(Endpoint(here.address, here.tls).at("127.0.0.1", server.port or 0))
    assert again.one("PING") == b"PONG"
    again.close()


def test_a_certificate_of_nobody_known_is_one_sentence(tls_redis: RedisServer) -> None:
    address = parse_upstream(tls_redis.url)
    with pytest.raises(LinkError, match=r"cannot be reached: TLS failed"):
        Link(Endpoint(address, ssl.create_default_context()))


def test_a_server_says_what_it_is(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("a", "1")
    server = inspect(endpoint(redis_server))
    assert server.version == redis_server.version_info
    assert len(server.run_id) == 40
    assert server.keys == {0: 1}
    assert server.tracks_idle


def test_one_redis_is_its_only_master_and_may_have_no_replica(redis_server: RedisServer) -> None:
    topology = Topology(endpoint(redis_server))
    assert topology.masters() == [endpoint(redis_server)]
    with pytest.raises(LinkError, match="names no replica; name one yourself"):
        topology.replicas()


def test_a_master_names_its_replica(start_redis: Callable[..., RedisServer]) -> None:
    master = start_redis(tcp=True)
    replica = start_redis(tcp=True, arguments=["--replicaof", "127.0.0.1", str(master.port)])
    with master.client() as client, replica.client() as other:
        client.set("a", "1")
        assert client.wait(1, 30_000) == 1
        assert other.dbsize() == 1
    (found,) = Topology(Endpoint(parse_upstream(master.url))).replicas()
    assert found.address.port == replica.port
    (itself,) = Topology(Endpoint(parse_upstream(replica.url))).replicas()
    assert itself.address.port == replica.port


def test_a_cluster_names_its_masters(cluster: Cluster) -> None:
    topology = Topology(Endpoint(parse_upstream(cluster.url)))
    assert topology.is_cluster
    assert {one.address.port for one in topology.masters()} == {one.port for one in cluster.masters}


def test_a_replica_stands_for_each_master_of_a_cluster(cluster: Cluster) -> None:
    topology = Topology(Endpoint(parse_upstream(cluster.url)))
    all_nodes = topology.cluster
    first = [one for one in all_nodes.nodes if not one.is_primary or all_nodes.replicas_of(one.id)]
    topology.cluster = cluster_topology.Topology(first)  # only the first master has a replica
    assert [one.address.port for one in topology.replicas()] == [cluster.replicas[0].port]


def test_a_server_that_describes_no_cluster_is_not_audited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Link.one
    monkeypatch.setattr(Link, "one", lambda link, *words: 7 if words[0] == "CLUSTER" else one(link, *words))
    with pytest.raises(LinkError, match=r":\d+ answers CLUSTER SLOTS, but its answer describes no cluster$"):
        Topology(Endpoint(parse_upstream(cluster.url)))


def test_a_cluster_with_missing_slots_is_not_audited(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(arguments=["--cluster-enabled", "yes"])
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", 1, 2, 3)
    with pytest.raises(LinkError, match="some hash slots of the cluster have no node; mend that first"):
        Topology(endpoint(server))


@pytest.mark.parametrize("word", ["redis_mode", "server_mode"])
def test_a_sentinel_of_redis_and_of_valkey_has_no_keys(word: str) -> None:
    with pytest.raises(LinkError, match="is a Sentinel, which has no keys"):
        check_has_keys(Endpoint(parse_upstream("redis://10.0.0.1:26379")), {word: "sentinel"})
