"""The searches themselves: bounded, and never empty."""

from __future__ import annotations

import random

from tests.adversary.conftest import Search


def test_a_search_makes_its_least_number_of_attempts_when_it_has_no_time() -> None:
    search = Search("x", 0.0, None)
    assert len(list(search.attempts_of_at_least(5))) == 5


def test_the_first_attempt_is_the_one_that_a_failure_named() -> None:
    search = Search("x", 0.0, 42)
    assert next(iter(search)).random() == random.Random(42).random()
