from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from sqlalchemy.exc import OperationalError

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.news import posting
from keyfence.findings.news.claims import LEASE, PAUSES, Claims
from keyfence.findings.news.digest import Bounds, Covered
from keyfence.findings.news.plan import Plan, Target
from keyfence.findings.news.sender import LOOK_SECONDS, SETTLE_SECONDS, Sender
from keyfence.telemetry import operator_log
from keyfence.telemetry.counters import Counters
from tests.findings.news.digests import digest, found
from tests.findings.news.webhooks import Hooks, running_hooks
from tests.findings.rows import NOON

AT = NOON + SETTLE_SECONDS  # a digest that is due at noon is made then


class Stage:
    """Instances with one store and one clock, and webhooks."""

    def __init__(self, database: Database, hooks: Hooks, session: aiohttp.ClientSession) -> None:
        self.database = database
        self.hooks = hooks
        self.now = NOON - DAY + SETTLE_SECONDS
        self.lists: dict[str, Any] = {"new": [found()]}
        self.made: list[Bounds] = []
        self.counters = Counters()
        self._session = session

    def plan(self, *targets: Target, even_if_quiet: bool = False) -> Plan:
        targets = targets or (Target(f"{self.hooks.url}/all", gets_rest=True),)
        return Plan(None, 12, 0, "UTC", targets, None, "", even_if_quiet)

    def instance(self, name: str, plan: Plan | None = None) -> Sender:
        sender = Sender(Claims(self.database, name), self._make, self.counters, clock=lambda: self.now)
        sender.plan = plan or self.plan()
        return sender

    async def _make(self, bounds: Bounds) -> Covered:
        self.made.append(bounds)
        about = {"since": bounds.since, "until": bounds.until}
        return Covered(digest(**self.lists) | about, len(self.made))

    async def tick(self, *senders: Sender, at: float | None = None) -> None:
        """Have each look, at a time."""
        self.now = self.now + LOOK_SECONDS + 1 if at is None else at
        await asyncio.gather(*(one.tick(self._session) for one in senders))


Play = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def play(database: Database) -> Callable[[Play], Stage]:
    def played(main: Play) -> Stage:
        async def scenario() -> Stage:
            async with running_hooks() as hooks, aiohttp.ClientSession() as session:
                stage = Stage(database, hooks, session)
                await main(stage)
                return stage

        return asyncio.run(scenario())

    return played


async def begun(stage: Stage, *names: str) -> list[Sender]:
    """Instances that look a day before."""
    senders = [stage.instance(name) for name in names]
    await stage.tick(*senders)
    assert stage.hooks.got == []
    return senders


def test_the_first_digest_comes_at_the_next_time_and_covers_what_was_since(
    play: Callable[[Play], Stage],
) -> None:
    async def main(stage: Stage) -> None:
        (one,) = await begun(stage, "one")
        await stage.tick(one, at=AT - 1)
        assert stage.hooks.got == []
        await stage.tick(one, at=AT + LOOK_SECONDS)
        await stage.tick(one)

    stage = play(main)
    ((path, body),) = stage.hooks.got
    assert (path, body["keyfence"], body["since"], body["until"]) == ("/all", "news", NOON - DAY, NOON)
    assert [one["id"] for one in body["new"]] == ["f-000000000001"]
    assert (stage.counters.news_sent, stage.counters.news_failures) == (1, 0)


def test_of_many_instances_exactly_one_sends(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        senders = await begun(stage, *(f"instance {number}" for number in range(5)))
        for _ in range(3):
            await stage.tick(*senders, at=max(AT, stage.now + LOOK_SECONDS + 1))

    assert len(play(main).hooks.got) == 1


def test_an_instance_that_dies_while_it_sends_loses_nothing(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        one, other = await begun(stage, "one", "other")
        stage.hooks.is_silent = True
        dying = asyncio.ensure_future(stage.tick(one, at=AT))
        while not stage.hooks.got:
            await asyncio.sleep(0.01)
        dying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await dying
        stage.hooks.is_silent = False
        await stage.tick(other, at=AT + LEASE - 1)
        assert len(stage.hooks.got) == 1
        await stage.tick(other, at=AT + LEASE + LOOK_SECONDS)
        await stage.tick(other, at=AT + 3 * LEASE)

    stage = play(main)
    assert len(stage.hooks.got) == 2
    assert stage.counters.news_sent == 1


def test_a_digest_is_sent_late_if_no_instance_ran_when_it_was_due(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        await begun(stage, "one")
        await stage.tick(stage.instance("later"), at=AT + 2.5 * DAY)

    stage = play(main)
    ((_, body),) = stage.hooks.got
    assert (body["since"], body["until"]) == (NOON - DAY, NOON + 2 * DAY)


def test_a_digest_that_was_made_and_not_sent_is_sent_after_days(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        (one,) = await begun(stage, "one")
        stage.hooks.status = 500
        await stage.tick(one, at=AT)
        stage.hooks.status = 200
        stage.lists = {}
        await stage.tick(stage.instance("later"), at=AT + 3 * DAY)

    stage = play(main)
    assert [body["until"] for _, body in stage.hooks.got] == [NOON, NOON]


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_webhook_that_does_not_take_it_is_tried_again_and_then_told(
    status: int, play: Callable[[Play], Stage], capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(stage: Stage) -> None:
        (one,) = await begun(stage, "one")
        stage.hooks.status = status
        await stage.tick(one, at=AT)
        for pause in (*PAUSES, DAY / 10):
            await stage.tick(one, at=stage.now + pause + 1)

    stage = play(main)
    assert [path for path, _ in stage.hooks.got] == ["/all"] * 5  # no redirect is followed
    assert (stage.counters.news_failures, stage.counters.news_lost) == (5, 1)
    told = capsys.readouterr().err
    assert (
        f"the webhook at 127.0.0.1 has not taken the news of day 2023-11-14: HTTP status {status}; " in told
    )
    assert "again in 1m\n" in told
    assert f"are lost for the webhook at 127.0.0.1: HTTP status {status}, at the last of 5 tries" in told
    assert "/all" not in told


def test_a_webhook_that_is_slow_is_given_up_and_holds_up_no_other(
    play: Callable[[Play], Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(posting, "TIMEOUT", 0.2)

    async def main(stage: Stage) -> None:
        slow = Target(f"{stage.hooks.url}/slow", gets_rest=True)
        one = stage.instance("one", stage.plan(slow))
        await stage.tick(one)
        stage.hooks.is_silent = True
        await asyncio.wait_for(stage.tick(one, at=AT), 5)

    stage = play(main)
    assert stage.counters.news_failures == 1
    assert "TimeoutError" in capsys.readouterr().err


def test_each_owner_gets_their_share_and_one_failure_repeats_no_other(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        stage.lists = {"new": [found("f-1", owner="#shop"), found("f-2")]}
        of_all = Target(f"{stage.hooks.url}/all", gets_rest=True)
        of_shop = Target(f"{stage.hooks.url}/shop", "slack", owners=frozenset({"#shop"}))
        away = Target("http://127.0.0.1:1/x", owners=frozenset({"#shop"}))
        one = stage.instance("one", stage.plan(of_all, of_shop, away))
        await stage.tick(one)
        await stage.tick(one, at=AT)
        await stage.tick(one, at=AT + PAUSES[0] + LOOK_SECONDS)

    stage = play(main)
    bodies = dict(stage.hooks.got)
    assert len(stage.hooks.got) == 2
    assert [one["id"] for one in bodies["/all"]["new"]] == ["f-2"]
    assert bodies["/all"]["others"] == {"#shop": 1}
    assert "f-1" in bodies["/shop"]["text"]
    assert "f-2" not in bodies["/shop"]["text"]
    assert stage.counters.news_failures == 2


@pytest.mark.parametrize(("even_if_quiet", "messages"), [(False, 0), (True, 1)])
def test_nothing_is_sent_if_there_is_nothing_to_tell(
    even_if_quiet: bool, messages: int, play: Callable[[Play], Stage]
) -> None:
    async def main(stage: Stage) -> None:
        stage.lists = {}
        one = stage.instance("one", stage.plan(even_if_quiet=even_if_quiet))
        await stage.tick(one)
        await stage.tick(one, at=AT)

    assert len(play(main).hooks.got) == messages


def test_a_plan_that_changes_on_the_day_tells_nothing_twice(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        (one,) = await begun(stage, "one")
        await stage.tick(one, at=AT)
        one.plan = stage.plan()._replace(weekday=1)  # noon was a Tuesday's
        await stage.tick(one)
        one.plan = stage.plan()._replace(hour=11)
        await stage.tick(one)

    assert len(play(main).hooks.got) == 1


def test_a_store_that_is_away_is_told_and_asked_again(
    play: Callable[[Play], Stage], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_log, "_kinds", {})  # nothing was said within the last minute

    async def main(stage: Stage) -> None:
        (one,) = await begun(stage, "one")

        def is_away(*_: object) -> bool:
            raise OperationalError("SELECT", {}, Exception("the database is away"))

        with monkeypatch.context() as patch:
            patch.setattr(Claims, "is_made", is_away)
            await stage.tick(one, at=AT)
        await stage.tick(one)

    stage = play(main)
    assert len(stage.hooks.got) == 1
    assert "the news waits, because the findings store cannot be used" in capsys.readouterr().err


def test_a_clock_that_is_set_back_stops_nothing(play: Callable[[Play], Stage]) -> None:
    async def main(stage: Stage) -> None:
        (one,) = await begun(stage, "one")
        await stage.tick(one, at=AT + 9 * DAY)
        await stage.tick(one, at=AT)
        await stage.tick(one, at=AT + 10 * DAY)

    assert [body["until"] for _, body in play(main).hooks.got] == [NOON + 9 * DAY, NOON + 10 * DAY]
