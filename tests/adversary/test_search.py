"""The searches themselves: bounded, and never empty."""

from __future__ import annotations

import random

from tests.adversary.conftest import Search
from tools.share_of_time import searches


def test_a_search_makes_its_least_number_of_attempts_when_it_has_no_time() -> None:
    search = Search("x", 0.0, None)
    assert len(list(search.attempts_of_at_least(5))) == 5


def test_the_first_attempt_is_the_one_that_a_failure_named() -> None:
    search = Search("x", 0.0, 42)
    assert next(iter(search)).random() == random.Random(42).random()


def test_the_searches_of_a_folder_are_counted_before_they_share_its_time() -> None:
    assert searches("tests/adversary/test_resp.py") == 1
