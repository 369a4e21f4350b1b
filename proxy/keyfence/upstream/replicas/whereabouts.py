"""Where one client reads what one primary has: there, or at a replica of it.

Rule: a client never reads something older than what it has read or written before on its connection. So it
comes to a replica only after a check has shown that the replica has all that the client knows of the primary.

After anything that is not a plain read, the client's reads stay at the primary for a while. Then the next
read waits for a check, for a moment at most; if the replica lags, it goes to the primary again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from .replica import Replica
from .replicas import Replicas

HOLD_SECONDS = 0.25  # for which a read waits at most until a replica has what the client knows
NEVER = float("-inf")


class Place(Enum):
    """Where the next read goes."""

    PRIMARY = "primary"
    REPLICA = "replica"
    LATER = "later"  # it has to wait


class Whereabouts:
    """One client's, as far as one primary is concerned. Times are those of the loop."""

    def __init__(
        self,
        replicas: Replicas,
        after_write: float,
        later: Callable[[float, Callable[[], None]], Any],
        is_ready: Callable[[Replica], bool],
        go_on: Callable[[], None],
    ) -> None:
        """`after_write`: how long reads stay at the primary, in seconds. `later` calls back, as the loop's
        `call_later`. `is_ready`: whether the client has a connection to this replica that it may use.
        `go_on` is called when a read has waited."""
        self.replicas = replicas
        self.replica: Replica | None = None  # where it reads, or has read last
        self.is_away = False  # whether its last request went there
        self.knows_of = NEVER  # it may know all that the primary had at this time
        self._stays_until = NEVER  # until when reads stay at the primary
        self._after_write = after_write
        self._later = later
        self._is_ready = is_ready
        self._go_on = go_on
        self._hold: Any = None  # the timer that ends it; None: no read waits for a check
        self._hold_is_over = False

    def of_read(self, now: float, *, due: bool) -> Place:
        """Where the next read goes. `due`: replies are due from where the last request went."""
        if self.is_away:
            if self.replica is not None and self._may_read(self.replica, now):
                return Place.REPLICA
            self.wrote(now)
            return Place.PRIMARY
        return Place.PRIMARY if now < self._stays_until else self._returns(now, due=due)

    def heard(self, now: float) -> None:
        """A reply of the primary has come."""
        self.knows_of = now
        if self.is_away:  # a read was sent again there
            self.is_away = False
            self.wrote(now)

    def wrote(self, now: float) -> None:
        """Reads stay at the primary for a while from now on."""
        self._stays_until = now + self._after_write

    def stop_waiting(self) -> None:
        """Something else than a read is sent to the primary, or the client leaves: no read waits."""
        if self._hold is not None:
            self._hold.cancel()
            self._hold, self._hold_is_over = None, False
            self.replicas.forget(self._go_on)

    def close(self) -> None:
        """The client no longer uses this."""
        self.stop_waiting()
        self._leave()

    def _may_read(self, replica: Replica, now: float) -> bool:
        return not replica.why_not(now) and self._is_ready(replica)

    def _leave(self) -> None:
        if self.replica is not None:
            self.replica.readers -= 1
            self.replica = None

    def _returns(self, now: float, *, due: bool) -> Place:
        """Where a read of a client goes that is at the primary, and need not be."""
        if self.replica is None or not self._may_read(self.replica, now):
            self._leave()
            self.replica = self.replicas.choose(now)
            if self.replica is not None:
                self.replica.readers += 1
            if self.replica is None or not self._may_read(self.replica, now):
                self.stop_waiting()
                return Place.PRIMARY
        if due:
            return Place.LATER
        # Both times are read from a clock that stands still within a turn of the loop.
        if self.replica.has_all_of > self.knows_of:
            self.stop_waiting()
            return Place.REPLICA
        if self._hold_is_over:
            self.stop_waiting()
            self.wrote(now)
            return Place.PRIMARY
        if self._hold is None:
            self._hold = self._later(HOLD_SECONDS, self._held_too_long)
        self.replicas.when_checked(self._go_on)
        return Place.LATER

    def _held_too_long(self) -> None:
        self._hold_is_over = True
        self._go_on()
