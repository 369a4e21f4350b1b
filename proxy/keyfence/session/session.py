# cython: annotation_typing=False
"""One client's session: reads each request, decides about it, and sends it on or refuses it.

Rule: bytes in, bytes out, no I/O. Exactly the evaluated bytes go upstream, and a local reply waits for its
turn. A session that cannot be followed any more becomes opaque or ends; it never guesses.

The owner (`downstream.client`) feeds `from_client` and `from_upstream` (or `from_shared`), and takes
`to_upstream` and `to_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfence.commands.model import Streamed, Touches
from keyfence.commands.own import KEYFENCE
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluation import Evaluation
from keyfence.policy.engine.evidence import evidence_of
from keyfence.policy.engine.forms import COMMAND, Lookup, shows_more
from keyfence.policy.verdict import PASS, Ruling
from keyfence.resp.limits import ProtocolError
from keyfence.resp.requests import StreamedBulk
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.executor import OTHER, Decided, Executor, Handler
from keyfence.session.conversation.observer import Sent
from keyfence.session.conversation.refusal import prepared_refusal, refusal
from keyfence.session.conversation.reply_queue import ON
from keyfence.session.conversation.routing import FIXED_SHAPE, SCRIPTS
from keyfence.session.conversation.states import State
from keyfence.session.conversation.transactions import OpenTransaction
from keyfence.session.handlers.inband import TOO_LONG
from keyfence.session.handlers.table import HANG_UP, OWN, SUBCOMMAND_HANDLERS, TOO_LARGE, handler_of
from keyfence.session.handlers.transactions import open_transaction

from .fastpath import (
    AT_ONCE,
    EMPTY,
    EVALUATE,
    LEAVES,
    NOTHING,
    REFUSED,
    FastPath,
    Outcome,
    exec_follows,
    is_named,
)
from .long_evaluation import LongEvaluation
from .request import Request

_NOTHING, _EMPTY, _EVALUATE, _REFUSED, _LEAVES = NOTHING, EMPTY, EVALUATE, REFUSED, LEAVES
_OPAQUE = int(State.OPAQUE)
_BECOMING_OPAQUE = int(State.BECOMING_OPAQUE)
_CLOSING = int(State.CLOSING)


class Session(Executor):
    """One client: its identity, its requests, and the decisions about them."""

    def __init__(self, context: SessionContext, origin: ClientOrigin) -> None:
        super().__init__(context, origin)
        self._fast = FastPath()
        self._long: LongEvaluation | None = None  # the evaluation under way

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
        fast = self._fast
        self.settle()
        cache = fast.current_cache(self)
        while self.may_evaluate():
            try:
                found = fast.read(self, cache)
            except ProtocolError as exc:
                self._send_run()
                self._protocol_error(exc)
                return
            if found.kind == _NOTHING:
                break
            if found.kind == _EMPTY:  # no reply is due, so it is not sent on
                self._send_run()
                self.replies.pass_over()
            elif found.kind == _REFUSED:
                self._send_run()
                self._answer_refusal(found.refusal)
                continue  # `fast.read` has looked at the turn's time as often as for admitted requests
            elif found.kind == _EVALUATE and self._sends_whole(cache, found.argv):
                continue
            elif self._decide(found):
                cache = fast.current_cache(self)
            if self.turn_is_over():
                self.wants_turn = True
        self._send_run()
        fast.let_go()
        if self.wants_turn and self._long is None and not self.reader.pending():
            self.wants_turn = False  # nothing is left for another turn
        if self.exceeds_share(self.reader.announced(), 0) and self.may_evaluate():
            self._large_request()
        self.reader.let_go()

    def _sends_whole(self, cache: DecisionCache | None, argv: list[bytes]) -> bool:
        """Whether the current request begins a whole transaction, which is sent."""
        if cache is None or self.partly_sent or len(argv) != 1 or not self._may_be_whole(cache, argv[0]):
            return False
        self._send_run()
        return self._whole_transaction(cache)

    def _decide(self, found: Outcome) -> bool:
        """Decide about any other request. True: the decision was carried out at once, which may have changed
        the cache."""
        argv = found.argv
        if self.partly_sent:
            for at, one in enumerate(argv):
                if isinstance(one, StreamedBulk):
                    argv[at] = Streamed(one, one.size)
        if self._admits_as_plain(found):
            self.partly_sent = False
            self._fast.join(self.reader)
            return False
        self._send_run()
        if self._long is None:
            self.request = self.reader.span(self.reader.start, self.reader.end)
            self._execute(argv)
        return True

    def _send_run(self) -> None:
        """Send the run of admitted requests upstream."""
        fast = self._fast
        if fast.count:
            count, fast.count = fast.count, 0
            self._to_upstream(self.reader.span(fast.start, fast.end), count)

    # -- transactions that have arrived as a whole

    def _may_be_whole(self, cache: DecisionCache, name: bytes) -> bool:
        """Whether the current request is a MULTI whose whole transaction may be sent as one piece."""
        return (
            is_named(name, b"MULTI")
            and self.transaction is None
            and not self.route.watching
            and self.replies.mode == ON
            and cache.admits_transactions
        )

    def _whole_transaction(self, cache: DecisionCache) -> bool:
        """Send the transaction that begins with the current MULTI as one piece, if all of it is admitted.

        No other client's requests come between those of one piece, and EXEC undoes its effects on the
        connection, so it may take a shared one. False: the transaction has not arrived as a whole.
        """
        reader, fast = self.reader, self._fast
        start, end = reader.start, reader.end
        is_here = exec_follows(reader, self.room.shared_request, self.room.shared_requests)
        reader.return_to(start, end)
        if not is_here:
            return False
        fast.counted(self, cache.multi)
        fast.compare_transaction(self, b"MULTI")
        transaction = self.transaction = OpenTransaction(self.current_authorizer())
        while True:
            found = fast.read(self, cache)
            if found.kind == _NOTHING:  # the client's turn is over, and the request is in the run
                self._open_before(transaction, start, end, None)
                return True
            argv = found.argv
            if found.kind == _EVALUATE and len(argv) == 1 and is_named(argv[0], b"EXEC"):
                break
            if not self._admits_as_plain(found):
                self._open_before(transaction, start, end, argv)
                self.wants_turn = self.wants_turn or self.turn_is_over()
                return True
            fast.join(reader)
            if self.turn_is_over():
                self.wants_turn = True
                self._open_before(transaction, start, end, None)
                return True
        self.transaction = None
        self.shapeable = self.shapeable or transaction.is_shapeable
        fast.counted(self, cache.execution)
        fast.compare_transaction(self, b"EXEC")
        count, fast.count = fast.count + 2, 0
        self._to_upstream(reader.span(start, reader.end), count)
        return True

    def _open_before(
        self, transaction: OpenTransaction, start: int, end: int, argv: Sequence[bytes] | None
    ) -> None:
        """Open a transaction, whose MULTI is at `start` to `end`, on the client's dedicated connection. The
        requests of the run were admitted. The current one was not; or (`argv` None) it is the last of the
        run, and other clients have their turn."""
        reader, fast = self.reader, self._fast
        multi = reader.span(start, end)
        count, fast.count = fast.count, 0
        admitted = reader.span(fast.start, fast.end) if count else b""
        request, decided = reader.span(reader.start, reader.end), self.decided
        self.transaction = None
        self.route.stay()

        def begin() -> None:
            if self.route.is_shared:
                self._leave_shared()
            open_transaction(self, transaction, multi)
            if count:
                self._to_upstream(admitted, count)
            if argv is not None:
                self.request = request
                self.decided = Decided(
                    decided.handler, decided.refusal, decided.command, True, decided.is_counted
                )
                self._execute(argv)

        if self.route.is_shared:
            self.when_answered(begin)
        else:
            begin()

    def _admits_as_plain(self, found: Outcome) -> bool:
        """Decide about a request. True: it goes upstream as it is and gives exactly one reply. Otherwise
        `decided` has the decision, or a long evaluation is under way."""
        if found.kind == _REFUSED:
            self.decided = Decided(None, found.refusal, "", True, True)
            return False
        if found.kind == _LEAVES and found.call is not None:
            self.observer.asked(self.service, found.call.evidence)
            self.decided = Decided(None, None, found.call.name, False)
            return False
        argv = found.argv
        handler = handler_of(argv[0])
        if handler is HANG_UP:
            self.decided = Decided(handler, None, "", True)
            return False
        size = self.reader.end - self.reader.start
        request = Request(self.current_authorizer(), self.asker(), argv, handler, size, found.lookup)
        if len(argv) <= AT_ONCE:
            ruling, evaluation = self._authorize(request)
        else:
            long = self._begin_long(request)
            if not self._advance(long):
                return False
            ruling, evaluation = long.answer
        return self._concludes(request, ruling, evaluation, found.lookup)

    def _concludes(
        self, request: Request, ruling: Ruling, evaluation: Evaluation, lookup: Lookup | None
    ) -> bool:
        """Report a ruling. True: the request goes upstream as it is and gives exactly one reply. Otherwise
        `decided` has the decision."""
        authorizer, asker, argv, handler, size, _ = request
        number, touches = asker.service, evaluation.touches
        command = touches.command
        if handler is None and command is not None:
            handler = SUBCOMMAND_HANDLERS.get(command.name)
        elif handler is None and ruling is PASS and authorizer.answers(number, argv):
            # keyfence is asked, not Redis: this is no traffic, and no evidence about any rule.
            self.decided = Decided(OWN, TOO_LONG if self.partly_sent else None, KEYFENCE, True)
            return False
        too_large = self.partly_sent and (handler is not None or touches.has_streamed_name(argv))
        recorder = self.observer.recorder
        if recorder is not None and not too_large:
            recorder(authorizer.policy, self.service, argv, touches)
        self.observer.judged_at_length(self._why_evaluated(request, handler, ruling))
        known = lookup.decision if lookup is not None and number not in authorizer.policy.grants else None
        evidence = (
            known.evidence
            if known is not None
            else evidence_of(authorizer.policy, number, touches, basis=authorizer.basis)
        )
        self.observer.asked(self.service, evidence)
        label = command.name if command is not None else OTHER
        reply = None
        if ruling is not PASS:
            decision = self._report(ruling, label, authorizer, Sent(authorizer.policy, argv, touches))
            if ruling.refused_by is not None:
                reply = refusal(ruling.refused_by, authorizer.policy.contact, decision)
        if reply is None and too_large:
            handler = TOO_LARGE
        fits = reply is not None or self._fits(authorizer, touches, size)
        if reply is None and handler is None and (command is None or command.name not in FIXED_SHAPE):
            self.mark_shapeable(fits)
        if handler is None and reply is None and fits:
            self.observer.command(self.service, label, "forwarded")
            if lookup is not None and ruling is not PASS:
                self._remember(request, ruling, evaluation, label, lookup, "")
            return True
        if lookup is not None and reply is not None:
            self._remember(request, ruling, evaluation, label, lookup, decision)
        self.decided = Decided(handler, reply, label, fits)
        return False

    def _why_evaluated(self, request: Request, handler: Handler | None, ruling: Ruling) -> str:
        """Returns why the cache did not admit the current request, as a metric's label
        (docs/operations.md)."""
        if ruling.findings:
            return "violation"
        if handler is not None:
            return "session"
        if self.partly_sent or self.exceeds_share(request.size, 1):
            return "large"
        if self._fast.cache is None or self.observer.recorder is not None:
            return "recorded"
        return request.lookup.reason if request.lookup is not None else COMMAND

    def _remember(
        self,
        request: Request,
        ruling: Ruling,
        evaluation: Evaluation,
        label: str,
        lookup: Lookup,
        decision: str,
    ) -> None:
        """Have the cache remember the findings of a request that passed, or that was refused with this
        decision id, if every request like it has the same findings."""
        cache = self._fast.cache
        if cache is None or not ruling.findings:
            return
        authorizer, argv = request.authorizer, request.argv
        found = authorizer.common_outcome(cache, lookup, argv, evaluation, ruling, by_shape=True)
        if found is None:
            return
        prepared = None
        if ruling.refused_by is not None:
            if shows_more(lookup.faults):
                return
            drafted = authorizer.drafted(evaluation, ruling.refused_by)
            if drafted is None:
                return
            contact = authorizer.policy.contact
            prepared = prepared_refusal(ruling.refused_by, *drafted, contact, decision)
            if prepared is None:
                return
        repeat = self.observer.repeats(self.service, label, ruling.findings)
        if repeat is not None:
            repeat.outcome = found
            repeat.refusal = prepared
            cache.remember(lookup, argv, repeat)

    def _fits(self, authorizer: Authorizer, touches: Touches, size: int) -> bool:
        """Whether a request of `size` bytes may take the connection that the client uses now."""
        command, script = touches.command, touches.script
        is_trusted = (
            command is not None
            and command.name in SCRIPTS
            and script is not None
            and authorizer.policy.shares(script)
        )
        if not self.route.takes(command, is_trusted):
            return False
        if self.route.is_shared and self.exceeds_share(size, 1):
            self.route.stay()
            return False
        return True

    def _authorize(self, request: Request) -> tuple[Ruling, Evaluation]:
        """Evaluate a request at once."""
        authorizer, asker, argv = request.authorizer, request.asker, request.argv
        answer = authorizer.authorize(asker, argv)
        self._fast.end_timing(self)
        comparison = self._fast.comparison(self, authorizer)
        if comparison is not None:
            comparison.compare(asker, argv, answer[1].touches, answer[0])
        return answer

    # -- evaluations that take more than one turn

    def _begin_long(self, request: Request) -> LongEvaluation:
        """Prepare to evaluate a request in turns."""
        is_timed = self._fast.take_timing() > 0.0
        comparison = self._fast.comparison(self, request.authorizer)
        return LongEvaluation(
            request,
            self.reader.span(self.reader.start, self.reader.end),
            is_timed=is_timed,
            comparison=comparison,
        )

    def _advance(self, long: LongEvaluation) -> bool:
        """Give a long evaluation its turn. Returns whether it has ended; otherwise it needs another turn."""
        has_ended = long.advance(self)
        if has_ended and long.is_timed:
            self.observer.decided(self.service, long.seconds)
        if has_ended:
            long.compare()
        self._long = None if has_ended else long
        self.wants_turn = not has_ended
        return has_ended

    def take_turn(self) -> None:
        self.wants_turn = False
        self.turn_ends = 0.0
        long = self._long
        if self.closing:
            self._long = None
            return
        if long is not None:
            if not self._advance(long):
                return
            before = self._deferred
            if before is None:
                self._end_long(long)
            else:
                self._deferred = lambda: self._end_long(long, before)
        self._read_requests()

    def _end_long(self, long: LongEvaluation, before: Callable[[], None] | None = None) -> None:
        """Call `before`, and then carry out the decision of a long evaluation."""
        if before is not None:
            before()
        self.request = long.sent
        if self._concludes(long.request, *long.answer, None):
            self.partly_sent = False
            self._to_upstream(long.sent, 1)
        else:
            self._execute(long.request.argv)

    def become(self, service: str, user: bytes | None = None) -> None:
        self._fast.forget()
        super().become(service, user)

    def forget_policy(self) -> None:
        if self.transaction is None and self._long is None:  # these keep the policy that they began with
            self._fast.forget()
            super().forget_policy()
