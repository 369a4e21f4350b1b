"""The evaluation of a request that takes more than one turn.

Rule: the authorizer that begins an evaluation ends it, whatever is loaded meanwhile. Only the bytes to send
and their connection are determined at its end. A candidate policy has its turns after those of the policy in
force.
"""

from __future__ import annotations

from time import perf_counter

from keyfence.commands.model import Touches
from keyfence.policy.engine.authorizer import Authorizer, Steps
from keyfence.policy.engine.evaluator import Transaction
from keyfence.policy.verdict import PASS, Peer, Ruling
from keyfence.session.conversation.base import SessionBase
from keyfence.session.conversation.executor import Handler

from .comparison import Comparison


class LongEvaluation:
    """A request, and the state of its evaluation."""

    def __init__(
        self,
        authorizer: Authorizer,
        number: int,
        argv: list[bytes],
        handler: Handler | None,
        request: bytes,
        steps: Steps,
        is_timed: bool = False,
        *,
        comparison: Comparison | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """`number` is the service's. `request` has the bytes to send upstream if it is admitted. `is_timed`:
        measure `seconds`. `comparison` is with a candidate; `transaction` is the one in which the request is
        queued, as the policy in force knows it."""
        self.authorizer = authorizer
        self.number = number
        self.argv = argv
        self.handler = handler
        self.request = request
        self.answer: tuple[Ruling, Touches] = (PASS, Touches(None))  # once it has ended
        self.seconds = 0.0  # taken by its own turns
        self.is_timed = is_timed
        self._steps = steps
        self._comparison = comparison
        self._transaction = transaction
        self._by_candidate: Ruling | None = None  # the candidate's ruling, once it is known
        self._is_ruled = False  # `answer` is known; the candidate has its turns

    def advance(self, session: SessionBase) -> bool:
        """Evaluate until the session's turn is over. Returns whether the evaluation has ended."""
        times = self.is_timed and not self._is_ruled
        start = perf_counter() if times else 0.0
        try:
            while True:
                next(self._steps)
                if session.turn_is_over():
                    return False
        except StopIteration as end:
            return self._end(end.value)
        finally:
            if times:
                self.seconds += perf_counter() - start

    def _end(self, answer: tuple[Ruling, Touches]) -> bool:
        """The policy in force has ruled, or the candidate after it. Returns whether all is evaluated."""
        if self._is_ruled:
            self._by_candidate = answer[0]
            return True
        self.answer = answer
        if self._comparison is None:
            return True
        self._is_ruled = True
        self._steps = self._comparison.rule_in_steps(self.argv, answer[1], self._transaction)
        return False

    def compare(self, client: Peer) -> None:
        """Report what the candidate, if there is one, would change. Call it once all is evaluated."""
        if self._comparison is not None:
            ruling, touches = self.answer
            self._comparison.compare(
                self.argv, touches, self._transaction, client, ruling, self._by_candidate
            )
