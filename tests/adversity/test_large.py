"""Requests too large to buffer: they stream through, and a refused one leaves nothing in Redis."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.adversity.stage import MIB, Stage, Wire, bulk
from tests.clients.running import eventually

# KEYFENCE_LONG=1 uses the full size.
LARGE = (512 if os.environ.get("KEYFENCE_LONG") else 64) * MIB
# The memory that keyfence may use for a streamed request: the buffers of both sides, not the request.
STREAMING_BYTES = 24 * MIB
CHUNK = b"x" * MIB


@pytest.fixture
def large(stage: Stage) -> Iterator[Stage]:
    """A stage whose Redis is emptied after each test, because all tests share it."""
    yield stage
    with stage.redis.client() as direct:
        direct.flushall()


class Peak:
    """Measures the peak of keyfence's memory within the block, above its start."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stop = threading.Event()
        self.bytes = 0

    def __enter__(self) -> Peak:
        before = self._stage.memory()

        def watch() -> None:
            while not self._stop.wait(0.01):
                self.bytes = max(self.bytes, self._stage.memory() - before)

        self._thread = threading.Thread(target=watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def send_value(client: Wire, size: int) -> None:
    for _ in range(size // MIB):
        client.socket.sendall(CHUNK)


def head(*words: str | bytes, more: int, size: int) -> bytes:
    """Returns the beginning of a request: these words, then a value's header; `more` arguments follow it."""
    arguments = b"".join(bulk(word) for word in words)
    return b"*%d\r\n" % (len(words) + 1 + more) + arguments + b"$%d\r\n" % size


def test_a_large_value_streams_through_with_little_memory(large: Stage) -> None:
    with large.client() as client, Peak(large) as peak:
        assert client.says("PING") == b"+PONG\r\n"
        client.socket.sendall(head("SET", "app:big", more=0, size=LARGE))
        send_value(client, LARGE)
        client.socket.sendall(b"\r\n")
        assert client.reply() == b"+OK\r\n"
        assert client.says("STRLEN", "app:big") == b":%d\r\n" % LARGE
    assert peak.bytes < STREAMING_BYTES, f"{peak.bytes / MIB:.0f} MiB for a request of {LARGE / MIB:.0f}"


def test_a_large_value_reaches_redis_only_after_its_evaluation(large: Stage) -> None:
    with large.client() as client:
        client.socket.sendall(head("SET", "app:timed:a", more=2, size=LARGE))
        send_value(client, LARGE)
        client.socket.sendall(b"\r\n" + bulk("EX"))
        assert large.value("app:timed:a") is None
        client.socket.sendall(bulk("60"))
        assert client.reply() == b"+OK\r\n"
    with large.redis.client() as direct:
        assert direct.strlen("app:timed:a") == LARGE


def test_a_large_value_refused_for_a_later_argument_leaves_nothing_and_the_client_usable(
    large: Stage,
) -> None:
    with large.client() as client, Peak(large) as peak:
        client.socket.sendall(head("SET", "app:timed:a", more=2, size=LARGE))
        send_value(client, LARGE)
        client.socket.sendall(b"\r\n" + bulk("EX") + bulk("999999"))
        assert client.reply().startswith(b"-NOPERM [ttl.range]")
        assert large.value("app:timed:a") is None
        assert client.says("SET", "app:a", "1") == b"+OK\r\n"
        assert client.says("GET", "app:a") == b"$1\r\n1\r\n"
    assert peak.bytes < STREAMING_BYTES, f"{peak.bytes / MIB:.0f} MiB for a request of {LARGE / MIB:.0f}"


def test_a_large_value_refused_for_its_key_is_dropped_on_arrival(large: Stage) -> None:
    with large.client() as client:
        client.socket.sendall(head("SET", "elsewhere", more=0, size=LARGE))
        send_value(client, LARGE)
        client.socket.sendall(b"\r\n")
        assert client.reply().startswith(b"-NOPERM [key.")
        assert client.says("SET", "app:a", "1") == b"+OK\r\n"
    with large.redis.client() as direct:
        assert direct.exists("elsewhere") == 0


def test_a_large_value_refused_inside_multi_aborts_the_transaction(large: Stage) -> None:
    with large.client() as client:
        assert client.says("MULTI") == b"+OK\r\n"
        assert client.says("SET", "app:a", "1") == b"+QUEUED\r\n"
        client.socket.sendall(head("SET", "app:timed:a", more=2, size=LARGE))
        send_value(client, LARGE)
        client.socket.sendall(b"\r\n" + bulk("EX") + bulk("999999"))
        assert client.reply().startswith(b"-NOPERM [ttl.range]")
        assert client.says("EXEC").startswith(b"-EXECABORT")
        assert large.value("app:a") is None
        assert large.value("app:timed:a") is None
        assert client.says("SET", "app:a", "2") == b"+OK\r\n"


def test_a_large_value_cut_by_a_vanishing_client_leaves_nothing(large: Stage) -> None:
    with large.client() as client:
        client.socket.sendall(head("SET", "app:big", more=0, size=LARGE))
        send_value(client, LARGE // 2)
        client.vanish()
    eventually(lambda: large.metric("connections_open") == 0, "it is forgotten")
    assert large.value("app:big") is None


def test_a_large_value_delays_no_other_client(large: Stage) -> None:
    with large.client() as client, large.client() as other:
        assert other.says("PING") == b"+PONG\r\n"
        client.socket.sendall(head("SET", "app:big", more=0, size=LARGE))
        for _ in range(LARGE // MIB):
            client.socket.sendall(CHUNK)
            assert other.says("ECHO", "x") == b"$1\r\nx\r\n"
        client.socket.sendall(b"\r\n")
        assert client.reply() == b"+OK\r\n"
