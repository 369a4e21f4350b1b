# cython: annotation_typing=False
"""The slow path: the authorizer evaluates the requests that the decision cache does not know.

Rule: one request at a time. `admits` says whether the request goes upstream as it is; otherwise `decided` of
the session says what becomes of it, or the evaluation needs another turn.
"""

from __future__ import annotations

from keyfence.commands.model import Touches
from keyfence.commands.own import KEYFENCE
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluation import Evaluation
from keyfence.policy.engine.evidence import evidence_of
from keyfence.policy.engine.forms import COMMAND, shows_more
from keyfence.policy.verdict import PASS, Ruling
from keyfence.session.conversation.executor import Decided, Executor, Handler
from keyfence.session.conversation.observer import Sent
from keyfence.session.conversation.refusal import prepared_refusal, refusal
from keyfence.session.conversation.routing import FIXED_SHAPE, SCRIPTS
from keyfence.session.handlers.inband import TOO_LONG
from keyfence.session.handlers.table import HANG_UP, OWN, SUBCOMMAND_HANDLERS, TOO_LARGE, handler_of

from .fastpath import AT_ONCE, LEAVES, REFUSED, FastPath, Outcome
from .long_evaluation import LongEvaluation
from .request import Request, label_of

_LEAVES, _REFUSED = LEAVES, REFUSED  # as C integers, where this runs compiled


class SlowPath:
    """One session's evaluations."""

    def __init__(self, fast: FastPath) -> None:
        self._fast = fast  # of the same session
        self.long: LongEvaluation | None = None  # the evaluation that needs another turn

    def admits(self, session: Executor, found: Outcome) -> bool:
        """Decide about a request. True: it goes upstream as it is and gives exactly one reply. Otherwise
        `decided` has the decision, or `long` is its evaluation, which has ended or needs another turn."""
        if found.kind == _REFUSED:
            session.decided = Decided(None, found.refusal, "", True, True)
            return False
        if found.kind == _LEAVES and found.call is not None:
            session.observer.asked(session.service, found.call.evidence)
            session.decided = Decided(None, None, found.call.name, False)
            return False
        argv = found.argv
        handler = handler_of(argv[0])
        if handler is HANG_UP:
            session.decided = Decided(handler, None, "", True)
            return False
        size = session.reader.end - session.reader.start
        request = Request(session.current_authorizer(), session.asker(), argv, handler, size, found.lookup)
        if len(argv) <= AT_ONCE:
            ruling, evaluation = self._authorize(session, request)
            return self.concludes(session, request, ruling, evaluation, True)
        long = self.long = self._begin_long(session, request)
        self.advance(session, long)
        return False

    def concludes(
        self, session: Executor, request: Request, ruling: Ruling, evaluation: Evaluation, at_once: bool
    ) -> bool:
        """Report a ruling. True: the request goes upstream as it is and gives exactly one reply. Otherwise
        `decided` has the decision. The cache remembers only rulings that are made `at_once`."""
        authorizer, asker, argv, handler, size, lookup = request
        lookup = lookup if at_once else None
        number, touches = asker.service, evaluation.touches
        command = touches.command
        if handler is None and command is not None:
            handler = SUBCOMMAND_HANDLERS.get(command.name)
        elif handler is None and ruling is PASS and authorizer.answers(number, argv):
            # keyfence is asked, not Redis: this is no traffic, and no evidence about any rule.
            session.decided = Decided(OWN, TOO_LONG if session.partly_sent else None, KEYFENCE, True)
            return False
        too_large = session.partly_sent and (handler is not None or touches.has_streamed_name(argv))
        recorder = session.observer.recorder
        if recorder is not None and not too_large:
            recorder(authorizer.policy, session.service, argv, touches)
        is_large = session.partly_sent or session.exceeds_share(size, 1)
        session.observer.judged_at_length(self._why_evaluated(session, request, handler, ruling, is_large))
        known = lookup.decision if lookup is not None and number not in authorizer.policy.grants else None
        evidence = (
            known.evidence
            if known is not None
            else evidence_of(
                authorizer.policy, number, touches, basis=authorizer.basis, target_of=evaluation.target
            )
        )
        session.observer.asked(session.service, evidence)
        label = label_of(touches)
        reply = None
        if ruling is not PASS:
            decision = session.report(ruling, label, authorizer, Sent(authorizer.policy, argv, touches))
            if ruling.refused_by is not None:
                reply = refusal(ruling.refused_by, authorizer.policy.contact, decision)
        if reply is None and too_large:
            handler = TOO_LARGE
        fits = reply is not None or self._fits(session, authorizer, touches, size)
        if reply is None and handler is None and (command is None or command.name not in FIXED_SHAPE):
            session.mark_shapeable(fits)
        if handler is None and reply is None and fits:
            session.observer.command(session.service, label, "forwarded")
            if lookup is not None and ruling is not PASS:
                self._remember(session, request, ruling, evaluation, "")
            return True
        if lookup is not None and reply is not None:
            self._remember(session, request, ruling, evaluation, decision)
        session.decided = Decided(handler, reply, label, fits)
        return False

    def _why_evaluated(
        self, session: Executor, request: Request, handler: Handler | None, ruling: Ruling, is_large: bool
    ) -> str:
        """Returns why the cache did not admit the current request, as a metric's label
        (docs/operations.md)."""
        if ruling.findings:
            return "violation"
        if handler is not None:
            return "session"
        if is_large:
            return "large"
        if self._fast.cache is None or session.observer.recorder is not None:
            return "recorded"
        return request.lookup.reason if request.lookup is not None else COMMAND

    def _remember(
        self, session: Executor, request: Request, ruling: Ruling, evaluation: Evaluation, decision: str
    ) -> None:
        """Have the cache remember the findings of a request that passed, or that was refused with this
        decision id, if every request like it has the same findings."""
        cache, lookup = self._fast.cache, request.lookup
        if cache is None or lookup is None or not ruling.findings:
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
        repeat = session.observer.repeats(session.service, label_of(evaluation.touches), ruling.findings)
        if repeat is not None:
            repeat.outcome = found
            repeat.refusal = prepared
            cache.remember(lookup, argv, repeat)

    def _fits(self, session: Executor, authorizer: Authorizer, touches: Touches, size: int) -> bool:
        """Whether a request of `size` bytes may take the connection that the client uses now."""
        command, script = touches.command, touches.script
        is_trusted = (
            command is not None
            and command.name in SCRIPTS
            and script is not None
            and authorizer.policy.shares(script)
        )
        if not session.route.takes(command, is_trusted):
            return False
        if session.route.is_shared and session.exceeds_share(size, 1):
            session.route.stay()
            return False
        return True

    def _authorize(self, session: Executor, request: Request) -> tuple[Ruling, Evaluation]:
        """Evaluate a request at once."""
        authorizer, asker, argv = request.authorizer, request.asker, request.argv
        answer = authorizer.authorize(asker, argv, request.lookup)
        self._fast.end_timing(session)
        comparison = self._fast.comparison(session, authorizer)
        if comparison is not None:
            comparison.compare(asker, argv, answer[1].touches, answer[0])
        return answer

    # -- evaluations that take more than one turn

    def _begin_long(self, session: Executor, request: Request) -> LongEvaluation:
        """Prepare to evaluate a request in turns."""
        is_timed = self._fast.take_timing() > 0.0
        comparison = self._fast.comparison(session, request.authorizer)
        return LongEvaluation(
            request,
            session.reader.take(),
            is_timed=is_timed,
            comparison=comparison,
        )

    def advance(self, session: Executor, long: LongEvaluation) -> bool:
        """Give a long evaluation its turn. Returns whether it has ended; otherwise it needs another turn."""
        has_ended = long.advance(session)
        if has_ended and long.is_timed:
            session.observer.decided(session.service, long.seconds)
        if has_ended:
            long.compare()
        session.wants_turn = not has_ended
        return has_ended
