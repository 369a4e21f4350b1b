"""The turns of clients whose requests take long to evaluate.

Rule: one client has a turn in each round of the loop. So the others wait for one turn only, for any number of
such requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class TurnTaker(Protocol):
    """A client that continues a long evaluation."""

    def take_turn(self) -> None: ...


class Turns:
    """The clients that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: deque[TurnTaker] = deque()

    def ask(self, client: TurnTaker) -> None:
        """Let a client continue a long evaluation when its turn comes."""
        self._waiting.append(client)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._waiting[0].take_turn()
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)
