"""The limits of connections to an admin listener: number, time, memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from keyfence.admin import connections as admin_connections
from keyfence.admin.access import Access
from keyfence.admin.bounds import Bounds, Times
from keyfence.admin.server import Server, start_admin
from keyfence.net.addresses import Address
from keyfence.telemetry import operator_log as notices
from tests.admin.test_server import FakeControl
from tests.loops import own_loop

SOON = 0.05  # seconds: a limit that a test waits for
NEVER = 600.0
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = (
    b"POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    b"Content-Type: application/json\r\n\r\n"
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def _no_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_kinds", {})


class SlowControl(FakeControl):
    """Reloads when the test allows it, and has a report larger than any socket buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def reload(self) -> dict[str, object]:
        self.begun.set()
        await self.may_end.wait()
        return await super().reload()

    async def report(self) -> list[dict[str, object]]:
        return [{"x": "y" * 50_000_000}]


class Place:
    def __init__(
        self, server: Server, control: SlowControl, counts: Counter[str], times: SimpleNamespace
    ) -> None:
        self.times = times  # may be changed: a limit that is short must not hold for what comes before
        self.control = control
        self.counts = counts
        self._port = int(server.url.rpartition(":")[2])
        self._opened: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"", source: str = "127.0.0.1") -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(source, 0))
        streams[1].write(data)
        self._opened.append(streams[1])
        return streams

    def close(self) -> None:
        for writer in self._opened:
            writer.close()


@contextlib.asynccontextmanager
async def place(connections: int = 64, **times: float) -> AsyncIterator[Place]:
    counts: Counter[str] = Counter()
    limits = SimpleNamespace(**{"header": NEVER, "body": NEVER, "answer": NEVER} | times)
    bounds = Bounds(connections, cast(Times, limits), lambda _, reason: counts.update([reason]))
    control = SlowControl()
    server = await start_admin(control, Access(), Address("127.0.0.1:0"), bounds)
    here = Place(server, control, counts, limits)
    try:
        yield here
    finally:
        here.close()
        control.may_end.set()
        await server.close()


Test = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    def start(test: Test) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with own_loop(factory) as loop:
            loop.run(asyncio.wait_for(test(), 60))

    return start


async def status(streams: Streams) -> int:
    head = await streams[0].readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await streams[0].readexactly(length)
    return int(head.split()[1])


async def ended(streams: Streams) -> bytes:
    """Everything received until the connection ends; a reset is an end too."""
    with contextlib.suppress(ConnectionError):
        return await streams[0].read()
    return b""


@pytest.mark.parametrize("data", [b"", b"GET /", b"GET / HTTP/1.1\r\nA: b\r\n", HEALTH[:-2], b"\r\n"])
def test_a_header_that_does_not_end_is_waited_for_no_longer_than_its_limit(
    data: bytes, run: Callable[[Test], None]
) -> None:
    async def test() -> None:
        async with place(header=SOON) as here:
            assert await ended(await here.connect(data)) == b""
            assert here.counts == {"header_time": 1}

    run(test)


def test_a_further_header_has_the_same_limit_from_its_first_byte_on(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place() as here:
            streams = await here.connect(HEALTH)
            assert await status(streams) == 200
            here.times.header = SOON
            await asyncio.sleep(3 * SOON)  # idle, and that is another limit
            here.times.header = NEVER
            streams[1].write(HEALTH)
            assert await status(streams) == 200
            here.times.header = SOON
            streams[1].write(HEALTH[:20])
            assert await ended(streams) == b""
            assert here.counts == {"header_time": 1}

    run(test)


def test_a_body_that_does_not_come_is_answered_and_closed(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(body=SOON) as here:
            streams = await here.connect(POST + b"{")
            assert await status(streams) == 408
            assert await ended(streams) == b""
            assert here.counts == {"body_time": 1}
            assert here.control.asked == []

    run(test)


def test_an_answer_that_is_not_read_is_dropped(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(answer=SOON) as here:
            streams = await here.connect(HEALTH.replace(b"/healthz", b"/report"))
            while not here.counts:
                await asyncio.sleep(SOON)
            assert here.counts == {"answer_time": 1}
            assert len(await ended(streams)) < 50_000_000

    run(test)


def test_an_idle_connection_is_closed_and_not_counted(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(answer=SOON) as here:
            streams = await here.connect(HEALTH)
            assert await status(streams) == 200
            assert await ended(streams) == b""
            assert here.counts == {}

    run(test)


def test_a_request_that_is_carried_out_has_no_time_limit(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(2) as here:
            streams = await here.connect(POST + b"{}")
            await here.control.begun.wait()
            here.times.header = here.times.body = here.times.answer = SOON
            for _ in range(5):
                await here.connect(HEALTH[:9])
            await asyncio.sleep(3 * SOON)
            here.control.may_end.set()
            assert await status(streams) == 200

    run(test)


def test_one_connection_too_many_closes_the_one_that_waits_longest(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(3) as here:
            waiting = [await here.connect(b"GET") for _ in range(3)]
            await asyncio.sleep(0.01)
            assert await status(await here.connect(HEALTH)) == 200
            assert await ended(waiting[0]) == b""
            waiting[1][1].write(HEALTH[3:])
            assert await status(waiting[1]) == 200
            assert here.counts == {"connections": 1}

    run(test)


def test_the_address_with_the_most_connections_makes_room_first(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(4) as here:
            operator = await here.connect(HEALTH, source="127.0.0.2")
            assert await status(operator) == 200
            for _ in range(200):
                await here.connect(b"GET", source="127.0.0.3")
            while here.counts["connections"] < 197:
                await asyncio.sleep(0.001)
            operator[1].write(HEALTH)
            assert await status(operator) == 200

    run(test)


def test_a_new_connection_is_closed_if_all_others_carry_out_requests(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(1) as here:
            at_work = await here.connect(POST + b"{}")
            await here.control.begun.wait()
            assert await ended(await here.connect(HEALTH)) == b""
            here.control.may_end.set()
            assert await status(at_work) == 200

    run(test)


def test_an_ended_connection_makes_room(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(2) as here:
            for _ in range(10):
                streams = await here.connect(HEALTH)
                assert await status(streams) == 200
                streams[1].close()
                await asyncio.sleep(0.01)
            assert here.counts == {}

    run(test)


def test_a_flood_of_connections_leaves_nothing_behind(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(4) as here:
            for number in range(100):
                await here.connect((b"", b"GET", HEALTH, POST, POST + b"{")[number % 5])
            assert await status(await here.connect(HEALTH)) == 200
            assert here.counts["connections"] >= 80

    run(test)


def test_garbage_is_answered_without_a_message_to_operators(
    run: Callable[[Test], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        async with place() as here:
            for data in (b"\x16\x03\x01\x02\x00" * 9, b"GET / HTTP/9.9\r\n\r\n", b"*1\r\n$4\r\nPING\r\n"):
                assert (await ended(await here.connect(data))).startswith(b"HTTP/1.0 400")

    run(test)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("path", [b"/healthz", b"/nowhere"])
def test_an_unprintable_expect_header_is_refused_like_any_other(
    path: bytes, run: Callable[[Test], None]
) -> None:
    async def test() -> None:
        async with place() as here:
            for expected in (b"rain", b"\xba"):
                data = b"GET " + path + b" HTTP/1.0\r\nExpect: " + expected + b"\r\n\r\n"
                assert (await ended(await here.connect(data))).split()[1] == b"417"

    run(test)


def test_a_request_without_a_target_is_refused_without_a_message_to_operators(
    run: Callable[[Test], None], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp's parser reads CONNECT without a target as HTTP/0.9."""

    async def test() -> None:
        async with place() as here:
            for data in (b"CONNECT  \r\nHost: a\r\n\r\n", b"GET  \r\n\r\n"):
                assert (await ended(await here.connect(data))).split()[1][:1] == b"4"

    run(test)
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


def test_a_fault_that_aiohttp_logs_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(admin_connections, "notice", lambda _kind, text: lines.append(text))
    log = admin_connections._protocol_log()
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("Error handling request from %s", "1.2.3.4")
    assert lines == ["an admin request failed: Error handling request from 1.2.3.4 (KeyError('x'))"]


def test_a_connection_that_is_reset_at_once_leaves_nothing_behind(run: Callable[[Test], None]) -> None:
    async def test() -> None:
        async with place(2) as here:
            for _ in range(50):
                sock = socket.create_connection(("127.0.0.1", here._port))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                sock.close()
            await asyncio.sleep(0.01)
            assert await status(await here.connect(HEALTH)) == 200

    run(test)
