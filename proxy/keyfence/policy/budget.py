"""The budget of one command: how much work its evaluation may take.

Rule: work is counted in steps, never in time, so that a command has the same verdict on every machine and
every day. A step is about as much as one look at a table's state.

Keys, fields and members that a command names cost in proportion to its bytes, so this budget does not bound
them. It bounds patterns: a pattern of 30 bytes may match more states than there is time for.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

# The limits for one pattern, and for all patterns of one command. A step takes 0.3 to 0.7 µs, so the worst
# command delays other clients by a few milliseconds.
PATTERN_STEPS = 8_000
COMMAND_STEPS = 16_000
# After this many steps an evaluation comes to a place where it may pause. They take well under a millisecond,
# also if each of them finds a violation. The session knows the time, and whether to pause.
PAUSE_STEPS = 100


_T = TypeVar("_T")


def driven(steps: Generator[None, None, _T]) -> _T:
    """Runs work in steps to its end at once, and returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def cost(name: bytes) -> int:
    """Returns the steps for a key, a field or a value: a fixed part, and a part for its length."""
    return 2 + len(name) // 32


class Budget:
    """The steps that one command has taken, and those left for its patterns."""

    __slots__ = ("_unpaused", "limit", "spent", "worked")

    def __init__(self, limit: int = COMMAND_STEPS) -> None:
        self.limit = limit
        self.spent = 0  # on patterns
        self.worked = 0  # on all else
        self._unpaused = 0

    def works(self, steps: int) -> bool:
        """Counts steps that no limit bounds. Returns whether the evaluation may pause here."""
        self.worked += steps
        self._unpaused += steps
        if self._unpaused < PAUSE_STEPS:
            return False
        self._unpaused = 0
        return True

    @property
    def left(self) -> int:
        """The steps left for patterns."""
        return self.limit - self.spent

    def take(self, steps: int) -> bool:
        """Takes steps for a pattern. Returns False if fewer are left; then none are left afterwards."""
        self.spent += steps
        if self.spent <= self.limit:
            return True
        self.spent = self.limit
        return False
