"""One client's reads at a replica, and all else at the primary.

Rule: replies are due on one side at a time, so they come in the client's order. `whereabouts` says which side
a read takes.
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
from .whereabouts import Place, Whereabouts

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


class ReadingLinks(Sharer):
    """The two shares of a client whose service reads from replicas."""

    def __init__(self, client: Sharer, primary: Pools, replicas: Replicas, after_write: float) -> None:
        """`after_write`: how long reads stay at the primary, in seconds."""
        self._client: Sharer | None = client
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._where = Whereabouts(replicas, after_write, self._loop.call_later, self._is_ready, self._go_on)
        self._primary = Side(primary, self)
        self._replica: Side | None = None
        self._side = self._primary  # where the last request went
        self._profile: Profile | None = None
        self._queue: deque[tuple[Piece, bool]] = deque()  # with whether a reply may be shaped
        self._due = 0  # replies, all from `_side`
        self._until_written = 0  # replies up to the one to the last command that is not a read; 0: it came
        self._worked_elsewhere = False  # on the client's own connection, since the last request here
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
            now = self._loop.time()
            self._where.heard(now)
            self._where.wrote(now)
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
        self._where.close()
        self._primary.leave()
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
        self._where.is_away = side is not self._primary
        self._due += piece.replies
        if not piece.reads:
            self._until_written = self._due
        else:
            self._replicas.count_reads(side.replica, piece.replies)
        link.send([piece.data], [piece.replies], shapeable)

    def _side_of(self, piece: Piece) -> Side | None:
        """Where the next piece goes; None: that has to wait."""
        where = self._where
        if not piece.reads:
            where.stop_waiting()
            return self._primary
        if self._until_written:
            return self._primary
        place = where.of_read(self._loop.time(), due=bool(self._due))
        if self._replica is not None and self._replica.replica is not where.replica:
            self._leave_replica()
        if place is Place.LATER:
            return None
        return self._replica if place is Place.REPLICA else self._primary

    def _is_ready(self, replica: Replica) -> bool:
        """Whether this client has a connection to a replica that it may use."""
        assert self._profile is not None
        if self._replica is None or self._replica.replica is not replica:
            self._leave_replica()
            self._replica = Side(replica.pools, self, replica)
        return self._replica.is_ready(self._profile)

    def _leave_replica(self) -> None:
        """No reply may be due there."""
        if self._replica is not None:
            if self._side is self._replica:
                self._side = self._primary
            self._replica.leave()
            self._replica = None

    # -- as the shares use it

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:
        self._due -= completed
        if self._side is self._primary:
            now = self._loop.time()
            self._where.heard(now)
            if self._until_written:
                self._until_written = max(self._until_written - completed, 0)
                if not self._until_written:
                    self._where.wrote(now)
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

    def shared_failed(self, link: Share, exc: Exception) -> None:
        if self._client is not None:
            self._client.shared_failed(link, exc)

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
