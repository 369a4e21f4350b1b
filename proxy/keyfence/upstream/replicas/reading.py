"""One client's reads at a replica, and all else at the primary.

Rule: a client never reads something older than what it has read or written before on its connection. So it
comes to a replica only after a check has shown that the replica has all that the client knows of the primary.
Replies are due on one side at a time, so they come in the client's order.

After anything that is not a plain read, the client's reads stay at the primary for a while. Then the next
read waits for a check, for a moment at most; if the replica lags, it goes to the primary again.
"""

from __future__ import annotations

import asyncio
from collections import deque

from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart
from keyfence.upstream.exchange import Share, Sharer
from keyfence.upstream.pools import Pools
from keyfence.upstream.shared import SharedLink

from .replica import Replica
from .replicas import Replicas
from .sorting import Piece

HOLD_SECONDS = 0.25  # for which a read waits at most until a replica has what the client knows
_NEVER = float("-inf")
# Errors of a replica that does not serve now.
_NOT_READY = ("MASTERDOWN", "LOADING")


class Side:
    """One client's share of the connections to one node."""

    def __init__(self, pools: Pools, sharer: Sharer, replica: Replica | None = None) -> None:
        """`replica` None: the node is the primary."""
        self.replica = replica
        self.link: SharedLink | None = None
        self.is_full = False  # whether the node reads too slowly
        self._shared_as: Profile | None = None
        self._pools = pools
        self._sharer = sharer
        if replica is not None:
            replica.readers += 1

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share."""
        link = self.link
        if link is None or link.is_evicted or (self._shared_as is not profile and link.kind != profile.kind):
            self.leave()
            self.link = self._pools.link(profile, self._sharer)
        self._shared_as = profile
        return self.link is not None

    def is_ready(self, profile: Profile) -> bool:
        """Whether a connection of this kind is known to be ready."""
        return self.may_share(profile) and self.link is not None and self.link.is_ready

    def leave(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def close(self) -> None:
        self.leave()
        if self.replica is not None:
            self.replica.readers -= 1


class ReadingLinks(Sharer):
    """The two shares of a client whose service reads from replicas."""

    def __init__(self, client: Sharer, primary: Pools, replicas: Replicas, after_write: float) -> None:
        """`after_write`: how long reads stay at the primary, in seconds."""
        self._client: Sharer | None = client
        self._replicas = replicas
        self._after_write = after_write
        self._loop = asyncio.get_running_loop()
        self._primary = Side(primary, self)
        self._replica: Side | None = None
        self._side = self._primary  # where the last request went
        self._profile: Profile | None = None
        self._queue: deque[tuple[Piece, bool]] = deque()  # with whether a reply may be shaped
        self._due = 0  # replies, all from `_side`
        self._until_written = 0  # replies up to the one to the last command that is not a read; 0: it came
        self._knows_of = _NEVER  # when the last reply of the primary came
        self._stays_until = _NEVER  # until when reads stay at the primary
        self._worked_elsewhere = False  # on the client's own connection, since the last request here
        self._hold: asyncio.TimerHandle | None = None  # ends it; None: no read waits for a check
        self._hold_is_over = False
        self._is_timed = False

    # -- as `Links` uses it

    @property
    def is_open(self) -> bool:
        """Whether a request was sent."""
        return self._primary.link is not None

    @property
    def is_held(self) -> bool:
        """Whether nothing that the client waits for has left keyfence."""
        if self._side is not self._primary:
            return not self._due
        return self._primary.link is None or self._primary.link.is_held

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share."""
        self._profile = profile
        return self._primary.may_share(profile)

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        """Send chunks with `counts` requests each. `shapeable`: the client's text might shape a reply."""
        if self._worked_elsewhere:
            self._worked_elsewhere = False
            self._knows_of = self._loop.time()
            self._stays_until = self._knows_of + self._after_write
        for chunk, count in zip(chunks, counts, strict=True):
            pieces = [Piece(chunk, count, False)] if shapeable else self._replicas.sorter.pieces(chunk, count)
            self._queue.extend((piece, shapeable) for piece in pieces)
        self._go_on()

    def time_next(self) -> None:
        """`Sharer.shared_sent` is called once the next requests are written."""
        self._is_timed = True

    def works_elsewhere(self) -> None:
        """The client uses its own connection."""
        self._worked_elsewhere = True

    def close(self) -> None:
        """The client no longer uses this. No callback comes after this."""
        self._client = None
        self._queue.clear()
        self._end_hold()
        self._primary.close()
        self._leave_replica()

    # -- which side

    def _go_on(self) -> None:
        """Send what may be sent now."""
        while self._queue and self._client is not None:
            piece, shapeable = self._queue[0]
            side = self._side_of(piece)
            if side is None or (self._due and side is not self._side):
                return
            self._queue.popleft()
            self._send(side, piece, shapeable)

    def _send(self, side: Side, piece: Piece, shapeable: bool) -> None:
        link = side.link
        assert link is not None
        if self._is_timed:
            self._is_timed, link.is_timed = False, True
        self._side = side
        self._due += piece.replies
        if not piece.reads:
            self._until_written = self._due
        if side.replica is not None:
            side.replica.sent += piece.replies
        link.send([piece.data], [piece.replies], shapeable)

    def _side_of(self, piece: Piece) -> Side | None:
        """Where the next piece goes; None: that has to wait."""
        if not piece.reads:
            self._end_hold()
            return self._primary
        if self._until_written:
            return self._primary
        now = self._loop.time()
        if self._side is self._replica and self._replica is not None:
            if self._may_read(self._replica, now):
                return self._replica
            self._stays_until = now + self._after_write
            return self._primary
        return self._primary if now < self._stays_until else self._returns(now)

    def _may_read(self, side: Side, now: float) -> bool:
        assert side.replica is not None
        assert self._profile is not None
        return not side.replica.why_not(now) and side.is_ready(self._profile)

    def _returns(self, now: float) -> Side | None:
        """Where a read of a client goes that is at the primary, and need not be. None: that has to wait."""
        if self._replica is None or not self._may_read(self._replica, now):
            self._leave_replica()
            replica = self._replicas.choose(now)
            if replica is None:
                self._end_hold()
                return self._primary
            self._replica = Side(replica.pools, self, replica)
            if not self._may_read(self._replica, now):
                self._end_hold()
                return self._primary
        replica = self._replica.replica
        assert replica is not None
        if self._due:
            return None
        # Both times are read from a clock that stands still within a turn of the loop.
        if replica.has_all_of > self._knows_of:
            self._end_hold()
            return self._replica
        if self._hold_is_over:
            self._end_hold()
            self._stays_until = now + self._after_write
            return self._primary
        if self._hold is None:
            self._hold = self._loop.call_later(HOLD_SECONDS, self._held_too_long)
        self._replicas.when_checked(self._go_on)
        return None

    def _held_too_long(self) -> None:
        self._hold_is_over = True
        self._go_on()

    def _end_hold(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold, self._hold_is_over = None, False
            self._replicas.forget(self._go_on)

    def _leave_replica(self) -> None:
        """No reply may be due there."""
        if self._replica is not None:
            if self._side is self._replica:
                self._side = self._primary
            self._replica.close()
            self._replica = None

    # -- as the shares use it

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:
        self._due -= completed
        if self._side is self._primary:
            self._knows_of = self._loop.time()
            if self._until_written:
                self._until_written = max(self._until_written - completed, 0)
                if not self._until_written:
                    self._stays_until = self._knows_of + self._after_write
        if self._client is not None:
            self._client.shared_replies(link, data, completed, whole)

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:
        replica = self._side.replica
        if replica is not None and any(error.word in _NOT_READY for error in errors):
            replica.doubt("it does not serve now")
            self._replicas.look_again()
        return data if self._client is None else self._client.shared_errors(link, data, errors, at)

    def shared_sent(self, link: Share) -> None:
        if self._client is not None:
            self._client.shared_sent(link)

    def shared_turn(self, link: Share) -> None:
        if self._client is not None:
            self._client.shared_turn(link)
        if not self._due:
            self._go_on()

    def shared_lost(self, link: Share, reason: str) -> None:
        if self._client is not None:
            self._client.shared_lost(link, reason)

    def upstream_refused(self, link: object, reason: str) -> None:
        self._queue.clear()
        self._due = self._until_written = 0
        if self._client is not None:
            self._client.upstream_refused(link, reason)

    def upstream_full(self, link: object, full: bool) -> None:
        for side in (self._primary, self._replica):
            if side is not None and side.link is link:
                side.is_full = full
        if self._client is not None:
            is_full = self._primary.is_full or (self._replica is not None and self._replica.is_full)
            self._client.upstream_full(link, is_full)
