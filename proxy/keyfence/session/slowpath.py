# cython: annotation_typing=False
"""The slow path: the authorizer evaluates the requests that the decision cache does not know.

Rule: one request at a time. `admits` says whether the request goes upstream as it is; otherwise the
executor's `plan` says how it is carried out, or the evaluation needs another turn.
"""

from __future__ import annotations

from keyfence.commands.model import Touches
from keyfence.commands.own import KEYFENCE
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.command_evidence import evidence_of
from keyfence.policy.engine.evaluation import NOTHING_KNOWN, Evaluation
from keyfence.policy.engine.forms import COMMAND, shows_more
from keyfence.policy.verdict import PASS, Ruling
from keyfence.session.conversation.executor import Executor, Handler, Plan
from keyfence.session.conversation.known_client import label_of
from keyfence.session.conversation.observer import Sent
from keyfence.session.conversation.refusal import prepared_refusal, refusal
from keyfence.session.conversation.routing import SCRIPTS, has_one_reply
from keyfence.session.handlers.inband import TOO_LONG
from keyfence.session.handlers.table import HANG_UP, OWN, SUBCOMMAND_HANDLERS, TOO_LARGE, handler_of

from .fastpath import AT_ONCE, LEAVES, REFUSED, FastPath, Outcome
from .long_evaluation import LongEvaluation, Request

_LEAVES, _REFUSED = LEAVES, REFUSED  # as C integers, where this runs compiled


class SlowPath:
    """One session's evaluations."""

    def __init__(self, executor: Executor, fast: FastPath) -> None:
        self._executor = executor
        self._fast = fast
        self.long: LongEvaluation | None = None  # the evaluation that needs another turn

    def admits(self, found: Outcome) -> bool:
        """Authorize a request. True: it goes upstream as it is and gives exactly one reply. Otherwise the
        executor has the plan for it, or `long` is its evaluation, which has ended or needs another turn."""
        executor = self._executor
        client, conversation = executor.client, executor.conversation
        if found.kind == _REFUSED:
            executor.plan = Plan(None, found.refusal, "", True, True)
            return False
        if found.kind == _LEAVES and found.call is not None:
            client.observer.asked(client.service, found.call.evidence)
            executor.plan = Plan(None, None, found.call.name, False)
            return False
        argv = found.argv
        handler = handler_of(argv[0])
        if handler is HANG_UP:
            executor.plan = Plan(handler, None, "", True)
            return False
        size = conversation.reader.end - conversation.reader.start
        request = Request(client.current_authorizer(), client.asker(), argv, handler, size, found.lookup)
        if len(argv) <= AT_ONCE:
            ruling, evaluation = self._authorize(request)
            return self.concludes(request, ruling, evaluation, True)
        long = self.long = self._begin_long(request)
        self.advance(long)
        return False

    def concludes(self, request: Request, ruling: Ruling, evaluation: Evaluation, at_once: bool) -> bool:
        """Report a ruling. True: the request goes upstream as it is and gives exactly one reply. Otherwise
        the executor has the plan for it. The cache remembers only rulings that are made `at_once`."""
        executor = self._executor
        client, conversation = executor.client, executor.conversation
        authorizer, asker, argv, handler, size, lookup = request
        lookup = lookup if at_once else None
        number, touches = asker.service, evaluation.touches
        command = touches.command
        if handler is None and command is not None:
            handler = SUBCOMMAND_HANDLERS.get(command.name)
        elif handler is None and ruling is PASS and authorizer.answers(number, argv):
            # keyfence is asked, not Redis: this is no traffic, and no evidence about any rule.
            executor.plan = Plan(OWN, TOO_LONG if conversation.partly_sent else None, KEYFENCE, True)
            return False
        too_large = conversation.partly_sent and (handler is not None or touches.has_streamed_name(argv))
        recorder = client.observer.recorder
        if recorder is not None and not too_large:
            recorder(authorizer.policy, client.service, argv, touches)
        client.observer.judged_at_length(self._why_evaluated(request, handler, ruling))
        known = lookup.decision if lookup is not None and number not in authorizer.policy.grants else None
        if known is not None:
            evidence = known.evidence
        else:
            policy, basis = authorizer.policy, authorizer.basis
            evidence = evidence_of(policy, number, touches, basis=basis, keys=evaluation.keys)
        client.observer.asked(client.service, evidence)
        label = label_of(touches)
        reply = None
        if ruling is not PASS:
            decision = client.report(ruling, label, authorizer, Sent(authorizer.policy, argv, touches))
            if ruling.refused_by is not None:
                reply = refusal(ruling.refused_by, authorizer.policy.contact, decision)
        if reply is None and too_large:
            handler = TOO_LARGE
        is_certain = reply is not None or handler is not None or has_one_reply(command, argv)
        fits = reply is not None or self._fits(authorizer, touches, size, is_certain)
        if not is_certain:
            conversation.mark_shapeable(fits)
        if handler is None and reply is None and fits:
            client.observer.command(client.service, label, "forwarded")
            if lookup is not None and ruling is not PASS:
                self._remember(request, ruling, evaluation, label, "")
            return True
        if lookup is not None and reply is not None:
            self._remember(request, ruling, evaluation, label, decision)
        executor.plan = Plan(handler, reply, label, fits)
        return False

    def _why_evaluated(self, request: Request, handler: Handler | None, ruling: Ruling) -> str:
        """Returns why the cache did not admit the current request, as a metric's label
        (docs/operations.md)."""
        if ruling.findings:
            return "violation"
        if handler is not None:
            return "session"
        conversation = self._executor.conversation
        if conversation.partly_sent or conversation.exceeds_share(request.size, 1):
            return "large"
        if self._fast.cache is None or self._executor.client.observer.recorder is not None:
            return "recorded"
        return request.lookup.reason if request.lookup is not None else COMMAND

    def _remember(
        self, request: Request, ruling: Ruling, evaluation: Evaluation, label: str, decision: str
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
        client = self._executor.client
        repeat = client.observer.repeats(client.service, label, ruling.findings)
        if repeat is not None:
            repeat.outcome = found
            repeat.refusal = prepared
            cache.remember(lookup, argv, repeat)

    def _fits(self, authorizer: Authorizer, touches: Touches, size: int, is_certain: bool) -> bool:
        """Whether a request of `size` bytes may take the connection that the client uses now.

        `is_certain`: it has one reply of a fixed shape.
        """
        command, script = touches.command, touches.script
        is_trusted = (
            command is not None
            and command.name in SCRIPTS
            and script is not None
            and authorizer.policy.shares(script)
        )
        conversation = self._executor.conversation
        if not conversation.route.takes(command, is_trusted, is_certain):
            return False
        if conversation.route.is_shared and conversation.exceeds_share(size, 1):
            conversation.route.stay()
            return False
        return True

    def _authorize(self, request: Request) -> tuple[Ruling, Evaluation]:
        """Evaluate a request at once."""
        authorizer, asker, argv = request.authorizer, request.asker, request.argv
        cache, lookup = self._fast.cache, request.lookup
        known = NOTHING_KNOWN if cache is None or lookup is None else cache.known(lookup, argv)
        answer = authorizer.authorize(asker, argv, known)
        self._fast.end_timing()
        comparison = self._fast.comparison(authorizer)
        if comparison is not None:
            comparison.compare(asker, argv, answer[1].touches, answer[0])
        return answer

    # -- evaluations that take more than one turn

    def _begin_long(self, request: Request) -> LongEvaluation:
        """Prepare to evaluate a request in turns."""
        is_timed = self._fast.take_timing() > 0.0
        comparison = self._fast.comparison(request.authorizer)
        sent = self._executor.conversation.reader.take()
        return LongEvaluation(request, sent, is_timed=is_timed, comparison=comparison)

    def advance(self, long: LongEvaluation) -> bool:
        """Give a long evaluation its turn. Returns whether it has ended; otherwise it needs another turn."""
        client, conversation = self._executor.client, self._executor.conversation
        has_ended = long.advance(conversation)
        if has_ended and long.is_timed:
            client.observer.authorized(client.service, long.seconds)
        if has_ended:
            long.compare()
        conversation.wants_turn = not has_ended
        return has_ended
