"""The evaluation of a request that takes more than one turn.

Rule: the authorizer that begins an evaluation ends it, whatever is loaded meanwhile. Only the bytes to send
and their connection are determined at its end.
"""

from __future__ import annotations

from time import perf_counter

from keyfence.commands.model import Touches
from keyfence.policy.engine.authorizer import Authorizer, Steps
from keyfence.policy.verdict import PASS, Ruling
from keyfence.session.conversation.executor import Handler


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
    ) -> None:
        """`number` is the service's. `request` has the bytes to send upstream if it is admitted. `is_timed`:
        measure `seconds`."""
        self.authorizer = authorizer
        self.number = number
        self.argv = argv
        self.handler = handler
        self.request = request
        self.answer: tuple[Ruling, Touches] = (PASS, Touches(None))  # once it has ended
        self.seconds = 0.0  # taken by its own turns
        self.is_timed = is_timed
        self._steps = steps

    def advance(self) -> bool:
        """Evaluate for one turn. Returns whether it has ended."""
        start = perf_counter() if self.is_timed else 0.0
        try:
            next(self._steps)
        except StopIteration as end:
            self.answer = end.value
            return True
        finally:
            if self.is_timed:
                self.seconds += perf_counter() - start
        return False
