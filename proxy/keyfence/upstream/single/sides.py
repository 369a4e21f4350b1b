# cython: annotation_typing=False
"""One client's share of the connections to one node: what was sent there, and which replies are due.

Rule: a request is kept until its reply has come, because a node may refuse it for another one to run. Replies
belong to turns, or wait in the stock until they are merged (`dealing`).
"""

from __future__ import annotations

from typing import Any

from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart, ReplyFramer
from keyfence.upstream.exchange import Share, Sharer
from keyfence.upstream.replicas.replica import Replica
from keyfence.upstream.shared import SharedLink

from .cutting import requests_in
from .masters import Master
from .turns import Turn

_FRAMER = ReplyFramer()  # of all stocks: it stands between two replies


class Sent:
    """Requests that were sent at once, as one piece. Made without a call of `__init__`, as `Turn`."""

    data: bytes
    count: int  # replies that they get
    left: int  # of these, still to come
    shapeable: bool  # the client's text might shape one of them
    again: Any  # the refused command that this sends again; None: it is no such
    requests: list[bytes] | None  # each request, once one of them had to be found
    behind: Sent | None


def new_sent(data: bytes, count: int, shapeable: bool, again: Any) -> Sent:
    sent = Sent.__new__(Sent)
    sent.data, sent.count, sent.left, sent.shapeable, sent.again = data, count, count, shapeable, again
    sent.requests, sent.behind = None, None
    return sent


class Receiver:
    """All shares of a client, which its sides call back."""

    def came(self, side: Side, data: bytes, completed: int, whole: bool) -> None:
        """A side has received bytes, in which so many replies end. `whole`: they end with one."""
        raise NotImplementedError

    def turn_is_over(self) -> None:
        """A side has handed over all that it has received."""
        raise NotImplementedError


class Side(Sharer):
    """A client's share of one node's connections."""

    def __init__(self, shares: Any, master: Master | Replica, place: int) -> None:
        """`place`: among the client's sides."""
        self.master = master
        self.number = master.number
        self.place = place
        self.part_count = 0  # requests in the parts …
        self.parts: list[bytes] = []  # … of what the client has sent that go here
        self.stock = 0  # replies in the stock
        self.counted = 0  # of these, as `Deals` counts
        self.link: SharedLink | None = None
        self.is_full = False  # whether the node reads too slowly
        self.is_looked_at = False  # an error was noted: replies are read one by one until none is due
        self.due = 0  # replies
        self.turn: Turn | None = None  # the first one with replies due
        self.framer = ReplyFramer()
        self.part = b""  # the beginning of an error's line, of which the client has nothing yet
        self._last: Turn | None = None
        self._sent: Sent | None = None
        self._sent_last: Sent | None = None
        self._shares: Any = shares
        self._shared_as: Profile | None = None
        self._stocked = b""  # the replies in stock …
        self._stock_at = 0  # … from here on

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share."""
        link = self.link
        if link is None or link.is_evicted or (self._shared_as is not profile and link.kind != profile.kind):
            self.leave()
            self.link = self.master.pools.link(profile, self)
        self._shared_as = profile
        return self.link is not None

    def expect(self, turn: Turn) -> None:
        """The replies of this turn come next."""
        self.due += turn.count
        self.queue(turn)

    def queue(self, turn: Turn) -> None:
        """The turn is the side's last one. Its replies are due already."""
        if self.turn is None:
            self.turn = turn
        else:
            assert self._last is not None
            self._last.later = turn
        self._last = turn

    def next_turn(self) -> None:
        """No more replies of the first turn come from this node: the next one is first among the node's."""
        assert self.turn is not None
        self.turn = self.turn.later
        if self.turn is None:
            self._last = None

    def replaced(self, turn: Turn, rest: Turn | None) -> None:
        """The second one has the rest of the first one's replies; None: none are left of them."""
        self.turn = rest if rest is not None else turn.later
        if self._last is turn:
            self._last = rest

    def send(self, sent: Sent) -> None:
        """Send requests whose turns are expected."""
        if self._sent_last is None:
            self._sent = sent
        else:
            self._sent_last.behind = sent
        self._sent_last = sent
        if sent.shapeable:
            self.is_looked_at = True
        link = self.link
        assert link is not None
        link.send([sent.data], [sent.count], sent.shapeable)

    @property
    def sent(self) -> Sent | None:
        """The requests of which the next reply is due."""
        return self._sent

    def answered(self, completed: int) -> None:
        """So many more replies have come, all to requests that were sent as one piece."""
        self.due -= completed
        sent = self._sent
        assert sent is not None
        sent.left -= completed
        if not sent.left:
            self._sent = sent.behind
            if self._sent is None:
                self._sent_last = None
                self.is_looked_at = False

    # -- the stock

    def put(self, data: bytes, completed: int) -> None:
        """Put whole replies into the stock."""
        self._stocked = self._stocked[self._stock_at :] + data if self.stock else data
        self._stock_at = 0
        self.stock += completed

    def get(self, count: int) -> bytes:
        """Take the first replies out of the stock."""
        begin = self._stock_at
        raw = self._stocked
        if count == self.stock:
            whole, self._stocked, self.stock = self._stocked, b"", 0
            return whole[begin:] if begin else whole
        end = _FRAMER.advance(self._stocked, begin, count)
        self._stock_at = end
        self.stock -= count
        return raw[begin:end]

    def next_request(self) -> bytes:
        """The request whose reply is due next."""
        sent = self._sent
        assert sent is not None
        if sent.requests is None:
            sent.requests = requests_in(sent.data)
        return sent.requests[sent.count - sent.left]

    @property
    def is_unsent(self) -> bool:
        """Whether nothing that is due has left keyfence, nor will."""
        return self.link is not None and self.link.is_held and self.master.upstream.up is False

    @property
    def is_partial(self) -> bool:
        """Whether the client has received a part of the reply that comes in."""
        if self.framer.at_boundary or self.part:
            return False
        again = self._sent.again if self._sent is not None else None
        return again is None or not again.skips  # the client gets nothing of the reply to ASKING

    def forget(self) -> None:
        """Nothing is due here any more."""
        self.due = 0
        self.turn = self._last = None
        self._sent = self._sent_last = None
        self.is_looked_at = False
        self.framer, self.part = ReplyFramer(), b""
        self.stock, self._stocked, self._stock_at = 0, b"", 0

    def leave(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    # -- as the link uses it

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:  # noqa: ARG002
        self._shares.came(self, data, completed, whole)

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:  # noqa: ARG002
        self._shares.error_came(self)
        return data

    def shared_sent(self, link: Share) -> None:
        self._shares.was_sent(link)

    def shared_turn(self, link: Share) -> None:  # noqa: ARG002
        self._shares.turn_is_over()

    def shared_lost(self, link: Share, reason: str) -> None:
        self._shares.lost(link, reason)

    def shared_failed(self, link: Share, exc: Exception) -> None:  # noqa: ARG002
        self._shares.failed(exc)

    def upstream_refused(self, link: object, reason: str) -> None:  # noqa: ARG002
        self._shares.refused(self, reason)

    def upstream_full(self, link: object, full: bool) -> None:
        self.is_full = full
        self._shares.is_full(link)
