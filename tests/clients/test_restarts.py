"""redis-py, ioredis and node-redis, with their default settings, survive a restart of Redis without an
error."""

from __future__ import annotations

import contextlib
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.running import ask, configure, eventually, metric
from tests.clients.test_node_clients import NODE
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis

KEY = "any:key"
SERVICE = "CubeMaster"
# Clients wait for Redis as long as the tests do, so that a slow machine changes nothing.
PATIENT = int(PATIENCE_SECONDS)
OUTAGES = r"(unreachable|\A\Z)"


class Stage(NamedTuple):
    """A keyfence before a Redis that can be killed and started again."""

    keyfence: Keyfence
    redis: list[RedisServer]
    start: Callable[[], RedisServer]

    def kill(self) -> None:
        self.redis.pop().kill()
        eventually(lambda: ask(self.keyfence, "/readyz")[0] == 503, "keyfence knows that Redis is away")

    def begin_again(self) -> None:
        self.redis.append(self.start())


@contextlib.contextmanager
def running(folder: Path, connect_timeout: str, more: str = "") -> Iterator[Stage]:
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(running_redis(tcp=True))
        again = ["--port", str(first.port), "--bind", "127.0.0.1"]
        upstream = f"upstream: {{url: '{first.url}', connect_timeout: {connect_timeout}{more}}}"
        config = configure(folder, first.url, upstream, mode="observe")
        with Keyfence("--config", config, expect_stderr=OUTAGES) as keyfence:
            yield Stage(keyfence, [first], lambda: servers.enter_context(running_redis(arguments=again)))


class Node:
    """A client in node, which sets a key for each line that it gets."""

    def __init__(self, library: str, address: tuple[str, int]) -> None:
        words = ["node", "restart.js", library, f"{address[0]}:{address[1]}", KEY]
        self._process = subprocess.Popen(
            words, cwd=NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()
        assert self.line() == "connected"

    def _pump(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def line(self) -> str:
        return self._lines.get(timeout=PATIENCE_SECONDS)

    def set(self, value: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{value}\n")

    def notices_that_it_is_closed(self) -> None:
        """node-redis sends what it is given until then, and reports it as lost."""
        assert self.line() == "reconnecting"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(params=["ioredis", "redis"])
def library(request: pytest.FixtureRequest) -> str:
    if not shutil.which("node") or not (NODE / "node_modules").is_dir():
        pytest.skip("no node here, or `npm ci` was not run in tests/node")
    return str(request.param)


@pytest.mark.parametrize("more", ["", ", mode: dedicated"], ids=["shared", "dedicated"])
def test_redis_py_survives_a_restart(more: str, tmp_path: Path) -> None:
    with running(tmp_path, f"{PATIENT}s", more) as stage, ThreadPoolExecutor() as threads:
        client = stage.keyfence.client(SERVICE)
        client.set(KEY, "0")
        stage.kill()
        done: Future[object] = threads.submit(client.set, KEY, "1")
        eventually(lambda: client.connection_pool, "it is sent")
        stage.begin_again()
        assert done.result(PATIENCE_SECONDS) is True
        assert client.get(KEY) == b"1"
        client.close()


@pytest.mark.parametrize("more", ["", ", mode: dedicated"], ids=["shared", "dedicated"])
def test_a_node_client_survives_a_restart(library: str, more: str, tmp_path: Path) -> None:
    with running(tmp_path, f"{PATIENT}s", more) as stage:
        client = Node(library, stage.keyfence.address(SERVICE))
        stage.kill()
        if "dedicated" in more:
            client.notices_that_it_is_closed()
        client.set("1")
        stage.begin_again()
        assert client.line() == "OK"
        client.close()


def test_a_node_client_survives_a_long_outage_that_it_waits_out(library: str, tmp_path: Path) -> None:
    """keyfence has closed it, so it keeps its command until it can connect again."""
    with running(tmp_path, "100ms") as stage:
        client = Node(library, stage.keyfence.address(SERVICE))
        stage.kill()
        eventually(
            lambda: metric(stage.keyfence, "keyfence_closures_total", reason="upstream_lost"), "it is closed"
        )
        client.notices_that_it_is_closed()
        client.set("1")
        stage.begin_again()
        assert client.line() == "OK"
        client.close()


def test_a_command_that_may_have_run_is_not_answered_by_keyfence(tmp_path: Path) -> None:
    with running(tmp_path, f"{PATIENT}s") as stage, stage.keyfence.connect(SERVICE) as connection:
        connection.sendall(b"SET any:key 1\r\n")
        assert connection.recv(100) == b"+OK\r\n"
        stage.redis[0].pause()
        connection.sendall(b"GET any:key\r\n")
        eventually(
            lambda: metric(stage.keyfence, "keyfence_commands_total", command="GET") == 1, "it is sent"
        )
        stage.kill()
        assert connection.recv(100) == b""


@pytest.mark.parametrize("more", ["", ", mode: dedicated"], ids=["shared", "dedicated"])
def test_a_command_whose_client_has_gone_is_not_sent_after_the_outage(more: str, tmp_path: Path) -> None:
    """A client that runs out of patience asks again. Redis would not have got its first command."""
    with running(tmp_path, f"{PATIENT}s", more) as stage:
        stage.kill()
        for _ in range(3):
            with stage.keyfence.connect(SERVICE) as connection:
                connection.sendall(b"INCR any:key\r\n")
                eventually(
                    lambda: metric(stage.keyfence, "keyfence_commands_total", command="INCR") > 0, "it waits"
                )
        with stage.keyfence.connect(SERVICE) as connection:
            connection.sendall(b"INCR any:key\r\n")
            stage.begin_again()
            assert connection.recv(100) == b":1\r\n"


def test_after_the_wait_a_command_closes_its_connection(tmp_path: Path) -> None:
    with running(tmp_path, "100ms") as stage:
        stage.kill()
        with stage.keyfence.connect(SERVICE) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100) == b""
