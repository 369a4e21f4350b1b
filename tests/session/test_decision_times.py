"""Which decisions are timed, and that the time of a decision is the time of all of it."""

from __future__ import annotations

import time

import pytest

from keyfence.commands.model import MANY
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import Authorizer, InForce, Steps
from keyfence.session.fastpath import TIMED_EACH
from tests.session.sessions import ADMITTED, REFUSED, RecordingObserver, authorizer_with, cmd, session

SLOW = 0.02  # seconds that an evaluation takes here


@pytest.fixture(name="slow_evaluations")
def _slow_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Authorizer.authorize_in_steps

    def slowly(self: Authorizer, *arguments: object, **options: object) -> Steps:
        time.sleep(SLOW)
        return (yield from evaluate(self, *arguments, **options))  # type: ignore[arg-type]

    monkeypatch.setattr(Authorizer, "authorize_in_steps", slowly)


def test_the_first_decision_is_timed_and_then_each_64th() -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    for count in range(1, 2 * TIMED_EACH + 2):
        one.from_client(ADMITTED)
        assert len(observer.timed) == 1 + (count - 1) // TIMED_EACH


def test_every_command_counts_once_towards_the_64_whether_the_cache_admits_it_or_not() -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    for count in range(1, 2 * TIMED_EACH + 2):
        one.from_client(cmd("GET", b"nobody:%d" % count) if count % 2 else ADMITTED)
        assert len(observer.timed) == 1 + (count - 1) // TIMED_EACH


@pytest.mark.usefixtures("slow_evaluations")
def test_a_decision_that_the_cache_misses_is_timed_with_its_evaluation() -> None:
    observer = RecordingObserver()
    session(observer=observer).from_client(REFUSED)
    [seconds] = observer.timed
    assert seconds >= SLOW


def test_a_cached_refusal_is_timed() -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    one.from_client(REFUSED * (TIMED_EACH + 1))
    assert len(observer.timed) == 2


@pytest.mark.usefixtures("slow_evaluations")
@pytest.mark.usefixtures("shortest_turns")
def test_a_long_evaluation_is_timed_without_the_turns_of_other_clients() -> None:
    observer = RecordingObserver()
    one = session(in_force=InForce(authorizer_with(ModeRule("observe"))), observer=observer)
    start = time.perf_counter()
    one.from_client(cmd("EXISTS", *[b"nobody:%d" % number for number in range(4 * MANY)]))
    assert observer.timed == []
    waited = 0.0
    while one.wants_turn:
        time.sleep(0.01)
        waited += 0.01
        one.take_turn()
    [seconds] = observer.timed
    assert SLOW <= seconds <= time.perf_counter() - start - waited
