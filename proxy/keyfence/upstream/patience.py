"""How long keyfence waits for Redis.

Rule: only time in which keyfence could have heard the answer counts. If its own process stood still, Redis is
not at fault.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

# The time is counted in this many parts. A stall of any length takes one of them.
PARTS = 10


@contextlib.asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """Raises TimeoutError if the block takes longer than this, as `asyncio.timeout` does, but a time in which
    the loop stood still counts as a tenth of it at most."""
    loop = asyncio.get_running_loop()
    left = PARTS
    async with asyncio.timeout(None) as deadline:

        def count() -> None:
            nonlocal left
            left -= 1
            if left:
                timers.append(loop.call_later(seconds / PARTS, count))
            else:
                deadline.reschedule(loop.time())

        timers = [loop.call_later(seconds / PARTS, count)]
        try:
            yield
        finally:
            timers[-1].cancel()
