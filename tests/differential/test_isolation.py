"""Two hundred clients on one keyfence, while connections are cut on either side: no reply goes astray."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.differential.isolation import Load, Streams
from tests.differential.pairs import LONG, Pair
from tests.loops import own_loop

CLIENTS = 200
COMMANDS = 1_000_000 if LONG else 50_000


async def _kill_now_and_then(pair: Pair, dice: random.Random, killed: list[int]) -> None:
    """Cuts connections between keyfence and Redis: mostly one of them, sometimes all."""
    reader, writer = await asyncio.open_unix_connection(str(pair.server.socket_path))
    try:
        while True:
            await asyncio.sleep(dice.choice([0.02, 0.05, 0.2]))
            if dice.random() < 0.05:
                writer.write(b"CLIENT KILL TYPE normal SKIPME yes\r\n")
                killed[0] += int((await reader.readline()).strip(b":\r\n"))
                continue
            writer.write(b"CLIENT LIST\r\n")
            size = int((await reader.readline()).strip(b"$\r\n"))
            lines = (await reader.readexactly(size + 2)).split(b"\n")
            ids = [line.split()[0][3:] for line in lines if b" cmd=" in line and b"cmd=client" not in line]
            if ids:
                writer.write(b"CLIENT KILL ID %b SKIPME yes\r\n" % dice.choice(ids))
                killed[0] += int((await reader.readline()).strip(b":\r\n"))
    finally:
        writer.close()


async def _run(pair: Pair, seed: int) -> tuple[Load, int]:
    async def connect() -> Streams:
        return await asyncio.open_connection(*pair.keyfence.address(), limit=1 << 20)

    load = Load(connect, COMMANDS, seed)
    killed = [0]
    killer = asyncio.create_task(_kill_now_and_then(pair, random.Random(seed), killed))
    try:
        await load.run(CLIENTS)
    finally:
        killer.cancel()
    return load, killed[0]


@pytest.mark.timeout(7200 if LONG else 300)
def test_no_reply_reaches_the_wrong_client(refusing_pair: Pair) -> None:
    refusing_pair.empty()
    with own_loop() as runner:
        load, killed = runner.run(_run(refusing_pair, seed=5))
    print(f"{load.answered} answered, {load.lost} lost, {load.disconnects} disconnects, {killed} killed")
    assert load.answered + load.lost > COMMANDS / 2
    assert killed
    assert load.disconnects
