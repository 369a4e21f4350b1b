# cython: annotation_typing=False
"""One client's session: reads each request, decides about it, and sends it on or refuses it.

Rule: bytes in, bytes out, no I/O. Exactly the evaluated bytes go upstream, and a local reply waits for its
turn. A session that cannot be followed any more becomes opaque or ends; it never guesses.

The owner (`downstream.client`) feeds `from_client` and `from_upstream` (or `from_shared`), and takes
`to_upstream` and `to_client`.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.commands.model import Streamed
from keyfence.resp.limits import ProtocolError
from keyfence.resp.requests import StreamedBulk
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.executor import Executor
from keyfence.session.conversation.states import State

from .fastpath import EMPTY, EVALUATE, NOTHING, REFUSED, FastPath, Outcome
from .long_evaluation import LongEvaluation
from .slowpath import SlowPath
from .whole import sends_whole

_NOTHING, _EMPTY, _EVALUATE, _REFUSED = NOTHING, EMPTY, EVALUATE, REFUSED
_OPAQUE = int(State.OPAQUE)
_BECOMING_OPAQUE = int(State.BECOMING_OPAQUE)
_CLOSING = int(State.CLOSING)


class Session(Executor):
    """One client: its identity, its requests, and the decisions about them."""

    def __init__(self, context: SessionContext, origin: ClientOrigin) -> None:
        super().__init__(context, origin)
        self._fast = FastPath()
        self._slow = SlowPath(self._fast)

    # -- from the client

    def from_client(self, data: bytes) -> None:
        if self.replies.closing or self.state == _CLOSING:
            return  # as Redis drops everything after QUIT
        if self.state == _OPAQUE:
            self.to_upstream.append(data)
        elif self.state == _BECOMING_OPAQUE:
            self._unread += data
        else:
            self.reader.feed(data)
            self._read_requests()

    def _read_requests(self) -> None:
        """Decide about every complete request. Adjacent admitted requests are sent as one piece."""
        fast, slow = self._fast, self._slow
        self.settle()
        cache = fast.current_cache(self)
        while self.may_evaluate():
            try:
                found = fast.read(self, cache)
            except ProtocolError as exc:
                fast.send_run(self)
                self._protocol_error(exc)
                return
            if found.kind == _NOTHING:
                break
            if found.kind == _EMPTY:  # no reply is due, so it is not sent on
                fast.send_run(self)
                self.replies.pass_over()
            elif found.kind == _REFUSED:
                fast.send_run(self)
                self._answer_refusal(found.refusal)
                continue  # `fast.read` has looked at the turn's time as often as for admitted requests
            elif found.kind == _EVALUATE and sends_whole(self, fast, slow, cache, found.argv):
                continue
            elif self._decide(found):
                cache = fast.current_cache(self)
            if self.turn_is_over():
                self.wants_turn = True
        fast.send_run(self)
        fast.let_go()
        if self.wants_turn and slow.long is None and not self.reader.pending():
            self.wants_turn = False  # nothing is left for another turn
        if self.exceeds_share(self.reader.announced(), 0) and self.may_evaluate():
            self._large_request()
        self.reader.let_go()

    def _decide(self, found: Outcome) -> bool:
        """Decide about any other request. True: the decision was carried out at once, which may have changed
        the cache."""
        argv = found.argv
        if self.partly_sent:
            for at, one in enumerate(argv):
                if isinstance(one, StreamedBulk):
                    argv[at] = Streamed(one, one.size)
        if self._slow.admits(self, found):
            self.partly_sent = False
            self._fast.join(self.reader)
            return False
        self._fast.send_run(self)
        long = self._slow.long
        if long is None:
            self.request = self.reader.span(self.reader.start, self.reader.end)
            self.execute(argv)
        elif long.has_ended:
            self._slow.long = None
            self._end_long(long, at_once=True)
        return True

    def take_turn(self) -> None:
        self.wants_turn = False
        self.turn_ends = 0.0
        long = self._slow.long
        if self.closing:
            self._slow.long = None
            return
        if long is not None:
            if not self._slow.advance(self, long):
                return
            self._slow.long = None
            before = self._deferred
            if before is None:
                self._end_long(long)
            else:
                self._deferred = lambda: self._end_long(long, before=before)
        self._read_requests()

    def _end_long(
        self, long: LongEvaluation, *, before: Callable[[], None] | None = None, at_once: bool = False
    ) -> None:
        """Call `before`, and then carry out the decision of a long evaluation."""
        if before is not None:
            before()
        self.request = long.sent
        ruling, evaluation = long.answer
        if self._slow.concludes(self, long.request, ruling, evaluation, at_once):
            self.partly_sent = False
            self.send(long.sent, 1)
        else:
            self.execute(long.request.argv)

    def become(self, service: str, user: bytes | None = None) -> None:
        self._fast.forget()
        super().become(service, user)

    def forget_policy(self) -> None:
        if self.transaction is None and self._slow.long is None:  # these keep the policy that they began with
            self._fast.forget()
            super().forget_policy()
