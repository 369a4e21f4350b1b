"""The transports, in one loop with clients and with upstreams that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from keyfence.config.limits import ClientLimits, ClientSettings
from keyfence.config.models import ListenerModel
from keyfence.downstream import client as client_module
from keyfence.downstream import half_closed
from keyfence.downstream.context import Common, ServerContext
from keyfence.downstream.flow import Leaving
from keyfence.downstream.listeners import Listeners
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.process.serving.garbage import without_collections
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from tests.loops import own_loop
from tests.servers import PATIENCE_SECONDS, free_port
from tests.session.sessions import ADMITTED, REFUSED, authorizer_with, cmd, identities, replies

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MIB = 1024 * 1024


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run a coroutine in a loop such as keyfence's own, with patience."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        with own_loop() as runner:
            arguments = [monkeypatch] if inspect.signature(test).parameters else []
            runner.run(asyncio.wait_for(test(*arguments), PATIENCE_SECONDS))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class Stage:
    """A server context with a simulated upstream (`handler`), or with a port where nothing listens."""

    def __init__(
        self,
        handler: Handler | None,
        *rules: ModeRule,
        spliced: bool = False,
        password: str = "",
        connect_timeout: float = PATIENCE_SECONDS,
        limits: ClientLimits | None = None,
        shared_connections: int = 0,
    ) -> None:
        self._handler = handler
        self._password = password
        self._timeout = connect_timeout
        self._authorizer = None if spliced else authorizer_with(*rules)
        self._limits = limits or ClientLimits()
        self._shared = shared_connections
        self._clients: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Stage:
        self._server = None
        port = free_port()
        if self._handler is not None:
            self._server = await asyncio.start_server(self._play, "127.0.0.1", 0)
            port = self._server.sockets[0].getsockname()[1]
        address = UpstreamAddress("tcp", "127.0.0.1", port, password=self._password, shown="fake")
        self.upstream = Upstream(address, connect_timeout=self._timeout)
        self.telemetry = Telemetry()
        in_force = None if self._authorizer is None else InForce(self._authorizer)
        settings = ClientSettings(clients=self._limits, shared_connections=self._shared)
        common = Common(in_force, identities(), self.telemetry, settings)
        self.context = ServerContext(common, self.upstream)
        self.listeners = Listeners(self.context)
        self.listeners.open(ListenerModel(listen="127.0.0.1:0", service="CubeProxy"))
        await self.listeners.start()
        return self

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._handler is not None
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._handler(reader, writer)
        finally:
            writer.close()

    async def __aexit__(self, *_: object) -> None:
        for writer in self._clients:
            writer.close()
        await self.listeners.close(0)
        if self._server is not None:
            self._server.close()

    async def client(self) -> Streams:
        host, _, port = self.listeners.bound[0][0].rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that little data fills it
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock, limit=64 * MIB)
        self._clients.append(writer)
        return reader, writer

    async def nobody_is_left(self) -> None:
        while self.context.clients:
            await asyncio.sleep(0.001)


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An upstream that answers each HGETALL with an empty array, and each barrier with its number."""
    asked = re.compile(rb"HGETALL|ECHO\r\n(\$32\r\n[0-9a-f]{32}\r\n)")
    while data := await reader.read(65536):
        writer.write(b"".join(match[1] or b"*0\r\n" for match in asked.finditer(data)))


def silent_until_end(ended: asyncio.Event) -> Handler:
    async def keep_silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        ended.set()

    return keep_silent


@in_loop
async def test_redis_learns_at_once_that_a_waiting_client_has_gone(patch: pytest.MonkeyPatch) -> None:
    """BLPOP must not pop an element for a client that has gone."""
    patch.setattr(half_closed, "LINGER_SECONDS", 3600)
    ended = asyncio.Event()
    async with Stage(silent_until_end(ended)) as stage:
        _, writer = await stage.client()
        writer.write(ADMITTED)
        writer.close()
        await ended.wait()
        await stage.nobody_is_left()


@in_loop
async def test_a_client_that_goes_after_quit_is_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(half_closed, "LINGER_SECONDS", 3600)
    ended = asyncio.Event()
    async with Stage(silent_until_end(ended)) as stage:
        _, writer = await stage.client()
        writer.write(ADMITTED + cmd("QUIT") + b"more")
        writer.close()
        await ended.wait()
        await stage.nobody_is_left()


@in_loop
async def test_a_client_that_goes_while_a_reply_to_auth_is_due_does_not_stay(
    patch: pytest.MonkeyPatch,
) -> None:
    """Requests after AUTH wait, so Redis cannot be told yet that no more will come."""
    patch.setattr(half_closed, "LINGER_SECONDS", 0.01)
    ended = asyncio.Event()
    async with Stage(silent_until_end(ended)) as stage:
        _, writer = await stage.client()
        writer.write(cmd("AUTH", "master", "pw") + ADMITTED)
        writer.close()
        await ended.wait()
        await stage.nobody_is_left()
        assert stage.telemetry.counters.closures == {"half_closed": 1}


@in_loop
async def test_requests_after_auth_are_answered_after_a_half_close(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(half_closed, "LINGER_SECONDS", 3600)
    ended = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"pw\r\n")
        await ended.wait()
        writer.write(b"+OK\r\n")
        await answer_all(reader, writer)

    async with Stage(play) as stage:
        reader, writer = await stage.client()
        writer.write(cmd("AUTH", "master", "pw") + ADMITTED * 3)
        writer.write_eof()
        ended.set()
        assert await reader.read() == b"+OK\r\n" + b"*0\r\n" * 3
        await stage.nobody_is_left()


@in_loop
async def test_a_client_that_ends_without_due_replies_is_closed() -> None:
    async with Stage(answer_all) as stage:
        reader, writer = await stage.client()
        writer.write(REFUSED)
        writer.write_eof()
        assert (await reader.read()).startswith(b"-NOPERM [scope.write]")
        await stage.nobody_is_left()


@in_loop
async def test_a_client_with_thousands_of_auths_is_closed_without_an_upstream() -> None:
    async with Stage(None) as stage:
        reader, writer = await stage.client()
        writer.write(cmd("AUTH", "master", "pw") * 3000 + ADMITTED)
        assert await reader.read() == b""
        assert stage.telemetry.counters.internal_errors == {}
        assert stage.upstream.failures < 100


@in_loop
async def test_a_login_that_is_never_answered_times_out(patch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()
    async with Stage(silent_until_end(ended), password="pw", connect_timeout=PATIENCE_SECONDS) as stage:
        connect = stage.upstream._connect

        async def connect_in_peace(protocol: Callable[[], asyncio.Protocol]) -> Any:
            """Only the login times out, which begins once the connection is open."""

            def made() -> asyncio.Protocol:
                stage.upstream.connect_timeout = 0.05
                return protocol()

            return await connect(made)

        patch.setattr(stage.upstream, "_connect", connect_in_peace)
        reader, writer = await stage.client()
        writer.write(ADMITTED)
        assert await reader.read() == b""
        await ended.wait()
        assert stage.upstream.reason == "login timed out"


@in_loop
async def test_reading_resumes_once_the_bytes_that_waited_for_the_login_are_sent() -> None:
    """An upstream that waits for the rest of a request sends nothing."""
    size = 16 * MIB
    may_log_in = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"pw\r\n")
        await may_log_in.wait()
        writer.write(b"+OK\r\n")
        await reader.readexactly(size)
        writer.write(b"+GOT IT\r\n")

    async with Stage(play, spliced=True, password="pw") as stage:
        reader, writer = await stage.client()
        writer.write(b"x" * size)
        client = next(iter(stage.context.clients))
        while client._flow.is_reading:
            await asyncio.sleep(0.001)
        may_log_in.set()
        assert await reader.readline() == b"+GOT IT\r\n"


@in_loop
async def test_a_client_that_reads_slowly_from_the_start_pauses_its_upstream() -> None:
    """The connection opens when the client's output is already full."""
    size = 24 * MIB
    written = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(ADMITTED)
        writer.write(b"$%d\r\n" % size)
        for _ in range(size // MIB):
            writer.write(b"x" * MIB)
            await writer.drain()
            written += MIB
        writer.write(b"\r\n")

    async with Stage(play, limits=ClientLimits(output=6 * MIB)) as stage:
        reader, writer = await stage.client()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        refusals = 40_000  # more than the kernel's own buffers hold
        writer.write(REFUSED * refusals + ADMITTED)
        client = next(iter(stage.context.clients))
        while not client._links.is_open:
            await asyncio.sleep(0.001)
        assert client._flow.is_full
        for _ in range(200):  # turns of the loop, in which data that is not held back would arrive
            await asyncio.sleep(0.001)
        assert client in stage.context.clients
        assert client._transport is not None
        assert client._transport.get_write_buffer_size() < 6 * MIB
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        data = await reader.readuntil(b"x\r\n")
        assert data.count(b"-NOPERM") == refusals
        assert data.endswith(b"x\r\n")
        assert written == size


@in_loop
async def test_a_client_that_is_closed_and_does_not_read_is_cut_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_module, "CLOSING_SECONDS", 0.2)
    async with Stage(answer_all, limits=ClientLimits(idle=0.1)) as stage:
        reader, writer = await stage.client()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REFUSED * 50_000)
        await stage.nobody_is_left()
        assert stage.telemetry.counters.closures == {"idle": 1}


@in_loop
async def test_a_client_that_does_not_read_is_closed_at_the_limit() -> None:
    async with Stage(answer_all, limits=ClientLimits(output=MIB)) as stage:
        reader, writer = await stage.client()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            while not stage.telemetry.counters.closures:
                writer.write(REFUSED * 1000)
                await writer.drain()
        await stage.nobody_is_left()
        assert stage.telemetry.counters.closures == {"output": 1}


@in_loop
async def test_one_connection_too_many_gets_an_error() -> None:
    async with Stage(answer_all, limits=ClientLimits(connections=1)) as stage:
        first, second = await stage.client(), await stage.client()
        first[1].write(ADMITTED)
        assert await first[0].readline() == b"*0\r\n"
        second[1].write(ADMITTED)
        assert await second[0].readline() == b"-ERR max number of clients reached\r\n"
        assert await second[0].read() == b""
        assert sum(stage.telemetry.counters.connections_rejected.values()) == 1
        assert sum(stage.telemetry.counters.connections_open.values()) == 1


@in_loop
async def test_an_internal_error_ends_only_one_client(patch: pytest.MonkeyPatch) -> None:
    told: list[Exception] = []
    patch.setattr(client_module, "report_fault", told.append)
    async with Stage(answer_all) as stage:
        good, bad = await stage.client(), await stage.client()
        good[1].write(ADMITTED)
        assert await good[0].readline() == b"*0\r\n"
        patch.setattr(stage.telemetry, "authorized", lambda *_: 1 / 0)
        bad[1].write(ADMITTED)
        with contextlib.suppress(ConnectionError):
            assert await bad[0].read() == b""
        good[1].write(ADMITTED)
        assert await good[0].readline() == b"*0\r\n"
        assert [type(one) for one in told] == [ZeroDivisionError]
        assert stage.telemetry.counters.internal_errors == {"relay": 1}
        assert len(stage.context.clients) == 1


@in_loop
async def test_replies_that_are_due_come_before_the_end() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(ADMITTED)
        asked.set()
        await may_answer.wait()
        writer.write(b"*0\r\n")

    async with Stage(play) as stage:
        (reader, writer), idle = await stage.client(), await stage.client()
        writer.write(ADMITTED)
        await asked.wait()
        closing = asyncio.ensure_future(stage.listeners.close(PATIENCE_SECONDS))
        assert await idle[0].read() == b""
        may_answer.set()
        assert await reader.read() == b"*0\r\n"
        await closing


@in_loop
async def test_the_end_has_a_deadline() -> None:
    ended = asyncio.Event()
    async with Stage(silent_until_end(ended)) as stage:
        reader, writer = await stage.client()
        writer.write(ADMITTED)
        while not any(client._session.conversation.outstanding for client in stage.context.clients):
            await asyncio.sleep(0.001)
        await stage.listeners.close(0.01)
        assert await reader.read() == b""
        await ended.wait()


@in_loop
async def test_an_upstream_that_ends_within_a_reply_ends_the_client() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(ADMITTED)
        writer.write(b"*0\r\n$100\r\nhalf")
        await writer.drain()

    async with Stage(play) as stage:
        reader, writer = await stage.client()
        writer.write(ADMITTED * 3 + REFUSED)
        assert await reader.read() == b"*0\r\n$100\r\nhalf"
        await stage.nobody_is_left()
        assert stage.telemetry.counters.closures == {"upstream_lost": 1}


@in_loop
async def test_an_upstream_that_ends_between_replies_ends_the_client_with_an_error() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(ADMITTED)
        writer.write(b"*0\r\n")
        await writer.drain()

    async with Stage(play) as stage:
        reader, writer = await stage.client()
        writer.write(ADMITTED + REFUSED + ADMITTED)
        first, refusal = replies(await reader.read())
        assert first == b"*0\r\n"
        assert refusal.startswith(b"-NOPERM")


@in_loop
async def test_an_upstream_that_does_not_speak_resp_ends_the_client() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(ADMITTED)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with Stage(play) as stage:
        reader, writer = await stage.client()
        writer.write(ADMITTED)
        assert await reader.read() == b""
        await stage.nobody_is_left()
        assert stage.telemetry.counters.closures == {"upstream_protocol": 1}


LONG = cmd("EXISTS", *[b"nobody:%d" % number for number in range(100_000)])


@pytest.mark.usefixtures("shortest_turns")
@in_loop
async def test_a_long_evaluation_gives_other_clients_a_turn() -> None:
    """The order of events shows it: another client's request is answered before a long evaluation ends."""
    async with Stage(answer_all) as stage:
        hostile, hostile_writer = await stage.client()
        other, other_writer = await stage.client()
        other_writer.write(ADMITTED)  # opens its connection to Redis
        await other.readexactly(4)
        hostile_writer.write(LONG)
        await evaluation_begins(stage)
        for _ in range(3):
            other_writer.write(ADMITTED)
            assert await other.readexactly(4) == b"*0\r\n"
            assert any(client._session.conversation.wants_turn for client in stage.context.clients)
        assert (await hostile.readuntil(b"\r\n")).startswith(b"-NOPERM")


async def evaluation_begins(stage: Stage) -> None:
    while not any(client._session.conversation.wants_turn for client in stage.context.clients):
        await asyncio.sleep(0)


@in_loop
async def test_a_client_that_sends_a_long_request_and_the_end_gets_the_answer() -> None:
    async with Stage(answer_all) as stage:
        reader, writer = await stage.client()
        writer.write(LONG)
        writer.write_eof()
        assert (await reader.read()).startswith(b"-NOPERM")
        await stage.nobody_is_left()


@pytest.mark.usefixtures("shortest_turns")
@in_loop
async def test_a_long_evaluation_ends_with_its_client() -> None:
    async with Stage(answer_all) as stage:
        _, writer = await stage.client()
        writer.write(LONG)
        await evaluation_begins(stage)
        writer.transport.abort()
        await stage.nobody_is_left()
        while stage.context.turns._waiting:
            await asyncio.sleep(0)


@pytest.mark.usefixtures("shortest_turns")
@in_loop
async def test_draining_waits_for_a_long_evaluation() -> None:
    async with Stage(answer_all) as stage:
        reader, writer = await stage.client()
        writer.write(LONG)
        await evaluation_begins(stage)
        (one,) = stage.context.clients
        assert not one.is_idle
        one.leave(Leaving.AFTER_REPLY)
        assert (await reader.read()).startswith(b"-NOPERM")


@in_loop
async def test_a_client_that_has_gone_leaves_nothing_to_a_garbage_collection() -> None:
    """A collection stops all clients, and until then the policy of that time would stay in memory."""

    def clients() -> int:
        return sum(isinstance(one, client_module.Client) for one in gc.get_objects())

    async with Stage(answer_all) as stage:
        gc.collect()
        with without_collections():
            before = clients()
            for command in (ADMITTED, REFUSED, ADMITTED + REFUSED):
                reader, writer = await stage.client()
                writer.write(command)
                assert await reader.read(1)
                assert clients() == before + 1
                writer.close()
                await stage.nobody_is_left()
                for _ in range(3):
                    await asyncio.sleep(0)
                assert clients() == before
