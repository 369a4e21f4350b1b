"""How long Redis is waited for: not while keyfence itself stands still, and not at a node that has died."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from keyfence.upstream import health
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from keyfence.upstream.patience import at_most
from tests.downstream.test_client import in_loop
from tests.servers import free_port

STALL = 0.5


@in_loop
async def test_a_wait_ends_after_its_time() -> None:
    with pytest.raises(TimeoutError):
        async with at_most(0.05):
            await asyncio.get_running_loop().create_future()


@in_loop
async def test_a_stall_of_the_loop_does_not_end_a_wait() -> None:
    async with at_most(STALL / 2):
        time.sleep(STALL)
        await asyncio.sleep(0)


@in_loop
async def test_redis_is_up_although_keyfence_stood_still_while_it_asked() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(b"+PONG\r\n" * data.count(b"*"))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        upstream = Upstream(
            UpstreamAddress("tcp", "127.0.0.1", port, shown="redis"), connect_timeout=STALL / 2
        )
        asyncio.get_running_loop().call_soon(time.sleep, STALL)
        await upstream.probe()
        assert upstream.failures == 0
        assert upstream.up


@contextlib.asynccontextmanager
async def silent_redis() -> AsyncIterator[tuple[Upstream, asyncio.Event]]:
    """An upstream that takes connections, and answers nothing until the event is set."""
    speaks = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                await speaks.wait()
                writer.write(b"+PONG\r\n" * data.count(b"*"))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield Upstream(UpstreamAddress("tcp", "127.0.0.1", port, shown="redis")), speaks
        speaks.set()
        for one in writers:
            one.close()
        await asyncio.gather(*(one.wait_closed() for one in writers), return_exceptions=True)


@in_loop
async def test_a_redis_that_takes_connections_and_answers_nothing_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PROBE_INTERVAL", 0.01)
    async with silent_redis() as (upstream, speaks):
        signs: list[str] = []
        upstream.on_sign = signs.append
        probe = asyncio.ensure_future(upstream.probe())
        while len(signs) < 3:
            await asyncio.sleep(0.01)
        assert set(signs) == {health.SILENT}
        assert upstream.silence.is_silent
        speaks.set()
        assert await probe
        assert not upstream.silence.is_silent


@in_loop
async def test_a_redis_that_refuses_connections_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_INTERVAL", 0.01)
    upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", free_port(), shown="redis"))
    upstream.silence.is_silent = True
    assert not await upstream.probe()
    assert not upstream.silence.is_silent


@in_loop
async def test_nobody_connects_to_a_node_that_has_died_until_it_answers_the_prober() -> None:
    async with silent_redis() as (upstream, speaks):
        upstream.died("it is dead")
        assert upstream.up is False
        while asyncio.get_running_loop().time() < upstream._retry_at:
            await asyncio.sleep(0.01)
        assert upstream.must_wait
        speaks.set()
        assert await upstream.probe()
        assert not upstream.must_wait
        assert not upstream.is_dead


@in_loop
async def test_clients_leave_a_node_of_a_cluster_at_once_when_it_is_down() -> None:
    upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", free_port(), shown="redis"))
    upstream.patience = 0.0
    assert not upstream.turns_away
    await upstream.probe()
    assert upstream.turns_away
    assert not upstream.is_patient
