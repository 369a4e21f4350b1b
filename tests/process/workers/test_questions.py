"""Every question of a worker gets exactly one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from keyfence.process.workers import questions as module
from keyfence.process.workers.questions import MAX_WAITING, Questions
from keyfence.session.conversation.shown_ids import Question


def play(test: Callable[[Questions, list[dict[str, object]]], Awaitable[None]]) -> None:
    async def run() -> None:
        sent: list[dict[str, object]] = []
        await test(Questions(sent.append), sent)

    asyncio.run(run())


def test_each_question_gets_its_own_answer() -> None:
    async def test(questions: Questions, sent: list[dict[str, object]]) -> None:
        answers: list[tuple[str, bool]] = []
        for name in ("a", "b"):
            questions.ask(Question(name, 5, lambda is_of, name=name: answers.append((name, is_of))))
        assert sent == [{"whose": [1, "a", 5]}, {"whose": [2, "b", 5]}]
        for number, is_of in ((2, True), (1, False), (2, False), (99, True)):
            questions.answered(number, is_of)
        assert answers == [("b", True), ("a", False)]

    play(test)


def test_a_missing_answer_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)

    async def test(questions: Questions, _: list[dict[str, object]]) -> None:
        answered = asyncio.get_running_loop().create_future()
        questions.ask(Question("a", 5, answered.set_result))
        assert await answered is False
        questions.answered(1, True)

    play(test)


def test_questions_beyond_the_bound_are_answered_with_no() -> None:
    async def test(questions: Questions, sent: list[dict[str, object]]) -> None:
        for number in range(MAX_WAITING):
            questions.ask(Question("a", number, lambda _: None))
        answered = asyncio.get_running_loop().create_future()
        questions.ask(Question("a", 5, answered.set_result))
        assert await answered is False
        assert len(sent) == MAX_WAITING

    play(test)
