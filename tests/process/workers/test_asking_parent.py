"""Every question of a worker gets exactly one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from keyfence.process.workers import asking_parent as module
from keyfence.process.workers.asking_parent import MAX_WAITING, Questions
from keyfence.session.conversation.owner_questions import Question


def play(test: Callable[[Questions, list[dict[str, object]]], Awaitable[None]]) -> None:
    async def run() -> None:
        sent: list[dict[str, object]] = []
        await test(Questions(sent.append), sent)

    asyncio.run(run())


def test_each_question_gets_its_own_answer() -> None:
    async def test(questions: Questions, sent: list[dict[str, object]]) -> None:
        answers: list[tuple[str, object]] = []
        for name in ("a", "b"):
            questions.ask(
                Question("whose", (name, "node", 5), lambda is_of, name=name: answers.append((name, is_of)))
            )
        questions.ask(Question("stats", ("c",), lambda found: answers.append(("c", found))))
        assert sent == [
            {"ask": [1, "whose", "a", "node", 5]},
            {"ask": [2, "whose", "b", "node", 5]},
            {"ask": [3, "stats", "c"]},
        ]
        for number, answer in ((2, True), (3, {"commands": 7}), (1, False), (2, False), (99, True)):
            questions.answered(number, answer)
        assert answers == [("b", True), ("c", {"commands": 7}), ("a", False)]

    play(test)


def test_a_question_without_an_answer_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)

    async def test(questions: Questions, _: list[dict[str, object]]) -> None:
        answered = asyncio.get_running_loop().create_future()
        questions.ask(Question("whose", ("a", "node", 5), answered.set_result))
        assert await answered is None
        questions.answered(1, True)

    play(test)


def test_questions_beyond_the_bound_get_no_answer() -> None:
    async def test(questions: Questions, sent: list[dict[str, object]]) -> None:
        for number in range(MAX_WAITING):
            questions.ask(Question("whose", ("a", "node", number), lambda _: None))
        answered = asyncio.get_running_loop().create_future()
        questions.ask(Question("whose", ("a", "node", 5), answered.set_result))
        assert await answered is None
        assert len(sent) == MAX_WAITING

    play(test)
