from __future__ import annotations

import pytest

from keyfence.findings.finding import (
    DAY,
    NEW_SECONDS,
    QUIET_SECONDS,
    State,
    after_time,
    after_violations,
    finding_id,
)

KEY = ("shop", "scope.write", "SET", "order", "")


def test_an_id_depends_on_nothing_but_the_finding() -> None:
    assert finding_id(KEY) == "f-9842600af79e"  # of every release: people commit ids in baselines


def test_every_part_of_a_finding_counts_for_its_id() -> None:
    others = [(*KEY[:at], "x", *KEY[at + 1 :]) for at in range(len(KEY))]
    assert len({finding_id(one) for one in [KEY, *others]}) == 1 + len(KEY)  # type: ignore[arg-type]


def test_parts_do_not_run_into_each_other() -> None:
    assert finding_id(("a", "bc", "", "", "")) != finding_id(("ab", "c", "", "", ""))


@pytest.mark.parametrize(
    ("before", "counts", "after"),
    [
        (None, {"observed": 1}, State.NEW),
        (None, {"refused": 1}, State.NEW),
        (None, {"waived": 1}, State.WAIVED),
        (None, {"waived": 1, "observed": 1}, State.NEW),
        (State.NEW, {"observed": 1}, State.NEW),
        (State.OPEN, {"late": 1}, State.OPEN),
        (State.OPEN, {"waived": 2}, State.WAIVED),
        (State.WAIVED, {"waived": 1}, State.WAIVED),
        (State.WAIVED, {"observed": 1}, State.REOPENED),
        (State.QUIET, {"observed": 1}, State.REOPENED),
        (State.RESOLVED, {"refused": 1}, State.REOPENED),
        (State.RESOLVED, {"waived": 1}, State.WAIVED),
        (State.REOPENED, {"observed": 1}, State.REOPENED),
    ],
)
def test_new_violations_change_the_state(before: State | None, counts: dict[str, int], after: State) -> None:
    assert after_violations(before, counts)[0] is after


@pytest.mark.parametrize("state", State)
def test_a_state_without_violations_becomes_quiet_unless_it_is_closed(state: State) -> None:
    after, why = after_time(state, 0.0, QUIET_SECONDS, 0.0)
    closed = state in (State.QUIET, State.RESOLVED)
    assert (after, bool(why)) == ((state, False) if closed else (State.QUIET, True))


@pytest.mark.parametrize("state", State)
def test_new_and_reopened_last_a_day(state: State) -> None:
    assert after_time(state, 0.0, 0.0, NEW_SECONDS - 1)[0] is state
    after = after_time(state, 0.0, 0.0, NEW_SECONDS)[0]
    assert after is (State.OPEN if state in (State.NEW, State.REOPENED) else state)


def test_time_in_which_keyfence_did_not_look_makes_nothing_quiet() -> None:
    assert after_time(State.OPEN, 0.0, QUIET_SECONDS - 1, 100 * DAY)[0] is State.OPEN
