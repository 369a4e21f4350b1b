"""Several upstreams in one process: each has its own clients and connections; the rest is common to all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.downstream.context import ServerContext
from keyfence.net.addresses import Address, bind
from keyfence.process.serving.runtime import Runtime
from keyfence.session.conversation.owner_questions import Question
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from tests.loops import in_loop
from tests.servers import free_port


class Redis:
    """A Redis that answers every request with its name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(b"+" + self.name + b"\r\n")
        writer.close()


class Stage(NamedTuple):
    runtime: Runtime
    contexts: tuple[ServerContext, ServerContext]
    stack: contextlib.AsyncExitStack

    async def client(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        listeners = self.runtime.upstreams[number].listeners
        assert listeners is not None
        host, port = Address(listeners.bound[0][0]).host_port
        reader, writer = await asyncio.open_connection(host, port)
        self.stack.callback(writer.close)
        return reader, writer

    async def clients(self, *numbers: int) -> list[asyncio.StreamReader]:
        """Clients of the upstreams with these numbers, once keyfence knows them."""
        readers = [(await self.client(number))[0] for number in numbers]
        while len(list(self.runtime.clients)) < len(readers):
            await asyncio.sleep(0.001)
        return readers


@contextlib.asynccontextmanager
async def two_upstreams() -> AsyncIterator[Stage]:
    """A runtime with two upstreams, each with a listener for its clients."""
    settings = load_settings("", Overrides(listen="127.0.0.1:0"), needs_policy=False)
    runtime = Runtime(settings, None, Telemetry())
    async with contextlib.AsyncExitStack() as stack:
        for name in (b"first", b"second"):
            server = await asyncio.start_server(Redis(name).answer, "127.0.0.1", 0)
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            address = UpstreamAddress("tcp", "127.0.0.1", port, shown=name.decode())
            served = await runtime.reach_upstream(address)
            bound = bind(Address("127.0.0.1:0"))
            stack.callback(bound.close)
            await runtime.serve(served, [bound]).start()
        stack.push_async_callback(runtime.close, 0)
        first, second = runtime.contexts
        yield Stage(runtime, (first, second), stack)


async def says(stage: Stage, number: int) -> bytes:
    reader, writer = await stage.client(number)
    writer.write(b"PING\r\n")
    return await reader.readline()


@in_loop
async def test_each_listener_leads_to_its_own_upstream() -> None:
    async with two_upstreams() as stage:
        assert [await says(stage, number) for number in (0, 1)] == [b"+first\r\n", b"+second\r\n"]


@in_loop
async def test_limits_count_the_clients_of_all_upstreams() -> None:
    async with two_upstreams() as stage:
        await stage.clients(0, 1, 1)
        assert [len(one.clients) for one in stage.contexts] == [1, 2]
        assert [one.quotas.taken for one in stage.contexts] == [3, 3]


@in_loop
async def test_the_end_closes_the_clients_of_all_upstreams() -> None:
    async with two_upstreams() as stage:
        readers = await stage.clients(0, 1)
        await stage.runtime.close(1)
        assert [await reader.read() for reader in readers] == [b"", b""]


@in_loop
async def test_sessions_of_all_upstreams_have_their_questions_answered_by_one() -> None:
    async with two_upstreams() as stage:
        asked: list[Question] = []
        stage.runtime.answer_by(asked.append, is_all=False)
        question = Question("upstreams", (), lambda _answer: None)
        for one in stage.contexts:
            one.common.ask(question)
            assert not one.ids.is_all
        assert asked == [question, question]


@in_loop
async def test_what_is_seen_of_an_upstream_is_noted_for_it_alone() -> None:
    async with two_upstreams() as stage:
        first, second = (one.upstream for one in stage.contexts)
        first.seen("READONLY")
        assert [one.kind for one in first.standing.concerns()] == ["read_only"]
        assert second.standing.concerns() == []


@in_loop
async def test_an_upstream_that_goes_leaves_the_others_up() -> None:
    async with two_upstreams() as stage:
        first, second = stage.runtime.upstreams
        port = free_port()
        first.upstream.move("127.0.0.1", port, "a test")
        assert not await first.upstream.probe()
        assert await second.upstream.probe()
        assert stage.runtime.telemetry.counters.upstream_up == {"first": 0, "second": 1}
