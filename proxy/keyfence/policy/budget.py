"""How much work one command may make.

Rule: steps are counted, never timed, so that a command has the same verdict on every machine and on every
day. A step is about as much as looking at one more state of a table.

What a command names one by one (keys, fields, members) costs in proportion to its bytes, and isn't bounded by
this. Patterns are: one of 30 bytes may stand for more than there is time to look at.
"""

from __future__ import annotations

# What one pattern may take, and all patterns of one command together. A step takes some 0.3 to 0.7 µs, so the
# worst command holds up the others for some milliseconds.
PATTERN_STEPS = 8_000
COMMAND_STEPS = 16_000
# After so many steps a long judgement lets the other clients have their turn: some milliseconds too.
TURN_STEPS = 2_000


def cost(name: bytes) -> int:
    """The steps that it takes to look at a key, a field, a value: a few, and some for its length."""
    return 2 + len(name) // 32


class Budget:
    """What one command has taken, and the steps that are left for its patterns."""

    __slots__ = ("_turn", "limit", "spent", "worked")

    def __init__(self, limit: int = COMMAND_STEPS) -> None:
        self.limit = limit
        self.spent = 0  # on patterns
        self.worked = 0  # on all else
        self._turn = 0

    def works(self, steps: int) -> bool:
        """Count so many steps, which are due in any case. True: it is somebody else's turn now."""
        self.worked += steps
        self._turn += steps
        if self._turn < TURN_STEPS:
            return False
        self._turn = 0
        return True

    @property
    def left(self) -> int:
        return self.limit - self.spent

    def take(self, steps: int) -> bool:
        """Take so many steps, if they are left. Once they aren't, nothing is."""
        self.spent += steps
        if self.spent <= self.limit:
            return True
        self.spent = self.limit
        return False
