"""Handing over what a process has counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from keyfence.process.serving.backend import hand_over
from keyfence.telemetry.increments import Increments


class Parts:
    def parts(self) -> Iterator[dict[str, Any]]:
        yield from ({"tally": [number]} for number in range(5))


def handed_over(stop_after: int = 10) -> list[Any]:
    """What was fed, and None for each round of the loop meanwhile."""
    order: list[Any] = []

    async def scenario() -> None:
        task = asyncio.ensure_future(
            hand_over(cast(Increments, Parts()), lambda part: order.append(part["tally"]))
        )
        for _ in range(stop_after):
            await asyncio.sleep(0)
            order.append(None)
        task.cancel()
        if stop_after < 5:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task

    asyncio.run(scenario())
    return order


def test_other_work_of_the_loop_comes_between_two_parts() -> None:
    assert handed_over()[:8] == [[0], None, [1], None, [2], None, [3], None]


def test_nothing_is_lost_if_keyfence_ends_meanwhile() -> None:
    assert handed_over(2) == [[0], None, [1], None, [2], [3], [4]]
