"""Work for people that is done beside the clients' commands, such as explaining.

Rule: one piece of such work is under way at a time, and does one step in a round of the loop. So clients wait
for one step, for any number of people who ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")


class SideWork:
    """The order of such work in one process."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def do(self, steps: Generator[None, None, _T]) -> _T:
        """Does work in steps when its turn comes, and returns its result."""
        async with self._one_at_a_time:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    result: _T = end.value
                    return result
                await asyncio.sleep(0)
