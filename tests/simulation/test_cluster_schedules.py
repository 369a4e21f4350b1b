"""A cluster behind one address, in schedules that are drawn from seeds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.adversary.conftest import Search
from tests.simulation.cluster.schedule import CALM, ClusterSchedule
from tests.simulation.seeds import FOUND_BEFORE_CLUSTERS

MOST_SECONDS = 8


@pytest.mark.search_seconds(MOST_SECONDS)
def test_no_schedule_of_a_cluster_breaks_an_invariant(search: Search) -> None:
    drawn: Counter[str] = Counter()
    for _ in search.attempts_of_at_least(60):
        schedule = ClusterSchedule(search.seed)
        schedule.run()
        drawn.update(schedule.features())
    expected = {*CALM, "crash", "rough", "confirmed", "MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"}
    missing = expected - {*drawn}
    assert not missing, f"no schedule has {missing}"


def test_keys_that_move_apart_for_a_moment_break_no_invariant() -> None:
    schedule = ClusterSchedule(44)  # one that has it, as the models are now
    schedule.run()
    assert "TRYAGAIN" in schedule.features()


@pytest.mark.parametrize("seed", FOUND_BEFORE_CLUSTERS)
def test_a_seed_that_broke_an_invariant_breaks_none_any_more(seed: int) -> None:
    ClusterSchedule(seed).run()


@pytest.mark.parametrize("seed", [7, 42, 158])
def test_a_seed_plays_the_same_schedule_each_time(seed: int) -> None:
    first, second = ClusterSchedule(seed), ClusterSchedule(seed)
    first.run()
    second.run()
    assert first.journal.lines() == second.journal.lines()
