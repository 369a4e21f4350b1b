from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keyfence.findings.filter import Filter
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.reports.services import service_rows
from keyfence.web.asked_once import MAX_KEPT, MOMENT, UNCHANGED, WHILE, Questions
from tests.admin.test_server import FakeControl


class Slow(FakeControl):
    """Answers when it is told to, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.version = self.caught_up = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fault: Exception | None = None
        self.counters = Counters()

    async def catch_up(self) -> int:
        self.caught_up += 1
        return self.version

    async def summary(self) -> dict[str, Any]:
        self.number += 1
        own, fault = self.number, self.fault
        await self.may_answer.wait()
        if fault is not None:
            raise fault
        return {"number": own}

    async def owners(self) -> list[str]:
        self.number += 1
        return [f"owner-{self.number}"]

    async def findings(self, *_: object) -> dict[str, Any]:
        self.number += 1
        return {"findings": [], "total": 0}

    async def traffic(self) -> list[dict[str, Any]]:
        return service_rows(self.counters)


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.control = Slow()
        self.questions = Questions(self.control, clock=lambda: self.now)


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    """Runs a scenario. A failure that nobody has looked at fails the test."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await scenario(Scene())

    asyncio.run(run())
    import gc

    gc.collect()
    assert complaints == []


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_findings_are_asked_for_again_a_moment_after_they_have_changed() -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.questions.summary() == {"number": 1}
        scene.control.version += 1
        scene.now += MOMENT - 0.1
        assert await scene.questions.summary() == {"number": 1}
        scene.now += 0.2
        assert await scene.questions.summary() == {"number": 2}

    play(scenario)


def test_findings_that_have_not_changed_are_asked_for_again_after_a_while() -> None:
    async def scenario(scene: Scene) -> None:
        for _ in range(int(UNCHANGED)):
            assert await scene.questions.summary() == {"number": 1}
            scene.now += 0.99
        assert scene.control.caught_up == int(UNCHANGED)
        scene.now += 0.1
        assert await scene.questions.summary() == {"number": 2}

    play(scenario)


def test_what_was_counted_is_written_once_for_all_questions() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.questions.summary()
        for number in range(10):
            await scene.questions.findings(Filter(text=f"{number}"))
        assert scene.control.caught_up == 1

    play(scenario)


def test_an_asker_of_newer_findings_does_not_get_an_answer_that_was_asked_for_before() -> None:
    async def scenario(scene: Scene) -> None:
        scene.control.may_answer.clear()
        early = asyncio.ensure_future(scene.questions.summary())
        await turns()
        scene.control.version += 1
        scene.now += MOMENT + 0.1
        later = asyncio.ensure_future(scene.questions.summary())
        await turns()
        scene.control.may_answer.set()
        assert (await early, await later) == ({"number": 1}, {"number": 2})

    play(scenario)


def test_what_changes_slowly_is_kept_for_longer() -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.questions.owners() == ["owner-1"]
        scene.now += WHILE - 0.1
        assert await scene.questions.owners() == ["owner-1"]
        scene.now += 0.2
        assert await scene.questions.owners() == ["owner-2"]

    play(scenario)


def test_equal_questions_at_one_time_are_one_question() -> None:
    async def scenario(scene: Scene) -> None:
        scene.control.may_answer.clear()
        asked = [asyncio.ensure_future(scene.questions.summary()) for _ in range(10)]
        await turns()
        scene.control.may_answer.set()
        assert await asyncio.gather(*asked) == [{"number": 1}] * 10

    play(scenario)


def test_a_failed_question_is_asked_again_and_fails_for_everyone_who_asked() -> None:
    async def scenario(scene: Scene) -> None:
        scene.control.fault = ValueError("the store does not answer")
        scene.control.may_answer.clear()
        asked = [asyncio.ensure_future(scene.questions.summary()) for _ in range(3)]
        await turns()
        scene.control.fault = None
        scene.control.may_answer.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(one) for one in answers] == ["the store does not answer"] * 3
        assert await scene.questions.summary() == {"number": 2}

    play(scenario)


def test_an_asker_that_gives_up_takes_the_answer_from_nobody() -> None:
    async def scenario(scene: Scene) -> None:
        scene.control.may_answer.clear()
        first, second = (asyncio.ensure_future(scene.questions.summary()) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        scene.control.may_answer.set()
        assert await second == {"number": 1}
        assert first.cancelled()

    play(scenario)


@pytest.mark.parametrize("fault", [ValueError("no"), RuntimeError("a bug")])
def test_a_question_that_fails_after_its_asker_has_gone_is_no_complaint(fault: Exception) -> None:
    async def scenario(scene: Scene) -> None:
        scene.control.fault = fault
        scene.control.may_answer.clear()
        asked = asyncio.ensure_future(scene.questions.summary())
        await turns()
        asked.cancel()
        await turns()
        scene.control.may_answer.set()
        await turns()
        scene.control.fault = None
        assert await scene.questions.summary() == {"number": 2}

    play(scenario)


def test_after_a_change_everything_is_asked_again_and_a_late_answer_is_not_kept() -> None:
    async def scenario(scene: Scene) -> None:
        assert await scene.questions.owners() == ["owner-1"]
        scene.control.may_answer.clear()
        early = asyncio.ensure_future(scene.questions.summary())
        await turns()
        scene.questions.forget()
        later = asyncio.ensure_future(scene.questions.summary())
        await turns()
        scene.control.may_answer.set()
        assert (await early, await later) == ({"number": 2}, {"number": 3})
        assert await scene.questions.summary() == {"number": 3}
        assert await scene.questions.owners() == ["owner-4"]

    play(scenario)


def test_the_number_of_kept_answers_is_bounded() -> None:
    async def scenario(scene: Scene) -> None:
        for number in range(10 * MAX_KEPT):
            await scene.questions.findings(Filter(text=f"something {number}"))
        assert len(scene.questions._kept) <= MAX_KEPT
        scene.now += MOMENT - 0.1
        asked = scene.control.number
        await scene.questions.findings(Filter(text=f"something {10 * MAX_KEPT - 1}"))
        assert scene.control.number == asked

    play(scenario)


def test_the_rate_of_commands_is_measured_over_the_last_seconds() -> None:
    async def scenario(scene: Scene) -> None:
        counters, rates = scene.control.counters, []
        for sent in (0, 50, 50, 0):
            counters.commands["shop", "GET", "forwarded"] = (
                counters.commands.get(("shop", "GET", "forwarded"), 0) + sent
            )
            _, by_service = await scene.questions.traffic()
            rates.append(by_service.get("shop"))
            scene.now += 2
        assert rates == [None, 25.0, 25.0, pytest.approx(100 / 6)]
        scene.now += 100
        assert await scene.questions.traffic() == (service_rows(counters), {})

    play(scenario)


def test_a_worker_that_has_gone_makes_no_negative_rate() -> None:
    async def scenario(scene: Scene) -> None:
        counters = scene.control.counters
        counters.commands["shop", "GET", "forwarded"] = 100
        await scene.questions.traffic()
        scene.now += 1
        counters.commands["shop", "GET", "forwarded"] = 10
        assert (await scene.questions.traffic())[1] == {"shop": 0.0}

    play(scenario)
