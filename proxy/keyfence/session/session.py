# cython: annotation_typing=False
"""One client's session: reads each request, has it authorized, and has it sent on or carried out.

Rule: bytes in, bytes out, no I/O. Exactly the evaluated bytes go upstream, and a local reply waits for its
turn. A session that cannot be followed any more becomes opaque or ends; it never guesses.

The owner (`downstream.client`) feeds `from_client` and `from_upstream` (or `from_shared`). What they lead to
is in the conversation: `to_upstream`, and its replies' `to_client`.
"""

from __future__ import annotations

from typing import Any

from keyfence.commands.model import Streamed
from keyfence.resp.limits import ProtocolError
from keyfence.resp.profile import unchanged
from keyfence.resp.requests import StreamedBulk
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.executor import Executor
from keyfence.session.conversation.known_client import KnownClient
from keyfence.session.conversation.owner_questions import Question
from keyfence.session.conversation.routing import Route
from keyfence.session.conversation.states import State

from .fastpath import EMPTY, EVALUATE, NOTHING, REFUSED, FastPath, Outcome
from .long_evaluation import LongEvaluation
from .passthrough import Passthrough
from .slowpath import SlowPath
from .whole import sends_whole

_NOTHING, _EMPTY, _EVALUATE, _REFUSED = NOTHING, EMPTY, EVALUATE, REFUSED
_OPAQUE = int(State.OPAQUE)
_BECOMING_OPAQUE = int(State.BECOMING_OPAQUE)
_CLOSING = int(State.CLOSING)


class Session(Passthrough):
    """Reads one client's requests, and hands each to the fast path, the slow path or the executor."""

    def __init__(self, context: SessionContext, origin: ClientOrigin) -> None:
        profile, route = unchanged(context.database), Route(context.sharing, context.clock, context.roams)
        conversation = Conversation(profile, route, context.limits)
        client = KnownClient(context, origin, conversation)
        super().__init__(client, conversation)
        self.executor = Executor(client, conversation)
        self._fast = FastPath(client, conversation)
        self._slow = SlowPath(self.executor, self._fast)

    # -- from the client

    def from_client(self, data: bytes) -> None:
        conversation = self.conversation
        if conversation.from_client(data):
            self._read_requests()

    def _read_requests(self) -> None:
        """Have every complete request authorized. Adjacent admitted requests are sent as one piece."""
        fast, slow, conversation = self._fast, self._slow, self.conversation
        conversation.settle()
        cache = fast.current_cache()
        while conversation.may_evaluate():
            try:
                found = fast.read(cache)
            except ProtocolError as exc:
                fast.send_run()
                self.executor.answer_protocol_error(exc)
                return
            if found.kind == _NOTHING:
                break
            if found.kind == _EMPTY:  # no reply is due, so it is not sent on
                fast.send_run()
                conversation.replies.pass_over()
            elif found.kind == _REFUSED:
                fast.send_run()
                self.executor.answer_refusal(found.refusal)
                continue  # `fast.read` has looked at the turn's time as often as for admitted requests
            elif found.kind == _EVALUATE and sends_whole(self.executor, fast, slow, cache, found.argv):
                continue
            elif self._authorize(found):
                cache = fast.current_cache()
            conversation.yields()
        fast.send_run()
        fast.let_go()
        if conversation.wants_turn and slow.long is None and not conversation.reader.pending():
            conversation.wants_turn = False  # nothing is left for another turn
        if conversation.stream():
            self._read_requests()
        conversation.reader.let_go()

    def _authorize(self, found: Outcome) -> bool:
        """Have any other request authorized. True: it was carried out at once, which may have changed the
        cache."""
        argv, conversation = found.argv, self.conversation
        if conversation.partly_sent:
            for at, one in enumerate(argv):
                if isinstance(one, StreamedBulk):
                    argv[at] = Streamed(one, one.size)
        if self._slow.admits(found):
            conversation.partly_sent = False
            self._fast.join(conversation.reader)
            return False
        self._fast.send_run()
        long = self._slow.long
        if long is None:
            reader = conversation.reader
            self.executor.request = reader.span(reader.start, reader.end)
            self.executor.execute(argv)
        elif long.has_ended:
            self._slow.long = None
            self._end_long(long, at_once=True)
        return True

    def take_turn(self) -> None:
        conversation, long = self.conversation, self._slow.long
        conversation.wants_turn = False
        conversation.turn_ends = 0.0
        if conversation.replies.closing:
            self._slow.long = None
            return
        if long is not None:
            if not self._slow.advance(long):
                return
            self._slow.long = None
            conversation.after_deferred(lambda: self._end_long(long))
        self._read_requests()

    def _end_long(self, long: LongEvaluation, *, at_once: bool = False) -> None:
        """Carry out what a long evaluation has led to."""
        executor, conversation = self.executor, self.conversation
        executor.request = long.sent
        ruling, evaluation = long.answer
        if self._slow.concludes(long.request, ruling, evaluation, at_once):
            conversation.partly_sent = False
            conversation.send(long.sent, 1)
        else:
            executor.execute(long.request.argv)

    # -- from upstream, and from the owner

    def from_upstream(self, data: bytes) -> None:
        conversation, at = self.conversation, 0
        while at < len(data) and not conversation.replies.closing:
            at = conversation.from_upstream(data, at, self.client)
            if conversation.replies.slot_done and conversation.after_slot():
                self._read_requests()
        conversation.close_when_answered()

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        conversation = self.conversation
        if conversation.from_shared(data, completed, whole) and conversation.after_slot():
            self._read_requests()
        conversation.close_when_answered()

    def upstream_refused(self, reason: str) -> None:
        super().upstream_refused(reason)
        self._read_requests()

    def take_answer(self, question: Question, answer: Any) -> None:
        super().take_answer(question, answer)
        self._read_requests()

    def forget_policy(self) -> None:
        # An open transaction and a long evaluation keep the policy that they began with.
        if self.conversation.transaction is None and self._slow.long is None:
            self._fast.forget()
            self.executor.client.forget_policy()
