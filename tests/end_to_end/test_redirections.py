"""No client can redirect messages to another service's connection, with real servers and workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.clients.running import configure, eventually
from tests.cluster import NO_CLUSTER, cluster_binary, running_cluster
from tests.end_to_end.clusters import CONFIG, keyfence_with, nodes
from tests.servers import Keyfence, RedisServer, first_port, running_redis

KEY = "cube:v1:shared:sandbox:proxy:7c8f"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


@pytest.fixture(scope="module", params=["", "workers: 3"])
def keyfence(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: RedisServer
) -> Iterator[Keyfence]:
    more = [request.param] if request.param else []
    config = configure(tmp_path_factory.mktemp("redirections"), server.url, *more, mode="enforce")
    with Keyfence("--config", config) as one:
        yield one


def redirect(client: redis.Redis, number: int) -> str:
    """Redirects the client's invalidation messages to another connection. Returns OK or the error."""
    try:
        return str(client.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", number).decode())
    except redis.ResponseError as exc:
        return str(exc)


def refused(client: redis.Redis, number: int) -> bool:
    """Returns whether keyfence refuses this to the client. Redis would allow it."""
    message = redirect(client, number)
    is_refusal = message.startswith("[command.forbidden] ")
    assert is_refusal or message == "OK", message
    return is_refusal


def bulk(text: str) -> bytes:
    return f"${len(text)}\r\n{text}\r\n".encode()


def connections(keyfence: Keyfence, service: str, number: int) -> list[redis.Redis]:
    return [keyfence.client(service, single_connection_client=True) for _ in range(number)]


def test_a_client_may_name_its_service_s_connections_on_any_worker(keyfence: Keyfence) -> None:
    clients = connections(keyfence, "CubeProxy", 12)  # the kernel shares them out among the workers
    ids = [client.client_id() for client in clients]
    for index, client in enumerate(clients):
        for number in (ids[index], ids[index - 1], ids[index - 5]):
            assert not refused(client, number)
    for client in clients:
        client.close()


def test_a_client_may_not_name_another_service_s_connection(keyfence: Keyfence, server: RedisServer) -> None:
    with server.client() as direct:
        every = {int(row["id"]) for row in direct.client_list()}  # keyfence's shared ones among them
    masters = connections(keyfence, "CubeMaster", 6)
    every |= {client.client_id() for client in masters}
    (proxy,) = connections(keyfence, "CubeProxy", 1)
    own = proxy.client_id()
    for number in every - {own}:
        assert refused(proxy, number)
    for client in (*masters, proxy):
        client.close()


def test_a_closed_connection_cannot_be_named(keyfence: Keyfence) -> None:
    gone, other = connections(keyfence, "CubeProxy", 2)
    number = gone.client_id()
    assert not refused(other, number)
    gone.close()
    with keyfence.client("CubeProxy", single_connection_client=True) as later:
        eventually(lambda: redirect(later, number).startswith("[command.forbidden]"), "its id is forgotten")
    other.close()


def test_client_caching_ends_with_a_refused_command(keyfence: Keyfence) -> None:
    """CLIENT CACHING NO holds for one command, so Redis must see one in place of the refused one."""
    with keyfence.client("CubeMaster") as writer, keyfence.connect("CubeProxy") as reader:
        writer.delete(KEY)
        reader.sendall(b"HELLO 3\r\nCLIENT TRACKING ON OPTOUT\r\nCLIENT CACHING NO\r\nGET no:x\r\n")
        heard = b""
        while b"-NOPERM" not in heard:
            heard += reader.recv(4096)
        reader.sendall(b"HGETALL %b\r\n" % KEY.encode())
        assert reader.recv(4096) == b"%0\r\n"
        writer.hset(KEY, "HostIP", "10.0.0.7")
        assert reader.recv(4096) == b">2\r\n$10\r\ninvalidate\r\n*1\r\n" + bulk(KEY)


def test_redirected_messages_arrive_at_the_named_connection(keyfence: Keyfence) -> None:
    (reader,) = connections(keyfence, "CubeProxy", 1)
    with keyfence.client("CubeMaster") as writer, keyfence.connect("CubeProxy") as listener:
        listener.sendall(b"HELLO 3\r\n")
        greeting = listener.recv(4096)
        assert not refused(reader, int(greeting.partition(b"$2\r\nid\r\n:")[2].split()[0]))
        reader.hgetall(KEY)
        writer.hset(KEY, "HostIP", "10.0.0.7")
        assert listener.recv(4096) == b">2\r\n$10\r\ninvalidate\r\n*1\r\n" + bulk(KEY)
    reader.close()


@pytest.mark.parametrize("name", ["CLIENT KILL", "CLIENT UNBLOCK", "CLIENT LIST", "CLIENT PAUSE"])
def test_other_commands_that_name_connections_are_administrative(name: str, keyfence: Keyfence) -> None:
    """A grant allows naming any connection; administrators need that."""
    with keyfence.client("CubeProxy") as client, pytest.raises(redis.ResponseError, match="@admin"):
        client.execute_command(*name.split(), "5")


# -- nodes of a cluster, each of which counts its connections from one

OF_CLUSTER = """policy: p
services: [app, victim]
commands: {allow: ["@fast", "@slow"]}
"""
LEVEL = 500  # an id that no node has given by then
CONNECTIONS = 60  # to each node: so many ids in a row, for more than the probers take in between


@contextlib.contextmanager
def clients_of(port: int, number: int, **login: str) -> Iterator[dict[int, redis.Redis]]:
    """Clients at an address, by their ids."""
    with contextlib.ExitStack() as stack:
        every = (redis.Redis(port=port, single_connection_client=True, **login) for _ in range(number))  # type: ignore[arg-type]
        yield {one.client_id(): one for one in map(stack.enter_context, every)}


def count_up(server: RedisServer, number: int) -> None:
    """Makes connections until the server has given this id."""
    while True:
        with server.client() as one:
            if one.client_id() >= number:
                return


@pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)
def test_an_id_of_one_node_does_not_name_a_connection_of_another_node(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        one, other, _ = cluster.masters
        for server in cluster.masters:
            with server.client() as direct:
                direct.execute_command("ACL", "SETUSER", "victim", "on", ">pw", "~*", "&*", "+@all")
        first = first_port()
        config = CONFIG.format(seed=one.port, other=other.port, first=first, last=first + 99) + "workers: 2\n"
        keyfence = stack.enter_context(keyfence_with(tmp_path, OF_CLUSTER, config))
        eventually(lambda: all(row["announced"] for row in nodes(keyfence)), "each node has an address")
        ports = {row["node"]: int(row["announced"].rpartition(":")[2]) for row in nodes(keyfence)}
        here, there = ports[f"127.0.0.1:{one.port}"], ports[f"127.0.0.1:{other.port}"]
        for server in (one, other):
            count_up(server, LEVEL)
        victims = stack.enter_context(clients_of(here, CONNECTIONS, username="victim", password="pw"))
        own = stack.enter_context(clients_of(here, 6))  # some at each worker
        shown = stack.enter_context(clients_of(there, CONNECTIONS))
        both = victims.keys() & shown.keys()
        assert both
        for client in own.values():
            assert all(refused(client, number) for number in both)
            assert not any(refused(client, number) for number in own)
