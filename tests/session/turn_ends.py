"""Turns of clients that end at random places, as the dice say, and not as time passes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from keyfence.session import fastpath
from keyfence.session.conversation import conversation

# How many requests the decision cache answers between two looks at the clock: mostly fewer than in service,
# so that a short conversation has many places where a turn may end.
TIMED_EACH = (1, 2, 3, 5, 64)
SHARES = (0.0, 0.05, 0.3, 0.7, 1.0)


class TurnClock:
    """The clock that sessions look at to see whether a turn is over. A look may find that it is."""

    def __init__(self, dice: random.Random, share: float) -> None:
        """`share` of the looks end a turn."""
        self._dice = dice
        self._share = share
        self._now = 1.0

    def __call__(self) -> float:
        if self._dice.random() < self._share:
            self._now += conversation.TURN_SECONDS
        return self._now


@contextmanager
def random_turn_ends(dice: random.Random, shares: Sequence[float] = SHARES) -> Iterator[None]:
    """Within it, turns end where the dice say. They also choose which share of the looks ends a turn."""
    clock = TurnClock(dice, dice.choice(shares))
    with (
        mock.patch.object(conversation, "perf_counter", clock),
        mock.patch.object(fastpath, "TIMED_EACH", dice.choice(TIMED_EACH)),
    ):
        yield
