from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from keyfence.cli.demo.player import DemoError, Player, connected
from keyfence.cli.demo.traffic import SERVICES, Minute
from tests.servers import PATIENCE_SECONDS, free_port


class SwallowsCancellation:
    """A client that goes on when its task is cancelled, as a library may."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def execute_command(self, *_: str) -> str:
        self.waits.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE_SECONDS)
        return "OK"


def test_a_player_ends_even_if_its_client_swallows_the_cancellation() -> None:
    async def cancelled() -> None:
        client: Any = SwallowsCancellation()
        player = Player(dict.fromkeys(SERVICES, client))
        task = asyncio.ensure_future(player.play(Minute("t").steps()))
        await client.waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), PATIENCE_SECONDS)
        assert len(player.outcomes) == 1

    asyncio.run(cancelled())


def test_a_connection_that_breaks_ends_the_demo_with_one_line() -> None:
    async def refused() -> None:
        async with connected(dict.fromkeys(SERVICES, ("127.0.0.1", free_port()))) as player:
            await player.play(Minute("t").steps())

    with pytest.raises(
        DemoError, match=r"^cube-proxy-sidecar's connection broke at XGROUP CREATE .+: .+"
    ) as found:
        asyncio.run(refused())
    assert "\n" not in str(found.value)
