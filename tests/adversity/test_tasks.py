"""No task, timer or client object outlives its connection, however that ends.

Checked inside the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time

import pytest

from keyfence.downstream import half_closed
from keyfence.downstream.client import Client
from tests.downstream.test_client import Handler, Stage, answer_all, in_loop, silent_until_end
from tests.servers import PATIENCE_SECONDS
from tests.session.sessions import ADMITTED, REFUSED, cmd


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def half_a_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)
    writer.write(b"$100\r\nhalf")


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


UPSTREAMS: dict[str, Handler | None] = {
    "answers": answer_all,
    "is silent": silent_until_end(asyncio.Event()),
    "sends garbage": garbage,
    "dies in a reply": half_a_reply,
    "hangs up": hang_up,
    "refuses": None,
}
BEGINNINGS = [
    b"",
    ADMITTED,
    ADMITTED * 50 + REFUSED,
    b"*2\r\n$7\r\nHGETA",
    cmd("AUTH", "x", "y"),
    b"garbage\r\n\x00",
]


async def play(stage: Stage, dice: random.Random) -> None:
    """Runs one client that connects, sends something, and leaves in one of several ways."""
    reader, writer = await stage.client()
    writer.write(dice.choice(BEGINNINGS) + dice.choice(BEGINNINGS))
    await asyncio.sleep(dice.choice([0, 0, 0.001, 0.01]))
    if dice.random() < 0.3:
        writer.transport.abort()
    elif dice.random() < 0.5:
        writer.write_eof()
    if dice.random() < 0.5:
        writer.close()
    await asyncio.sleep(0)
    if not writer.transport.is_closing():
        writer.transport.abort()
    del reader


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_no_object_outlives_its_client_if_the_upstream(
    upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def scenario(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(half_closed, "LINGER_SECONDS", 0.02)
        dice = random.Random(upstream)
        handler = UPSTREAMS[upstream]
        async with Stage(handler, connect_timeout=5) as stage:
            await play(stage, dice)  # objects that the first client creates once and for all
            await stage.nobody_is_left()
            before = await settled()
            for _ in range(20):
                await asyncio.gather(*(play(stage, dice) for _ in range(5)))
            await stage.nobody_is_left()
            until = time.monotonic() + PATIENCE_SECONDS / 2
            while (left := await settled()) > before and time.monotonic() < until:
                pass  # a busy machine needs longer
            assert left <= before
            assert stage.telemetry.counters.internal_errors == {}

    scenario(monkeypatch)


async def settled() -> int:
    """Returns the number of tasks and clients once it no longer changes."""
    seen = [-1, -2]
    while seen[-1] != seen[-2]:
        await asyncio.sleep(0.15)  # longer than the objects that end by themselves need
        gc.collect()
        seen.append(len(asyncio.all_tasks()) + sum(isinstance(one, Client) for one in gc.get_objects()))
    return seen[-1]
