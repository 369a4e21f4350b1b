"""When credentials are fetched anew. Without I/O: the clock is given.

Rule: new credentials are fetched at three quarters of the life of those in force. If that fails, those in
force stay, and the attempts go on with growing pauses. A refusal by Redis has them fetched at once, but one
that follows such a fetch is Redis' answer.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from .model import Credentials

RENEWED_AT = 0.75  # of the life of credentials
EARLIER_BY = 0.05  # of their life at most, so that processes do not fetch in step
FIRST_PAUSE = 1.0  # seconds after a fetch that has failed or brought nothing new, …
LONGEST_PAUSE = 60.0  # … doubled each time up to this


def doubled(first: float, times: int, longest: float) -> float:
    """Returns the pause after this many vain attempts in a row: `first`, doubled each time up to
    `longest`."""
    return min(first * 2.0 ** min(times - 1, 10), longest)


class Rotation:
    """The credentials in force, and when the next ones are due."""

    def __init__(
        self, clock: Callable[[], float] = time.time, spread: Callable[[], float] = random.random
    ) -> None:
        """`spread` gives numbers from 0 to 1."""
        self.current: Credentials | None = None
        self.number = 0  # how many there have been
        self.obtained_at = 0.0
        self.failures = 0  # in a row
        self._clock = clock
        self._spread = spread
        self._due_at = -math.inf
        self.is_doubted = False  # whether Redis has refused them, and they are fetched anew for that
        self._vain = 0  # fetches in a row after a refusal that brought nothing new
        self._refusals_count_from = -math.inf  # before this, a refusal is Redis' answer

    def seconds_left(self) -> float:
        """Seconds until the next fetch is due; infinity: none is."""
        return max(0.0, self._due_at - self._clock())

    def due(self) -> None:
        """The source has changed: fetch at once."""
        self._due_at = self._clock()

    def refused(self, number: int) -> bool:
        """Redis has refused the credentials of this number. Returns whether there may be others, so that it
        is worth another attempt."""
        if number != self.number or self.is_doubted:
            return True
        if self._clock() < self._refusals_count_from:
            return False
        self.is_doubted = True
        self.due()
        return True

    def obtained(self, credentials: Credentials) -> bool:
        """A fetch has brought these. Returns whether they are others than before, or last longer."""
        now = self._clock()
        is_new = credentials != self.current
        if not credentials.same_login(self.current):
            self.number += 1
            self._vain = 0
        elif self.is_doubted:
            self._vain += 1
            self._refusals_count_from = now + self._pause(self._vain)
        self.current, self.obtained_at = credentials, now
        self.failures, self.is_doubted = 0, False
        self._due_at = math.inf
        if credentials.expires_at is not None:
            life = credentials.expires_at - now
            self._due_at = now + max(FIRST_PAUSE / 2, life * (RENEWED_AT - EARLIER_BY * self._spread()))
        return is_new

    def failed(self) -> None:
        """A fetch has brought nothing."""
        self.failures += 1
        self.is_doubted = False
        self._due_at = self._refusals_count_from = self._clock() + self._pause(self.failures)

    def _pause(self, times: int) -> float:
        """The pause after so many vain attempts, with jitter."""
        return doubled(FIRST_PAUSE, times, LONGEST_PAUSE) * (1 - self._spread() / 2)
