"""Failovers in schedules that are drawn from seeds: what must hold for clients holds in each of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.adversary.conftest import Search
from tests.simulation.schedule import Schedule
from tests.simulation.seeds import FOUND


@pytest.mark.search_seconds(15)
def test_no_schedule_breaks_an_invariant(search: Search) -> None:
    drawn: Counter[str] = Counter()
    for _ in search.attempts_of_at_least(100):
        schedule = Schedule(search.seed)
        schedule.run()
        drawn.update(schedule.features())
    missing = {
        "graceful",
        "crash",
        "rough",
        "BySentinels",
        "ByName",
        "ByAddress",
        "followed",
        "confirmed",
    } - {*drawn}
    assert not missing, f"no schedule has {missing}"


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_broke_an_invariant_breaks_none_any_more(seed: int) -> None:
    Schedule(seed).run()


@pytest.mark.parametrize("seed", [7, 42, 158])
def test_a_seed_plays_the_same_schedule_each_time(seed: int) -> None:
    first, second = Schedule(seed), Schedule(seed)
    first.run()
    second.run()
    assert first.journal.lines() == second.journal.lines()
