"""The last failover: to which node, when, why, and how long Redis was out of service.

Rule: the time begins with the first sign that the former primary was lost (a lost connection, a refused
write, at the latest the move), and ends when a connection to the new one could be used: a client's, or the
prober's if no client asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

ROLE = "its role"  # has shown that the same address leads to a primary again


class Failover(NamedTuple):
    """Another node has become the primary."""

    node: str  # its address
    why: str  # who or what has shown it
    at: float  # in Unix seconds
    seconds: float | None = None  # without service; None: it is not over


class Failovers:
    """Follows one upstream's failovers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.last: Failover | None = None
        self._clock = clock
        self._doubted: float | None = None  # when the primary came into doubt

    def doubted(self) -> None:
        """There is a sign that the primary is lost."""
        if self._doubted is None:
            self._doubted = self._clock()

    def moved(self, node: str, why: str) -> None:
        """Another node is the primary now."""
        self.doubted()
        self.last = Failover(node, why, time.time())

    def served(self) -> float | None:
        """A connection can be used, and does not lead to a replica. Returns how long a failover took that has
        ended by that."""
        doubted, self._doubted = self._doubted, None
        if doubted is None or self.last is None or self.last.seconds is not None:
            return None
        seconds = self._clock() - doubted
        self.last = self.last._replace(seconds=seconds)
        return seconds
