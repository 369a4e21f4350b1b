"""When keyfence looks again who the primary is.

Rule: every cause of doubt (a lost connection, an error that only a replica or an unready Redis gives, another
address) has the same effect: one look soon. While the doubt goes on, the pauses between looks grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Protocol

LEAST_SECONDS = 0.05  # between two looks while there is doubt, …
MOST_SECONDS = 2.0  # … growing to this
RENEWALS_LEAST = 0.5  # between two renewals of connections, …
RENEWALS_MOST = 60.0  # … growing to this


class Looker(Protocol):
    """Somebody who looks how Redis' nodes stand."""

    def look_again(self) -> None:
        """Look soon."""


class Doubt:
    """Tells one job when it must look again."""

    def __init__(self) -> None:
        self._is_raised = asyncio.Event()
        self._pause = 0.0  # after the look under way

    def look_again(self) -> None:
        """Look soon."""
        self._is_raised.set()

    def calm(self) -> None:
        """The last look has found what was sought: the pauses are short again."""
        self._pause = LEAST_SECONDS

    async def wait(self, seconds: float) -> None:
        """Wait until the next look: for `seconds`, or in doubt only for a pause."""
        paused = min(self._pause * random.uniform(0.5, 1.0), seconds)
        await asyncio.sleep(paused)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - paused):
                await self._is_raised.wait()
        is_raised = self._is_raised.is_set()
        self._pause = min(max(2 * self._pause, LEAST_SECONDS), MOST_SECONDS) if is_raised else LEAST_SECONDS
        self._is_raised.clear()


class Renewals:
    """Limits how often connections are renewed because Redis refuses writes (READONLY).

    A connection may lead to a node that has become a replica, while a new one to the same address reaches the
    primary. A script can word such an error, so the time between two renewals grows.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_due = False
        self._pause = RENEWALS_LEAST
        self._last = -RENEWALS_MOST

    def refused(self) -> None:
        """A connection has answered READONLY since the last renewal."""
        self._is_due = True

    def take(self) -> bool:
        """Whether connections are to be renewed now."""
        since = self._clock() - self._last
        if not self._is_due or since < self._pause:
            return False
        self._pause = min(2 * self._pause, RENEWALS_MOST) if since < 2 * RENEWALS_MOST else RENEWALS_LEAST
        self._last = self._clock()
        self._is_due = False
        return True
