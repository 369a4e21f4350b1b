"""keyfence with workers: what clients, Redis and operators notice when processes start and end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.maint_notifications import MaintNotificationsConfig

from keyfence.resp import encode
from tests.clients.running import ask, configure, decisions, eventually, metric
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis

Start = Callable[..., Keyfence]
COUNTER = "cube:v1:master:counter"  # by CubeMaster, who may write whatever lies in its scope
INCR = encode.command("INCR", COUNTER)
REFUSED = encode.command("GET", "cube:v1:master:node:metric:n1")  # by CubeProxy


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One Redis version: the tests are about processes."""
    with running_redis() as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path, server: RedisServer) -> Path:
    server.clear()
    return tmp_path


def workers(keyfence: Keyfence) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(ask(keyfence, "/workers")[1])
    return listed


def pids(keyfence: Keyfence) -> set[int]:
    return {worker["pid"] for worker in workers(keyfence) if worker["state"] == "serving"}


def reported(keyfence: Keyfence) -> tuple[int, dict[str, int]]:
    """The number of violations of scope.read in the report."""
    (row,) = [row for row in json.loads(ask(keyfence, "/report")[1]) if row["rule"] == "scope.read"]
    return row["count"], row["actions"]


def is_alive(pid: int) -> bool:
    """A zombie counts as gone: no process may be left to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def restart(keyfence: Keyfence) -> tuple[int, str]:
    return ask(keyfence, "/-/restart", {})


class Counting:
    """Clients that INCR one counter, each on one connection at a time, and send nothing twice."""

    def __init__(self, address: tuple[str, int], clients: int) -> None:
        self.acknowledged = 0
        self.unknown = 0  # sent, and the connection ended before the answer
        self.refused: list[str] = []
        self.connections = 0
        self._address = address
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._count) for _ in range(clients)]

    def __enter__(self) -> Counting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def wait_for(self, more: int) -> None:
        """Waits until this many more commands are acknowledged."""
        goal = self.acknowledged + more
        eventually(lambda: self.acknowledged >= goal, f"{goal} are acknowledged; {self.acknowledged} are")

    def _count(self) -> None:
        while not self._stop.is_set():
            try:
                with socket.create_connection(self._address, timeout=PATIENCE_SECONDS) as connection:
                    with self._lock:
                        self.connections += 1
                    self._converse(connection)
            except OSError as exc:
                self.refused.append(repr(exc))

    def _converse(self, connection: socket.socket) -> None:
        while not self._stop.is_set():
            if select.select([connection], [], [], 0)[0]:
                return  # closed between two commands, which redis-py and others look for as well
            try:
                connection.sendall(INCR)
                answer = connection.recv(100)
            except ConnectionError:
                answer = b""
            with self._lock:
                if answer.startswith(b":"):
                    self.acknowledged += 1
                else:
                    self.unknown += 1
            if not answer.startswith(b":"):
                return


def counted(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.get(COUNTER) or 0)


# -- together


def test_workers_share_the_load_and_the_metrics_cover_all(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 2", mode="observe"))
    assert len(pids(keyfence)) == 2
    connections = [keyfence.connect("CubeProxy") for _ in range(40)]
    for connection in connections:
        connection.sendall(REFUSED)
        assert connection.recv(100) == b"$-1\r\n"
    assert metric(keyfence, "keyfence_commands_total", command="GET") == 40
    assert metric(keyfence, "keyfence_violations_total", rule="scope.read") == 40
    assert metric(keyfence, "keyfence_connections_open") == 40
    assert metric(keyfence, "keyfence_workers") == 2
    assert reported(keyfence) == (40, {"observed": 40})
    shares = [worker["connections"] for worker in workers(keyfence)]
    assert sum(shares) == 40
    assert min(shares) > 0
    assert len({json.dumps(worker["revisions"]) for worker in workers(keyfence)}) == 1
    for connection in connections:
        connection.close()
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "they are gone")
    eventually(lambda: sum(1 + int(str(line["merged"])) for line in decisions(folder)) >= 40, "all is logged")


def test_one_worker_below_a_parent(start_keyfence: Start, folder: Path, server: RedisServer) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url), "--workers", "1")
    (pid,) = pids(keyfence)
    assert pid != keyfence.process.pid
    with keyfence.client("CubeMaster") as client:
        assert client.incr(COUNTER) == 1


def test_without_workers_one_process_serves_and_says_so(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url))
    assert pids(keyfence) == {keyfence.process.pid}
    status, body = restart(keyfence)
    assert (status, "--workers 1" in body) == (400, True)


def test_a_second_keyfence_does_not_share_the_address(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    first = start_keyfence("--config", configure(folder, server.url, "workers: 2"))
    host, port = first.address("CubeMaster")
    with pytest.raises(AssertionError, match="the address is already in use"):
        start_keyfence(
            "--config", configure(folder, server.url, "workers: 2"),
            "--listen", f"{host}:{port}",
        )  # fmt: skip


def test_unix_sockets_are_shared_too(start_keyfence: Start, folder: Path, server: RedisServer) -> None:
    path = folder / "keyfence.sock"
    config = configure(folder, server.url, "workers: 2")
    config.write_text(
        config.read_text().replace(
            "listeners:\n", f'listeners:\n  - {{listen: "unix:{path}", service: CubeMaster}}\n'
        )
    )
    keyfence = start_keyfence("--config", config)
    with redis.Redis(unix_socket_path=str(path)) as client:
        assert client.incr(COUNTER) == 1
    assert restart(keyfence)[0] == 200
    with redis.Redis(unix_socket_path=str(path)) as client:
        assert client.incr(COUNTER) == 2


# -- some end, and others take their place


def test_a_rolling_restart_under_load_loses_no_command(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 2"))
    before = pids(keyfence)
    with Counting(keyfence.address("CubeMaster"), clients=6) as counting:
        counting.wait_for(50)
        for _ in range(2):
            status, body = restart(keyfence)
            assert (status, json.loads(body)) == (200, {"restarted": 2})
            counting.wait_for(50)
    after = pids(keyfence)
    assert len(after) == 2
    assert not before & after
    assert counting.refused == []
    assert counting.connections > 6, "nobody noticed"
    # A connection that was closed between two commands may have had one under way. It has run nowhere.
    assert counted(server) == counting.acknowledged
    assert counting.unknown <= 3
    assert metric(keyfence, "keyfence_worker_restarts_total") == 0


NOTIFIED = {"protocol": 3, "maint_notifications_config": MaintNotificationsConfig(enabled=True)}


@pytest.mark.parametrize(
    ("options", "most_failed"), [({"protocol": 2}, 2), (NOTIFIED, 0)], ids=["plain", "notified"]
)
def test_redis_py_goes_on_through_a_rolling_restart(
    start_keyfence: Start, folder: Path, server: RedisServer, options: dict[str, object], most_failed: int
) -> None:
    """Without notices, a connection may be closed while a command is under way, which has run nowhere."""
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 2"))
    acknowledged = failed = 0
    stop = threading.Event()

    def work() -> None:
        nonlocal acknowledged, failed
        no_retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        with keyfence.client("CubeMaster", retry=no_retry, **options) as client:
            while not stop.is_set():
                try:
                    client.incr(COUNTER)
                    acknowledged += 1
                except redis.ConnectionError:
                    failed += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: acknowledged > 20, "it counts")
        os.kill(keyfence.process.pid, signal.SIGUSR2)
        keyfence.wait_for_line("keyfence: restarted 2 workers")
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
    assert counted(server) == acknowledged
    assert failed <= most_failed


def test_clients_that_wait_to_be_accepted_are_served_by_the_next_worker(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 2"))
    stopped = pids(keyfence)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)  # so that connections stay in its queue
    waiting = []
    try:
        for _ in range(20):
            connection = keyfence.connect("CubeMaster")
            connection.sendall(INCR)
            waiting.append(connection)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    answers = [connection.recv(100) for connection in waiting]
    assert all(answer.startswith(b":") for answer in answers)
    assert counted(server) == 20
    for connection in waiting:
        connection.close()
    eventually(lambda: metric(keyfence, "keyfence_worker_restarts_total") == 2, "both were replaced")
    keyfence.expect_stderr = (
        r"(?s)worker \d+ has ended \(killed by SIGKILL\); another takes its place\n.*"
        r"worker \d+ serves in place of \d+ after [0-9.]+ s\n"
    )


def test_a_killed_worker_is_replaced_and_what_it_counted_stays(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 1", mode="observe"))
    (killed,) = pids(keyfence)
    with keyfence.connect("CubeProxy") as connection:
        connection.sendall(REFUSED)
        assert connection.recv(100) == b"$-1\r\n"
        assert metric(keyfence, "keyfence_violations_total", rule="scope.read") == 1
        os.kill(killed, signal.SIGKILL)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    eventually(lambda: pids(keyfence) - {killed}, "another worker serves")
    assert metric(keyfence, "keyfence_violations_total", rule="scope.read") == 1
    assert metric(keyfence, "keyfence_worker_restarts_total") == 1
    assert metric(keyfence, "keyfence_connections_open") == 0
    with keyfence.connect("CubeProxy") as connection:
        connection.sendall(REFUSED)
        assert connection.recv(100) == b"$-1\r\n"
    assert metric(keyfence, "keyfence_violations_total", rule="scope.read") == 2
    assert metric(keyfence, "keyfence_connections_accepted_total") == 2
    assert reported(keyfence) == (2, {"observed": 2})
    keyfence.expect_stderr = "has ended"


def test_a_worker_that_gets_sigterm_drains_and_is_replaced(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 1"))
    (before,) = pids(keyfence)
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(encode.command("BLPOP", "cube:v1:master:list", "0"))
        eventually(lambda: _blocked(server) == 1, "it blocks")
        os.kill(before, signal.SIGTERM)
        with server.client() as client:
            client.rpush("cube:v1:master:list", "x")
        assert connection.recv(100).endswith(b"$1\r\nx\r\n")
    eventually(lambda: pids(keyfence) - {before}, "another worker serves")
    keyfence.expect_stderr = r"has ended \(exit code 0\)"


def test_a_worker_that_is_killed_while_its_predecessor_drains_is_replaced(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 1", "drain: 60s"))
    (before,) = pids(keyfence)
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(encode.command("BLPOP", "cube:v1:master:list", "0"))
        eventually(lambda: _blocked(server) == 1, "it blocks")
        os.kill(keyfence.process.pid, signal.SIGUSR2)
        eventually(lambda: _is_draining(keyfence, before), "the former drains")
        (killed,) = pids(keyfence)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: pids(keyfence) - {killed}, "another worker serves")
        assert _is_draining(keyfence, before)
        with server.client() as client:
            client.rpush("cube:v1:master:list", "x")
        assert connection.recv(100).endswith(b"$1\r\nx\r\n")
    keyfence.wait_for_line("keyfence: restarted 1 worker")
    keyfence.expect_stderr = r"has ended \(killed by SIGKILL\)"


def _is_draining(keyfence: Keyfence, pid: int) -> bool:
    return any(worker["pid"] == pid and worker["state"] == "draining" for worker in workers(keyfence))


def _blocked(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("clients")["blocked_clients"])


# -- all at once


def test_break_glass_reaches_every_worker_and_those_that_come_later(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 2", mode="enforce"))

    def answers() -> set[bytes]:
        found = set()
        for _ in range(12):
            with keyfence.connect("CubeProxy") as connection:
                connection.sendall(REFUSED)
                found.add(connection.recv(1000)[:7])
        return found

    assert answers() == {b"-NOPERM"}
    assert ask(keyfence, "/-/observe", {"for": 600})[0] == 200
    assert answers() == {b"$-1\r\n"}
    assert metric(keyfence, "keyfence_break_glass_activations_total") == 1
    assert restart(keyfence)[0] == 200
    assert answers() == {b"$-1\r\n"}
    assert ask(keyfence, "/-/observe", method="DELETE")[0] == 200
    assert answers() == {b"-NOPERM"}
    keyfence.expect_stderr = "break-glass"


def test_break_glass_reaches_a_worker_that_drains(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    config = configure(folder, server.url, "workers: 1", "drain: 60s", mode="enforce")
    keyfence = start_keyfence("--config", config)
    (before,) = pids(keyfence)
    with keyfence.connect("CubeProxy") as connection:

        def answer(request: bytes) -> bytes:
            connection.sendall(request)
            return connection.recv(1000)

        assert answer(b"MULTI\r\n") == b"+OK\r\n"  # so that the client may stay
        assert answer(REFUSED).startswith(b"-NOPERM")
        os.kill(keyfence.process.pid, signal.SIGUSR2)
        eventually(lambda: _is_draining(keyfence, before), "it drains")
        assert ask(keyfence, "/-/observe", {"for": 600})[0] == 200
        assert answer(REFUSED) == b"+QUEUED\r\n"
        assert ask(keyfence, "/-/observe", method="DELETE")[0] == 200
        assert answer(REFUSED).startswith(b"-NOPERM")
        assert answer(b"DISCARD\r\n") == b"+OK\r\n"
    keyfence.wait_for_line("keyfence: restarted 1 worker")
    keyfence.expect_stderr = "break-glass"


def test_break_glasses_are_bounded(start_keyfence: Start, folder: Path, server: RedisServer) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, mode="enforce"))
    for _ in range(100):
        assert ask(keyfence, "/-/observe", {"for": 600})[0] == 200
    status, body = ask(keyfence, "/-/observe", {"for": 600})
    assert (status, json.loads(body)["error"][:24]) == (400, "100 are open already; en")
    keyfence.expect_stderr = "break-glass"


# -- the end


def test_sigterm_to_the_parent_drains_its_workers(
    start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 2", "drain: 30s"))
    with keyfence.connect("CubeMaster") as blocked, keyfence.connect("CubeMaster") as idle:
        idle.sendall(INCR)
        assert idle.recv(100) == b":1\r\n"
        blocked.sendall(encode.command("BLPOP", "cube:v1:master:list", "0"))
        eventually(lambda: _blocked(server) == 1, "it blocks")
        keyfence.process.send_signal(signal.SIGTERM)
        assert idle.recv(100) == b"", "idle clients are let go"
        assert ask(keyfence, "/readyz")[0] == 503
        with server.client() as client:
            client.rpush("cube:v1:master:list", "x")
        assert blocked.recv(100).endswith(b"$1\r\nx\r\n")
        assert blocked.recv(100) == b""
    assert keyfence.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["alone", "workers"])
def test_connections_are_refused_while_keyfence_drains(
    more: tuple[str, ...], start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    """With workers they would wait at their parent's sockets, and be reset at the end. A client that takes
    this for a failed login may never connect again, as phpredis 5.3."""
    keyfence = start_keyfence("--config", configure(folder, server.url, *more, "drain: 10m"))
    with keyfence.connect("CubeMaster") as blocked:
        blocked.sendall(encode.command("BLPOP", "cube:v1:master:list", "0"))
        eventually(lambda: _blocked(server) == 1, "it blocks")
        keyfence.process.send_signal(signal.SIGTERM)
        eventually(lambda: _is_refused(keyfence), "connections are refused")
        assert keyfence.process.poll() is None, "it drains"
        keyfence.process.send_signal(signal.SIGTERM)
        assert keyfence.process.wait(PATIENCE_SECONDS) == 0


def _is_refused(keyfence: Keyfence) -> bool:
    try:
        keyfence.connect("CubeMaster").close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("more", [(), ("workers: 1",)], ids=["alone", "workers"])
def test_a_blocked_client_is_closed_at_the_deadline(
    more: tuple[str, ...], start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, *more, "drain: 500ms"))
    with keyfence.connect("CubeMaster") as blocked:
        blocked.sendall(encode.command("BLPOP", "cube:v1:master:list", "0"))
        eventually(lambda: _blocked(server) == 1, "it blocks")
        begun = time.monotonic()
        keyfence.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionResetError):
            assert blocked.recv(100) == b""
        assert time.monotonic() - begun > 0.4
    assert keyfence.process.wait(PATIENCE_SECONDS) == 0
    eventually(lambda: _blocked(server) == 0, "Redis knows that nobody waits")


@pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["alone", "workers"])
def test_a_second_signal_ends_it_at_once(
    more: tuple[str, ...], start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, *more, "drain: 10m"))
    with keyfence.connect("CubeMaster") as blocked:
        blocked.sendall(encode.command("BLPOP", "cube:v1:master:list", "0"))
        eventually(lambda: _blocked(server) == 1, "it blocks")
        keyfence.process.send_signal(signal.SIGTERM)
        eventually(lambda: ask(keyfence, "/readyz")[0] == 503, "it drains")
        keyfence.process.send_signal(signal.SIGTERM)
        assert keyfence.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("more", [(), ("workers: 1",)], ids=["alone", "workers"])
def test_a_transaction_that_has_begun_may_end(
    more: tuple[str, ...], start_keyfence: Start, folder: Path, server: RedisServer
) -> None:
    keyfence = start_keyfence("--config", configure(folder, server.url, *more, "drain: 30s"))
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(encode.command("MULTI") + INCR)
        replies = b""
        while len(replies) < len(b"+OK\r\n+QUEUED\r\n"):
            replies += connection.recv(100)
        keyfence.process.send_signal(signal.SIGTERM)
        eventually(lambda: ask(keyfence, "/readyz")[0] == 503, "it drains")
        time.sleep(0.3)  # past the moment in which idle clients are let go
        connection.sendall(encode.command("EXEC"))
        assert connection.recv(100) == b"*1\r\n:1\r\n"
        assert connection.recv(100) == b""
    assert keyfence.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["reads at once", "reads slowly"])
def test_a_client_that_never_stops_comes_to_its_end(
    start_keyfence: Start, folder: Path, server: RedisServer, pause: float
) -> None:
    """An endless pipeline is cut between two commands, and every outstanding reply arrives."""
    keyfence = start_keyfence("--config", configure(folder, server.url, "workers: 1", "drain: 60s"))
    received = bytearray()
    ended = threading.Event()
    with keyfence.connect("CubeMaster") as connection:

        def send() -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    connection.sendall(INCR * 50)

        sender = threading.Thread(target=send)
        sender.start()
        received += connection.recv(1 << 16)
        time.sleep(1)  # many replies wait for the client
        keyfence.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(1 << 16):
                received += chunk
                time.sleep(pause)
        ended.set()
        sender.join(PATIENCE_SECONDS)
    assert keyfence.process.wait(PATIENCE_SECONDS) == 0
    assert received.endswith(b"\r\n")
    assert received.count(b":") == counted(server)


def test_workers_end_with_a_parent_that_is_killed(folder: Path, server: RedisServer) -> None:
    config = configure(folder, server.url, "workers: 2", "drain: 200ms")
    left: set[int] = set()
    keyfence = Keyfence("--config", config)
    with contextlib.suppress(AssertionError), keyfence:  # which is about its exit code
        left = pids(keyfence)
        keyfence.process.kill()
    assert len(left) == 2
    eventually(lambda: not any(map(is_alive, left)), "the workers are gone")
