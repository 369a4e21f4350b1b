"""The timing of requests: in keyfence, and until their replies.

Rule: one request in many is timed, because taking the time costs something. A timed request is the only one
that its client has under way, so the next reply is its own.
"""

from __future__ import annotations

from enum import Enum
from time import perf_counter

from keyfence.telemetry.counters import Counters

TIMED_EACH = 64  # a request of one read in this many is timed
RETRIED_AFTER = 8  # it is timed this many reads later, if something of the client is under way then
# A client's second read is timed, and then each 64th. The first one may wait for a connection.
FIRST_TIMED = 1


class Phase(Enum):
    """How far a timed request has come."""

    READ = "its bytes are in hand; if nothing of them is sent now, the request is not timed"
    SENT = "it waits in keyfence until it is written"
    WRITTEN = "its reply is due"


class TimedRequest:
    """A request that is timed, from now on."""

    __slots__ = ("_since", "phase")

    def __init__(self) -> None:
        self.phase = Phase.READ
        self._since = perf_counter()

    @property
    def is_in_hand(self) -> bool:
        return self.phase is Phase.READ

    def sent(self) -> None:
        """It was handed over to the link that writes it."""
        self.phase = Phase.SENT

    def written(self, counters: Counters, service: str) -> None:
        """It was written: count its time in keyfence."""
        now = perf_counter()
        counters.took("request", service, now - self._since)
        self.phase = Phase.WRITTEN
        self._since = now

    def answered(self, counters: Counters, service: str) -> None:
        """Its reply has begun: count the time of Redis."""
        counters.took("upstream", service, perf_counter() - self._since)
