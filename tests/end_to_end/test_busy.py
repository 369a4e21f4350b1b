"""A Redis that a long script keeps busy: it takes MULTI, WATCH and logins, and refuses the rest with BUSY."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
import redis

from tests.clients.running import configure
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, ServerBinary, running_redis

BUSY, ABORTED = "BUSY", "ABORTED"


@pytest.fixture(scope="module")
def server(redis_binary: ServerBinary) -> Iterator[RedisServer]:
    with running_redis(redis_binary, arguments=("--lua-time-limit", "10")) as server:
        yield server


@pytest.fixture(scope="module")
def keyfence(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyfence]:
    configuration = configure(tmp_path_factory.mktemp("busy"), server.url, mode="observe")
    with Keyfence("--config", configuration) as keyfence:
        yield keyfence


@contextlib.contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Redis is busy until the end of the block."""
    runner = redis.UnixDomainSocketConnection(path=str(server.socket_path))
    runner.send_command("EVAL", "while true do end", 0)
    killer = redis.UnixDomainSocketConnection(path=str(server.socket_path))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while said(killer, "PING") != [BUSY]:
        assert time.monotonic() < deadline
    yield
    assert said(killer, "SCRIPT KILL") == [b"OK"]
    killer.disconnect()
    with pytest.raises(redis.ResponseError):
        runner.read_response()
    runner.disconnect()


def said(connection: redis.Connection, *commands: str) -> list[object]:
    """The replies, each awaited before the next command; of an error, its first word."""
    replies: list[object] = []
    for command in commands:
        connection.send_command(*command.split())
        try:
            replies.append(connection.read_response())
        except redis.exceptions.ExecAbortError:
            replies.append(ABORTED)
        except redis.ResponseError as error:
            replies.append(str(error).split()[0])
    return replies


@contextlib.contextmanager
def client(keyfence: Keyfence, **options: object) -> Iterator[redis.Connection]:
    """A client whose last command went over a shared connection. With RESP2, it has none of its own: HELLO
    would have told it the id of one, which is kept."""
    host, port = keyfence.address("CubeMaster")
    settings = {"host": host, "port": port, "driver_info": None, "protocol": 2} | options
    connection = redis.Connection(**settings)  # type: ignore[arg-type]
    try:
        said(connection, "DEL k", "GET k")
        yield connection
    finally:
        connection.disconnect()


@pytest.mark.parametrize("settings", [{}, {"client_name": "me"}, {"protocol": 3}], ids=str)
def test_a_transaction_that_begins_while_redis_is_busy_is_aborted_by_redis(
    server: RedisServer, keyfence: Keyfence, settings: dict[str, object]
) -> None:
    with client(keyfence, **settings) as one:
        with busy(server):
            assert said(one, "MULTI", "SET k v") == [b"OK", BUSY]
        assert said(one, "SET k w", "EXEC", "GET k") == [b"QUEUED", ABORTED, None]
        assert said(one, "CLIENT GETNAME") == [settings.get("client_name", "").encode() or None]


def test_a_watch_that_begins_while_redis_is_busy_holds(server: RedisServer, keyfence: Keyfence) -> None:
    with client(keyfence) as one:
        with busy(server):
            assert said(one, "WATCH k") == [b"OK"]
        with server.client() as other:
            other.set("k", "theirs")
        assert said(one, "MULTI", "SET k mine", "EXEC") == [b"OK", b"QUEUED", None]


def test_a_client_of_another_database_is_closed_rather_than_left_without_its_transaction(
    server: RedisServer, keyfence: Keyfence
) -> None:
    with client(keyfence, db=9) as one, busy(server):
        (refusal,) = said(one, "MULTI")
        assert refusal == "keyfence:"
        with pytest.raises(redis.ConnectionError):
            said(one, "SET k v")
