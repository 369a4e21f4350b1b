"""A request whose judgement takes more than one turn.

Rule: the judge that began a judgement ends it, whatever is loaded meanwhile; only what is sent, and where, is
asked for when it ends.
"""

from __future__ import annotations

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
    ) -> None:
        """`request` are the bytes that go upstream if it is admitted."""
        self.judge = judge
        self.number = number
        self.argv = argv
        self.special = special
        self.request = request
        self.answer: tuple[Ruling, Touches] = (PASS, Touches(None))  # once it is over
        self._steps = steps

    def goes_on(self) -> bool:
        """Judge for one turn. Whether it is over."""
        try:
            next(self._steps)
        except StopIteration as end:
            self.answer = end.value
            return True
        return False
