"""Clients and upstreams that try to harm other clients on a shared connection."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from keyfence.net.closures import REQUEST_TIME
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.resp import requests
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import RequestReader
from keyfence.session.conversation.conversation import ROOM
from keyfence.upstream import links as links_module
from keyfence.upstream import shared as shared_module
from tests.downstream.test_client import MIB, Handler, Stage, Streams, answer_all, in_loop
from tests.session.sessions import ADMITTED, REFUSED, cmd


class SharedStage(Stage):
    """A server context whose clients share one connection."""

    async def __aenter__(self) -> SharedStage:
        self._shared = 1
        await super().__aenter__()
        return self


class Upstreams:
    """An upstream that records its connections."""

    def __init__(self, play: Handler) -> None:
        self.play = play
        self.open: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        try:
            await self.play(reader, writer)
        finally:
            self.open.remove(writer)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """All data until the end of the connection, which may be a reset."""
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


async def asks(client: Streams) -> None:
    client[1].write(ADMITTED)
    assert await client[0].readline() == b"*0\r\n"


# -- transactions


@in_loop
async def test_transactions_of_many_clients_on_one_connection_never_mix() -> None:
    """Each transaction arrives in one piece, and requests of others come before or after it."""
    upstreams = Upstreams(each_transaction_is_of_one_client)
    async with SharedStage(upstreams) as stage:

        async def work(number: int) -> None:
            reader, writer = await stage.client()
            ask = cmd("HGET", "cube:v1:shared:sandbox:proxy:7c8f", f"c{number}")
            answer = b"$%d\r\nc%d\r\n" % (len(f"c{number}"), number)
            for count in range(1, 30):
                writer.write(ask + cmd("MULTI") + ask * count + cmd("EXEC") + ask)
                queued = b"+OK\r\n" + b"+QUEUED\r\n" * count + b"*%d\r\n" % count
                expected = answer + queued + answer * (count + 1)
                assert await reader.readexactly(len(expected)) == expected

        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(work(number))
        assert len(upstreams.open) == 1


async def each_transaction_is_of_one_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    requests = RequestReader(IDENTIFIED)
    queue: list[bytes] | None = None
    while data := await reader.read(1 << 16):
        requests.feed(data)
        while argv := requests.next():
            name, value = argv[0], argv[-1]
            if name == b"MULTI":
                assert queue is None
                queue = []
                writer.write(b"+OK\r\n")
            elif name == b"EXEC":
                assert queue is not None
                assert len(set(queue)) == 1
                writer.write(b"*%d\r\n" % len(queue) + b"".join(map(_bulk, queue)))
                queue = None
            elif queue is not None:
                queue.append(value)
                writer.write(b"+QUEUED\r\n")
            else:
                writer.write(_bulk(value))


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


# -- what stays behind


@in_loop
async def test_after_a_restart_of_redis_there_are_no_more_connections_of_a_kind_than_before(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(shared_module, "IDLE_SECONDS", 0.0)
    upstreams = Upstreams(answer_all)
    async with SharedStage(upstreams) as stage:
        old, new = await stage.client(), await stage.client()
        await asks(old)
        for writer in list(upstreams.open):
            writer.transport.abort()
        while upstreams.open or any(not pool.is_closed for pool in stage.context.pools._pools.values()):
            await asyncio.sleep(0.001)
        stage.context.tick()
        await asks(old)
        await asks(new)
        assert len(upstreams.open) == 1
        for _, writer in (old, new):
            writer.close()
        await stage.nobody_is_left()
        while upstreams.open:  # it is closed, because no client holds it
            stage.context.tick()
            await asyncio.sleep(0.001)
        assert not stage.context.pools._pools


@in_loop
async def test_requests_of_clients_that_have_gone_take_bounded_memory(
    patch: pytest.MonkeyPatch,
) -> None:
    """Redis hangs, and one client after another sends as much as it may and disconnects."""
    patch.setattr(shared_module, "MAX_QUEUED", MIB)
    hung = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await hung.wait()

    async with SharedStage(hang) as stage:
        try:
            for _ in range(200):
                reader, writer = await stage.client()
                writer.write(cmd("HGET", "cube:v1:shared:sandbox:proxy:7c8f", "x" * 1000) * 200)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    answer = await asyncio.wait_for(reader.readline(), 0.05)
                    assert b"does not keep up" in answer
                    break
                writer.transport.abort()
            else:
                pytest.fail("all was taken in")
        finally:
            hung.set()


@in_loop
async def test_nothing_is_kept_for_a_client_that_is_being_closed() -> None:
    """The client reads nothing, and more messages arrive for it."""
    noticed = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SUBSCRIBE")
        writer.write(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
        message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1000\r\n" + b"x" * 1000 + b"\r\n"
        try:
            while True:
                writer.write(message)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            noticed.set()

    async with SharedStage(flood, ModeRule("observe")) as stage:
        reader, writer = await stage.client()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(cmd("SUBSCRIBE c"))
        while not stage.context.clients:
            await asyncio.sleep(0.001)
        (one,) = stage.context.clients
        while one._transport is None or not one._transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        one.give_up(REQUEST_TIME)
        await noticed.wait()
        assert sum(map(len, one._session.conversation.replies.to_client)) < MIB


@in_loop
async def test_a_refused_request_is_not_half_sent_to_redis(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(requests, "LARGE", 10_000)
    patch.setattr(ROOM, "shared_request", 5000)
    ended = asyncio.Event()

    async def take(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        ended.set()

    async with SharedStage(take) as stage:
        reader, writer = await stage.client()
        writer.write(cmd("HSET", "cube:v1:shared:sandbox:proxy:7c8f", "HostIP", "1" * 300_000))
        assert (await reader.readline()).startswith(b"-NOPERM [scope.write]")
        await ended.wait()


# -- one client's faults, and the upstream's


@in_loop
async def test_an_internal_error_with_one_client_affects_no_reply_to_another(
    patch: pytest.MonkeyPatch,
) -> None:
    """Both replies come in one piece, and standard error is closed."""

    class Gone:
        def write(self, _text: str) -> int:
            raise BrokenPipeError("gone")

    async def answer_pairs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"HGETALL")
            await reader.readuntil(b"HGETALL")
            writer.write(b"*0\r\n" * 2)

    async with SharedStage(answer_pairs) as stage:
        bad, good = await stage.client(), await stage.client()
        bad[1].write(ADMITTED)
        clients = stage.context.clients
        while not any(one._session.conversation.outstanding for one in clients):
            await asyncio.sleep(0.001)
        (first,) = [one for one in clients if one._session.conversation.outstanding]
        with patch.context() as patched:  # only here: asyncio has its own words on what ends with the stage
            patched.setattr(sys, "stderr", Gone())
            first._session.conversation.replies.slots.pop()  # type: ignore[union-attr] # so it expects no reply any more
            good[1].write(ADMITTED)
            assert await good[0].readline() == b"*0\r\n"
            with contextlib.suppress(ConnectionError):
                assert await bad[0].read() == b""
        assert stage.telemetry.counters.internal_errors == {"relay": 1}


@pytest.mark.parametrize(
    "nonsense",
    [b"garbage\r\n", b"*0\r\n>1\r\n+push\r\n", b"*1\r\n$5\r\nab", b"*0\r\n?"],
)
def test_with_any_data_on_a_shared_connection_no_client_gets_the_reply_of_another(
    monkeypatch: pytest.MonkeyPatch, nonsense: bytes
) -> None:
    @in_loop
    async def played() -> None:
        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"HGETALL")
            await reader.readuntil(b"HGETALL")
            writer.write(nonsense)

        async with SharedStage(play) as stage:
            clients = [await stage.client(), await stage.client()]
            for _, writer in clients:
                writer.write(ADMITTED)
            first, second = clients[0][0], clients[1][0]
            if nonsense.startswith(b"*0"):  # this one has its reply, and nothing is wrong with it
                assert await first.readline() == b"*0\r\n"
            else:
                assert await closed(first) in (b"", nonsense)
            assert await closed(second) == b""

    played(monkeypatch)


@in_loop
async def test_requests_after_a_refused_one_keep_their_order() -> None:
    """Refused and admitted requests, and other clients that leave, on one connection at once."""
    async with SharedStage(answer_all) as stage:
        clients = [await stage.client() for _ in range(20)]
        for number, (_, writer) in enumerate(clients):
            writer.write((ADMITTED + REFUSED) * 50)
            if number % 3 == 0:
                writer.transport.abort()
        for number, (reader, _) in enumerate(clients):
            for _ in range(50 if number % 3 else 0):
                assert await reader.readline() == b"*0\r\n"
                assert (await reader.readline()).startswith(b"-NOPERM")


# -- the dedicated connection that is kept because its id is known


@in_loop
async def test_a_kept_connection_is_used_as_long_as_its_client_works(patch: pytest.MonkeyPatch) -> None:
    """Redis closes connections that are silent for `timeout` seconds. Replies to PINGs reach no client."""
    patch.setattr(links_module, "KEEP_ALIVE_SECONDS", 0.0)
    pings = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pings
        while data := await reader.read(65536):
            pings += data.count(b"PING")
            writer.write(b"%0\r\n" * data.count(b"HELLO") + b"+PONG\r\n" * data.count(b"PING"))
            writer.write(b"*0\r\n" * data.count(b"HGETALL") + b":7\r\n" * data.count(b"\r\nID\r\n"))

    async with SharedStage(play) as stage:
        reader, writer = await stage.client()
        writer.write(cmd("HELLO 3"))
        assert await reader.readline() == b"%0\r\n"
        stage.context.tick()
        await asks((reader, writer))
        while not pings:
            stage.context.tick()
            await asyncio.sleep(0.001)
        writer.write(cmd("CLIENT ID"))
        assert await reader.readline() == b":7\r\n"
        assert len(stage.context.clients) == 1


@in_loop
async def test_clients_with_different_names_share_a_connection() -> None:
    upstreams = Upstreams(answer_greetings)
    async with SharedStage(upstreams) as stage:
        clients = [await stage.client() for _ in range(5)]
        for number, client in enumerate(clients):
            client[1].write(cmd(f"CLIENT SETNAME n{number}"))
            assert await client[0].readline() == b"+OK\r\n"
            await asks(client)
        assert len(stage.context.pools._pools) == 1


async def answer_greetings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(b"+OK\r\n" * data.count(b"SETNAME") + b"*0\r\n" * data.count(b"HGETALL"))


PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"


@in_loop
async def test_a_push_on_a_kept_connection_reaches_its_client() -> None:
    """Another client may send its invalidations there (CLIENT TRACKING ... REDIRECT)."""
    kept: list[asyncio.StreamWriter] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if b"HELLO" in data:
                kept.append(writer)
            writer.write(b"%0\r\n" * data.count(b"HELLO") + b"*0\r\n" * data.count(b"HGETALL"))

    async with SharedStage(play) as stage:
        reader, writer = await stage.client()
        writer.write(cmd("HELLO 3"))
        assert await reader.readline() == b"%0\r\n"
        stage.context.tick()
        await asks((reader, writer))
        for cut in (len(PUSH), 9):
            kept[0].write(PUSH[:cut])
            await asyncio.sleep(0.001)
            kept[0].write(PUSH[cut:])
            assert await reader.readexactly(len(PUSH)) == PUSH
            await asks((reader, writer))
        kept[0].write(PUSH + b"+OK\r\n")
        assert await closed(reader) == PUSH
