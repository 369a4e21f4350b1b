"""Questions of a worker to the others: has one of them shown this connection id to a client of the service?

Rule: nothing is remembered, so an answer holds for now. A missing answer means no. The number of waiting
questions is bounded, so a client that asks in vain delays only itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keyfence.session.conversation.shown_ids import Question

MAX_WAITING = 1000
ANSWER_SECONDS = 3.0


class Questions:
    """The questions of one worker that wait for an answer."""

    def __init__(self, send: Callable[[dict[str, object]], None]) -> None:
        """`send` sends a message to the parent; its answer goes to `answered`."""
        self._send = send
        self._waiting: dict[int, tuple[Question, asyncio.TimerHandle]] = {}
        self._number = 0

    def ask(self, question: Question) -> None:
        loop = asyncio.get_running_loop()
        if len(self._waiting) >= MAX_WAITING:
            loop.call_soon(question.answered, False)
            return
        self._number += 1
        timer = loop.call_later(ANSWER_SECONDS, self.answered, self._number, False)
        self._waiting[self._number] = question, timer
        self._send({"whose": [self._number, question.service, question.id]})

    def answered(self, number: int, is_of: bool) -> None:
        question, timer = self._waiting.pop(number, (None, None))
        if timer is not None:
            timer.cancel()
        if question is not None:
            question.answered(is_of)
