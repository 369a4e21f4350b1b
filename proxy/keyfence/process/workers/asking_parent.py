"""Questions of a worker that only its parent, or the other workers, can answer.

Rule: a question gets one answer. No answer within ANSWER_SECONDS means None. The number of waiting questions
is bounded, so a client that asks in vain delays only itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from keyfence.session.conversation.owner_questions import Question

MAX_WAITING = 1000
ANSWER_SECONDS = 2.0
# What the other processes know too. A worker answers all other kinds itself.
OF_ALL = frozenset({"whose", "clients", "findings", "readiness", "stats"})


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
            loop.call_soon(question.answered, None)
            return
        self._number += 1
        timer = loop.call_later(ANSWER_SECONDS, self.answered, self._number, None)
        self._waiting[self._number] = question, timer
        self._send({"ask": [self._number, question.kind, *question.content]})

    def answered(self, number: int, answer: Any) -> None:
        question, timer = self._waiting.pop(number, (None, None))
        if timer is not None:
            timer.cancel()
        if question is not None:
            question.answered(answer)
