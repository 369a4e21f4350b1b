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
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.identity import Identity
from keyfence.session.conversation.routing import Route
from keyfence.session.passthrough import Passthrough

from .commands import Asker, answer
from .facts import Sentinel
from .subscriptions import Subscriptions

# The longest request takes 2 ms, which is a client's turn.
LIMITS = RequestLimits(
    max_arguments=128, max_bulk=16 * KIB, max_inline=16 * KIB, max_request=64 * KIB, max_held=64 * KIB
)
_numbers = itertools.count(1)


class Apart(Conversation):
    """A conversation that Redis has no part in."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        # A shared connection is one that this client never asks for.
        super().__init__(Profile(), Route(sharing=True, clock=monotonic), LIMITS)
        self._subscriptions = subscriptions

    def wants_input(self) -> bool:
        return not self.wants_turn

    @property
    def waits(self) -> bool:
        """A subscriber waits for messages, although none comes."""
        return len(self._subscriptions) > 0


class SentinelSession(Passthrough):
    """A client that asks for an address."""

    def __init__(self, sentinel: Sentinel, service: str, address: str) -> None:
        """`address` is where the client comes from."""
        self._asker = Asker(sentinel, next(_numbers), address)
        super().__init__(Identity(service), Apart(self._asker.subscriptions))

    def from_client(self, data: bytes) -> None:
        if self.conversation.from_client(data):
            self._answer_all()

    def take_turn(self) -> None:
        self.conversation.wants_turn = False
        self.conversation.turn_ends = 0.0
        self._answer_all()

    def _answer_all(self) -> None:
        conversation, replies = self.conversation, self.conversation.replies
        while not replies.closing and not conversation.yields():
            try:
                argv = conversation.reader.next()
            except ProtocolError as exc:
                replies.local(error(f"ERR {exc}"))
                conversation.end(PROTOCOL_ERROR.because(f"protocol error: {exc}"))
                return
            if argv is None:
                return
            if argv:
                self._answer(argv)

    def _answer(self, argv: list[bytes]) -> None:
        reply = answer(self._asker, argv)
        if reply:
            self.conversation.replies.local(reply)
        if self._asker.ends is not None:
            self.conversation.end(self._asker.ends)
