"""A request while it is evaluated, and an evaluation that takes more than one turn.

Rule: the authorizer that begins to evaluate a request ends it, whatever is loaded meanwhile. The bytes to
send and their connection are determined at its end. A candidate policy has its turns after those of the
policy in force.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluation import Evaluation, Known
from keyfence.policy.engine.forms import Lookup
from keyfence.policy.verdict import Ruling
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.executor import Handler

from .comparison import Comparison


class Request(NamedTuple):
    """One request, who asks, and the authorizer that evaluates it."""

    authorizer: Authorizer
    asker: Asker
    argv: list[bytes]
    handler: Handler | None  # carries it out, if it changes the session itself
    size: int  # of its bytes that are held
    lookup: Lookup | None  # what the decision cache knows of it; None: it was not asked


class LongEvaluation:
    """A request, and the state of its evaluation."""

    def __init__(
        self,
        request: Request,
        sent: bytes,
        *,
        is_timed: bool = False,
        comparison: Comparison | None = None,
    ) -> None:
        """`sent` has the bytes to send upstream if the request is admitted. `is_timed`: measure `seconds`.
        `comparison` is with a candidate."""
        self.request = request
        self.sent = sent
        self.answer: tuple[Ruling, Evaluation]  # once it has ended
        self.has_ended = False  # whether all is evaluated, by the candidate too
        self.seconds = 0.0  # taken by its own turns
        self.is_timed = is_timed
        self._steps = request.authorizer.authorize_in_steps(request.asker, request.argv)
        self._comparison = comparison
        self._by_candidate: Ruling | None = None  # the candidate's ruling, once it is known
        self._is_ruled = False  # `answer` is known; the candidate has its turns

    def advance(self, conversation: Conversation) -> bool:
        """Evaluate until the client's turn is over. Returns whether the evaluation has ended."""
        times = self.is_timed and not self._is_ruled
        start = perf_counter() if times else 0.0
        try:
            while True:
                next(self._steps)
                if conversation.turn_is_over():
                    return False
        except StopIteration as end:
            self.has_ended = self._end(end.value)
            return self.has_ended
        finally:
            if times:
                self.seconds += perf_counter() - start

    def _end(self, answer: tuple[Ruling, Evaluation]) -> bool:
        """The policy in force has ruled, or the candidate after it. Returns whether all is evaluated."""
        if self._is_ruled:
            self._by_candidate = answer[0]
            return True
        self.answer = answer
        if self._comparison is None:
            return True
        self._is_ruled = True
        known = Known(answer[1].touches)
        self._steps = self._comparison.rule_in_steps(self.request.asker, self.request.argv, known)
        return False

    def compare(self) -> None:
        """Report what the candidate, if there is one, would change. Call it once all is evaluated."""
        if self._comparison is not None:
            ruling, evaluation = self.answer
            asker, argv = self.request.asker, self.request.argv
            self._comparison.compare(asker, argv, evaluation.touches, ruling, self._by_candidate)
