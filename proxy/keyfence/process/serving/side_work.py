"""Work for people that is done beside the clients' commands, such as explaining.

Rule: one piece of such work is under way at a time. It runs in a thread, so that the loop goes on even while
a step is long, and rests after each piece. So clients keep most of the interpreter for any number of people
who ask.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from typing import TypeVar

PIECE_SECONDS = 0.0005  # of work, after which the thread rests at the end of a step
REST_SECONDS = 0.001

_T = TypeVar("_T")


class SideWork:
    """The order of such work in one process."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def do(self, steps: Generator[None, None, _T]) -> _T:
        """Does work in steps when its turn comes, and returns its result. If the caller is cancelled, the
        work ends with the step that is under way."""
        async with self._one_at_a_time:
            gone = threading.Event()
            working = asyncio.ensure_future(asyncio.to_thread(_work, steps, gone))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                gone.set()
                # What the steps use belongs to this work until they have ended.
                await asyncio.wait([working])
                raise


def _work(steps: Generator[None, None, _T], gone: threading.Event) -> _T:
    began = time.perf_counter()
    while not gone.is_set():
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        if time.perf_counter() - began >= PIECE_SECONDS:
            time.sleep(REST_SECONDS)
            began = time.perf_counter()
    raise asyncio.CancelledError
