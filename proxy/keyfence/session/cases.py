"""A request whose judgement takes more than one turn.

Rule: the judge that began a judgement ends it, whatever is loaded meanwhile; only what is sent, and where, is
asked for when it ends.
"""

from __future__ import annotations

from time import perf_counter

from keyfence.commands.model import Touches
from keyfence.policy.engine.authorizer import Authorizer, Steps
from keyfence.policy.verdict import PASS, Ruling
from keyfence.session.handlers.specials import Special


class Case:
    """A request, and how far its judgement is."""

    def __init__(
        self,
        judge: Authorizer,
        number: int,
        argv: list[bytes],
        special: Special | None,
        request: bytes,
        steps: Steps,
        is_timed: bool = False,
    ) -> None:
        """`request` are the bytes that go upstream if it is admitted. `is_timed`: `seconds` is wanted."""
        self.judge = judge
        self.number = number
        self.argv = argv
        self.special = special
        self.request = request
        self.answer: tuple[Ruling, Touches] = (PASS, Touches(None))  # once it is over
        self.seconds = 0.0  # that its turns have taken; other clients' turns in between do not count
        self.is_timed = is_timed
        self._steps = steps

    def goes_on(self) -> bool:
        """Evaluate for one turn. Returns whether it is over."""
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
