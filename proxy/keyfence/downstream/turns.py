"""The turns of clients: how the time of the loop is shared.

Rule: one client's requests take at most one turn of its session in a round of the loop, and of all clients
that have more to do, one continues in each round. So the others wait for one turn, for any number of such
clients.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from keyfence.session.conversation.conversation import Conversation


class TurnTaker(Protocol):
    """A client with requests that wait for its next turn."""

    def take_turn(self) -> None: ...


class Turns:
    """The clients that wait for their turn, and the conversations that have begun one in this round."""

    def __init__(self) -> None:
        self._waiting: dict[TurnTaker, None] = {}  # in the order in which they asked
        self._begun: set[Conversation] = set()

    def follow(self, client: TurnTaker, conversation: Conversation) -> None:
        """Take note of the conversation of the client, who has begun a turn or wants another one."""
        if conversation.turn_ends and conversation not in self._begun:
            if not self._begun:
                asyncio.get_running_loop().call_soon(self._end_round)
            self._begun.add(conversation)
        if conversation.wants_turn and client not in self._waiting:
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._give)
            self._waiting[client] = None

    def _end_round(self) -> None:
        for conversation in self._begun:
            conversation.turn_ends = 0.0
        self._begun.clear()

    def _give(self) -> None:
        client = next(iter(self._waiting))
        del self._waiting[client]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)
        client.take_turn()
