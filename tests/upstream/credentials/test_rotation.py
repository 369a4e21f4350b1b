"""When credentials are fetched anew."""

from __future__ import annotations

import math

import pytest

from keyfence.upstream.credentials.model import Credentials
from keyfence.upstream.credentials.rotation import LONGEST_PAUSE, Rotation


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rotation(spread: float = 0.0) -> tuple[Rotation, Clock]:
    clock = Clock()
    return Rotation(clock, lambda: spread), clock


def of(password: str, expires_at: float | None = None) -> Credentials:
    return Credentials("keyfence", password, expires_at)


def test_the_first_credentials_are_due_at_once() -> None:
    assert rotation()[0].seconds_left() == 0


def test_credentials_without_an_end_are_never_due() -> None:
    it, _ = rotation()
    assert it.obtained(of("a"))
    assert it.seconds_left() == math.inf


@pytest.mark.parametrize(("spread", "left"), [(0.0, 75.0), (1.0, 70.0)])
def test_new_ones_are_due_at_three_quarters_of_their_life_or_a_little_before(
    spread: float, left: float
) -> None:
    it, clock = rotation(spread)
    it.obtained(of("a", clock.now + 100))
    assert it.seconds_left() == pytest.approx(left)
    clock.now += 76
    assert it.seconds_left() == 0


def test_each_other_login_has_a_number() -> None:
    it, _ = rotation()
    assert [it.obtained(of(one)) for one in ("a", "a", "b")] == [True, False, True]
    assert it.number == 2


def test_failures_keep_what_is_in_force_and_are_repeated_with_growing_pauses() -> None:
    it, clock = rotation()
    it.obtained(of("a", clock.now + 100))
    clock.now += 75
    pauses = []
    for _ in range(9):
        it.failed()
        pauses.append(it.seconds_left())
        clock.now += it.seconds_left()
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert it.current == of("a", 1100.0)
    assert it.failures == 9
    it.obtained(of("b", clock.now + 100))
    assert it.failures == 0


def test_a_refusal_has_them_fetched_at_once_but_one_right_after_that_is_the_answer() -> None:
    it, clock = rotation()
    it.obtained(of("a"))
    assert it.refused(1)
    assert it.seconds_left() == 0
    assert it.refused(1)  # the fetch is still under way
    it.obtained(of("a"))
    assert not it.refused(1)
    clock.now += 1
    assert it.refused(1)
    it.obtained(of("a"))
    clock.now += 1
    assert not it.refused(1)  # the second pause is longer


def test_a_refusal_of_earlier_credentials_says_nothing_about_the_new_ones() -> None:
    it, _ = rotation()
    it.obtained(of("a"))
    it.obtained(of("b"))
    assert it.refused(1)
    assert it.seconds_left() == math.inf


def test_after_a_fetch_that_failed_a_refusal_is_the_answer_until_the_next_fetch() -> None:
    it, clock = rotation()
    it.obtained(of("a"))
    assert it.refused(1)
    it.failed()
    assert not it.refused(1)
    clock.now += it.seconds_left()
    assert it.refused(1)


@pytest.mark.parametrize(
    ("credentials", "end"),
    [
        (Credentials("u", "p"), math.inf),
        (Credentials("u", "p", 2000.0), 2000.0),
        (Credentials("u", "p", 2000.0, 43_200.0), 44_300.0),
        (Credentials("u", "p", 2000.0, math.inf), math.inf),
    ],
)
def test_a_connection_ends_as_its_cloud_says(credentials: Credentials, end: float) -> None:
    assert credentials.ends_at(1100.0) == end


def test_nothing_shows_a_password() -> None:
    assert "hidden" not in repr(Credentials("u", "hidden"))
