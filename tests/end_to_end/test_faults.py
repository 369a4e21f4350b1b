"""Redis dies, clients vanish, readers are slow: nothing leaks or hangs, and every reply finds its client."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer
from tests.clients.running import (
    ROUTE,
    ask,
    configure,
    eventually,
    metric,
    normal_clients,
    open_files,
    resident_bytes,
    settle,
)
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, free_port, running_redis
from tests.session.sessions import replies

Start = Callable[..., Keyfence]
GET = encode.command("HGETALL", ROUTE)
# One outage or several: the reasons, and the line at its end.
OUTAGE = (
    r"\A((keyfence: upstream \S+ is unreachable: .*\n)+"
    r"(keyfence: upstream \S+ is up again after .*\n(keyfence: the upstream does not list .*\n)?|\Z))*\Z"
)
REFUSED = encode.command("GET", "cube:v1:master:node:metric:n1")  # by CubeProxy


@pytest.fixture
def start_one() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of one version, because the fate of connections does not depend on the version."""
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(running_redis(**options))


def dedicated(folder: Path, url: str, mode: str) -> Path:
    """Every client has a dedicated upstream connection; tests/adversity covers both kinds."""
    return configure(folder, url, f"upstream: {{url: '{url}', mode: dedicated}}", mode=mode)


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keyfence, RedisServer]]:
    """keyfence in observe and a Redis, for tests that leave both alive. Checks for leaks at the end."""
    with running_redis(tcp=True) as server:
        config = dedicated(tmp_path_factory.mktemp("observe"), server.url, "observe")
        with Keyfence("--config", config) as keyfence:
            settle(keyfence)
            before = open_files(keyfence)
            yield keyfence, server
            check_for_leaks(keyfence, before)
            eventually(lambda: only_the_prober_is_left(server), "Redis has no clients left")


@pytest.fixture
def shared(_shared: tuple[Keyfence, RedisServer]) -> tuple[Keyfence, RedisServer]:
    _shared[1].clear()
    return _shared


def check_for_leaks(keyfence: Keyfence, before: Counter[str]) -> None:
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "all clients are gone")
    eventually(lambda: not (open_files(keyfence) - before), "nothing is open that was not before")
    assert metric(keyfence, "keyfence_internal_errors_total") == 0


@pytest.fixture
def tcp_redis(start_one: Callable[..., RedisServer]) -> RedisServer:
    return start_one(tcp=True)


@pytest.fixture
def keyfence(tcp_redis: RedisServer, start_keyfence: Start, tmp_path: Path) -> Iterator[Keyfence]:
    """keyfence in enforce. Checks after the test that none of its connections remains."""
    one = start_keyfence("--config", dedicated(tmp_path, tcp_redis.url, "enforce"), expect_stderr=OUTAGE)
    settle(one)
    before = open_files(one)
    yield one
    check_for_leaks(one, before)


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 20):
            data += chunk
    return data


def vanish(connection: socket.socket) -> None:
    """Closes with a reset, as a killed process with unread data does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def only_the_prober_is_left(server: RedisServer) -> bool:
    return normal_clients(server) <= 1


# -- Redis dies


def test_redis_dies_and_returns_on_the_same_port(
    keyfence: Keyfence, tcp_redis: RedisServer, start_one: Callable[..., RedisServer]
) -> None:
    with keyfence.connect("CubeMaster") as idle, keyfence.connect("CubeMaster") as waiting:
        idle.sendall(GET)
        assert idle.recv(100) == b"*0\r\n"
        tcp_redis.pause()  # so that requests sent from now on stay outstanding
        waiting.sendall(GET * 10 + encode.command("KEYS", "*") + GET)
        eventually(
            lambda: metric(keyfence, "keyfence_commands_total") >= 13, "every command has been evaluated"
        )
        tcp_redis.kill()
        assert read_to_end(waiting) == b""
        assert read_to_end(idle) == b""
    eventually(lambda: ask(keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(GET)  # which waits, because the outage has only begun
        start_one(arguments=["--port", str(tcp_redis.port), "--bind", "127.0.0.1"])
        eventually(lambda: ask(keyfence, "/readyz")[0] == 200, "keyfence is ready again")
        assert connection.recv(1000) in (b"", b"*0\r\n")  # closed, if the new Redis took longer than the wait
    down, *reasons, up = keyfence.stderr().splitlines()
    for line in (down, *reasons, up):
        assert re.match(r"keyfence: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ upstream redis://127", line)
    assert all(" is unreachable: " in line for line in (down, *reasons))
    assert re.search(r" is up again after [0-9.]+ s$", up)


@pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["one process", "workers"])
def test_an_outage_logs_one_line_at_its_start_and_one_at_its_end(
    more: tuple[str, ...], start_keyfence: Start, start_one: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """The number of workers and clients does not matter."""
    server = start_one(tcp=True)
    port = server.port
    keyfence = start_keyfence(
        "--config", configure(tmp_path, server.url, *more, mode="enforce"), expect_stderr=OUTAGE
    )
    for _ in range(2):
        server.kill()
        eventually(lambda: ask(keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
        for _ in range(5):
            with keyfence.connect("CubeMaster") as connection:
                connection.sendall(GET)
        server = start_one(arguments=["--port", str(port), "--bind", "127.0.0.1"])
        eventually(lambda: ask(keyfence, "/readyz")[0] == 200, "keyfence is ready again")
    ups = [line for line in keyfence.stderr().splitlines() if "is up again" in line]
    assert len(ups) == 2


def test_redis_is_killed_in_the_middle_of_a_pipeline(keyfence: Keyfence, tcp_redis: RedisServer) -> None:
    """Every reply that arrived is correct; the others are missing."""
    pipeline = b"".join(encode.command("ECHO", number) for number in range(20_000))
    with keyfence.connect("CubeMaster") as connection:

        def send() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(pipeline)

        sender = threading.Thread(target=send)
        sender.start()
        data = connection.recv(65536)
        tcp_redis.kill()
        data += read_to_end(connection)
        sender.join()
    framed = replies(data[: _last_whole(data)])
    errors = [answer for answer in framed if answer.startswith(b"-")]
    good = framed[: len(framed) - len(errors)]
    assert good == [b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(len(good))]
    assert all(b"is gone" in error for error in errors)


def _last_whole(data: bytes) -> int:
    """Returns the end of the last complete reply. A lost upstream may leave a part of one."""
    framer = ReplyFramer()
    at = end = 0
    while at < len(data):
        at = framer.advance(data, at, 1)
        if framer.at_boundary:
            end = at
    return end


def test_keyfence_starts_while_the_upstream_is_down(
    start_keyfence: Start, start_one: Callable[..., RedisServer], tmp_path: Path
) -> None:
    port = free_port()
    path = dedicated(tmp_path, f"redis://127.0.0.1:{port}", "enforce")
    keyfence = start_keyfence("--config", path, expect_stderr=OUTAGE)
    assert ask(keyfence, "/readyz")[0] == 503
    assert ask(keyfence, "/healthz")[0] == 200
    with keyfence.connect("CubeProxy") as connection:
        connection.sendall(REFUSED + GET)
        data = read_to_end(connection)
    assert len(replies(data)) == 1
    assert data.startswith(b"-NOPERM")
    start_one(arguments=["--port", str(port), "--bind", "127.0.0.1"])
    eventually(lambda: ask(keyfence, "/readyz")[0] == 200, "keyfence is ready")
    with keyfence.connect("CubeProxy") as connection:
        connection.sendall(GET)
        assert connection.recv(100) == b"*0\r\n"


def test_a_spliced_connection_logs_why_it_closes(start_keyfence: Start) -> None:
    keyfence = start_keyfence(
        *("--splice", "--listen", "127.0.0.1:0", "--admin", "none"),
        *("--upstream", f"redis://127.0.0.1:{free_port()}"),
        expect_stderr="is unreachable",
    )
    with keyfence.connect() as connection:
        connection.sendall(b"PING\r\n")
        assert read_to_end(connection) == b""


# -- clients vanish


def test_clients_vanish_at_any_moment(keyfence: Keyfence, tcp_redis: RedisServer) -> None:
    beginnings = [
        b"",
        b"*2\r\n$7\r\nHGETALL\r\n$100\r\ncube",
        GET * 5_000,
        GET * 100 + REFUSED * 10,
        encode.command("MULTI") + GET,
        encode.command("AUTH", "x", "y") + GET,
        b"*1\r\n+garbage",
        encode.command("QUIT") + GET,
    ]
    for leave in (vanish, socket.socket.close):
        for beginning in beginnings * 3:
            connection = keyfence.connect("CubeProxy")
            connection.sendall(beginning)
            leave(connection)
    with keyfence.connect("CubeProxy") as connection:
        connection.sendall(GET)
        assert connection.recv(100) == b"*0\r\n"
    eventually(lambda: only_the_prober_is_left(tcp_redis), "Redis has no clients left")


@pytest.mark.parametrize("leave", [vanish, socket.socket.close], ids=["reset", "close"])
def test_a_vanished_client_takes_nothing_from_a_list(
    shared: tuple[Keyfence, RedisServer], leave: Callable[[socket.socket], None]
) -> None:
    keyfence, server = shared
    with server.client() as direct:
        for behind in (b"", GET, b"QUIT\r\n"):
            connection = keyfence.connect("CubeMaster")
            connection.sendall(encode.command("BLPOP", "queue", 0) + behind)
            eventually(lambda: direct.info("clients")["blocked_clients"] == 1, "it waits")
            leave(connection)
            eventually(lambda: direct.info("clients")["blocked_clients"] == 0, "no client is blocked")
        assert direct.rpush("queue", "work") == 1
        assert direct.llen("queue") == 1
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "all connections are closed")


def test_vanished_subscribers_leave_nothing_behind(shared: tuple[Keyfence, RedisServer]) -> None:
    keyfence, server = shared
    with server.client() as direct:
        for leave in (vanish, socket.socket.close):
            connection = keyfence.connect("CubeMaster")
            connection.sendall(encode.command("SUBSCRIBE", "news"))
            assert connection.recv(100).startswith(b"*3\r\n$9\r\nsubscribe")
            leave(connection)
            eventually(lambda: direct.publish("news", "x") == 0, "no client subscribes")
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "all connections are closed")


# -- slow readers


def test_a_client_that_does_not_read_delays_no_other_and_costs_little(
    shared: tuple[Keyfence, RedisServer],
) -> None:
    keyfence, server = shared
    size = 100_000_000
    with server.client() as direct:
        direct.setrange("big", size - 1, b"!")
        with keyfence.connect("CubeMaster") as slow, keyfence.connect("CubeMaster") as quick:
            quick.sendall(b"PING\r\n")
            assert quick.recv(100) == b"+PONG\r\n"
            before = resident_bytes(keyfence)
            slow.sendall(encode.command("GET", "big"))
            assert slow.recv(1) == b"$"
            for _ in range(300):
                quick.sendall(b"PING\r\n")
                assert quick.recv(100) == b"+PONG\r\n"
            assert resident_bytes(keyfence) - before < 30_000_000
            received = 1
            while received < size + len(f"${size}\r\n\r\n"):
                received += len(slow.recv(1 << 20))
            slow.sendall(b"PING\r\n")
            assert slow.recv(100) == b"+PONG\r\n"


def test_a_redis_that_does_not_read_slows_its_clients_down(
    shared: tuple[Keyfence, RedisServer],
) -> None:
    keyfence, server = shared
    value = b"x" * 1_000_000
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(encode.command("SET", "k", value))
        assert connection.recv(100) == b"+OK\r\n"
        before = resident_bytes(keyfence)
        server.pause()
        sent = threading.Event()

        def send() -> None:
            connection.sendall(encode.command("SET", "k", value) * 100)
            sent.set()

        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(50):
            assert ask(keyfence, "/healthz")[0] == 200
        assert not sent.is_set()
        assert resident_bytes(keyfence) - before < 30_000_000
        server.resume()
        data = b""
        while len(data) < 500:
            data += connection.recv(1000)
        sender.join(PATIENCE_SECONDS)
        assert data == b"+OK\r\n" * 100
