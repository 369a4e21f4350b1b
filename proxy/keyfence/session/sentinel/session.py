"""One client of a Sentinel listener: bytes in, answers out.

Rule: nothing goes to Redis. A request is small, and all of them draw from the client's turn.
"""

from __future__ import annotations

import itertools
from time import monotonic

from keyfence.net.closures import PROTOCOL_ERROR
from keyfence.resp.encode import error
from keyfence.resp.limits import KIB, ProtocolError, RequestLimits
from keyfence.resp.profile import Profile
from keyfence.resp.requests import RequestReader
from keyfence.session.conversation.base import Outlet, SessionBase
from keyfence.session.conversation.routing import Route

from .commands import Asker, answer
from .facts import Sentinel

# The longest request takes 2 ms, which is a client's turn.
LIMITS = RequestLimits(
    max_arguments=128, max_bulk=16 * KIB, max_inline=16 * KIB, max_request=64 * KIB, max_held=64 * KIB
)
_numbers = itertools.count(1)


class SentinelSession(SessionBase):
    """A client that asks for an address."""

    def __init__(self, sentinel: Sentinel, service: str, address: str) -> None:
        """`address` is where the client comes from."""
        # A shared connection is one that this client never asks for.
        super().__init__(service, Profile(), Outlet(), Route(sharing=True, clock=monotonic))
        self._reader = RequestReader(LIMITS)
        self._asker = Asker(sentinel, next(_numbers), address)

    def from_client(self, data: bytes) -> None:
        if not self.closing:
            self._reader.feed(data)
            self._answer_all()

    def take_turn(self) -> None:
        self.wants_turn = False
        self.turn_ends = 0.0
        self._answer_all()

    def _answer_all(self) -> None:
        while not self.closing:
            if self.turn_is_over():
                self.wants_turn = True
                return
            try:
                argv = self._reader.next()
            except ProtocolError as exc:
                self.to_client.append(error(f"ERR {exc}"))
                self.closing = PROTOCOL_ERROR.because(f"protocol error: {exc}")
                return
            if argv is None:
                return
            if argv:
                self._answer(argv)

    def _answer(self, argv: list[bytes]) -> None:
        reply = answer(self._asker, argv)
        if reply:
            self.to_client.append(reply)
        if self._asker.ends is not None:
            self.closing = self._asker.ends

    # -- what the owner asks

    def wants_input(self) -> bool:
        return not self.wants_turn

    def backlog(self) -> int:
        return self._reader.pending()

    @property
    def outstanding(self) -> int:
        return 0

    @property
    def holds_back(self) -> bool:
        return self.wants_turn

    @property
    def awaits_more(self) -> bool:
        return self.wants_turn

    @property
    def waits(self) -> bool:
        """A subscriber waits for messages, although none comes."""
        return len(self._asker.subscriptions) > 0
