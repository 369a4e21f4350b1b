"""Redis is not blamed for a time in which keyfence itself stood still."""

from __future__ import annotations

import asyncio
import time

import pytest

from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from keyfence.upstream.patience import at_most
from tests.downstream.test_client import in_loop

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
