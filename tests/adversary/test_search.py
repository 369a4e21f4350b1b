"""The searches themselves: they are bounded and never empty."""

from __future__ import annotations

import random

from tests.adversary.conftest import Search
from tools.share_of_time import searches


def test_a_search_without_time_makes_its_minimum_of_attempts() -> None:
    search = Search("x", 0.0, None, is_new=False)
    assert len(list(search.attempts_of_at_least(5))) == 5


def test_the_first_attempt_uses_the_seed_of_a_failure() -> None:
    search = Search("x", 0.0, 42, is_new=True)
    assert next(iter(search)).random() == random.Random(42).random()


def test_searches_are_counted_before_they_share_the_time() -> None:
    assert searches("tests/adversary/test_resp.py") == 1


def test_a_search_tries_the_same_seeds_in_each_run_unless_new_ones_are_wanted() -> None:
    def seeds(*, is_new: bool) -> list[int]:
        search = Search("x", 0.0, None, is_new=is_new)
        return [search.seed for _ in search]

    assert seeds(is_new=False) == seeds(is_new=False)
    assert seeds(is_new=True) != seeds(is_new=True)
