"""A login's life, and how many connections come to the next one in a second."""

from __future__ import annotations

import math

import pytest

from keyfence.upstream.credentials.login import (
    LONGEST_PAUSE,
    RENEWED_BY,
    SPREAD_SECONDS,
    Login,
    Pace,
    each_second,
)

FOREVER = Login(1, b"AUTH", 1000.0)
HUNDRED = Login(1, b"AUTH", 1000.0, 1100.0)


def test_a_login_has_parts_of_its_life() -> None:
    assert HUNDRED.at(RENEWED_BY) == 1085.0
    assert FOREVER.at(RENEWED_BY) == math.inf


def test_a_login_of_the_same_life_may_begin_now() -> None:
    later = HUNDRED.from_now(5000.0)
    assert (later.made_at, later.ends_at) == (5000.0, 5100.0)
    assert FOREVER.from_now(5000.0).ends_at == math.inf


def test_nothing_shows_what_is_sent() -> None:
    assert "AUTH" not in repr(HUNDRED)


@pytest.mark.parametrize(
    ("waiting", "seconds", "expected"),
    [(0, 10.0, 0), (1, 10.0, 1), (100, 10.0, 10), (101, 10.0, 11), (7, 0.5, 7), (7, -3.0, 7)],
)
def test_all_have_had_their_turn_in_time(waiting: int, seconds: float, expected: int) -> None:
    assert each_second(waiting, 1000.0, 1000.0 + seconds) == expected


@pytest.mark.parametrize("waiting", [1, 7, 1000])
@pytest.mark.parametrize("old", [None, FOREVER, HUNDRED])
def test_connections_log_in_again_one_after_another(waiting: int, old: Login | None) -> None:
    pace, now = Pace(), 1075.0
    new = Login(2, b"AUTH", now, now + 100)
    left, most = waiting, 0
    while left:
        turn = pace.may([old] * left, new, now)
        assert turn > 0
        left, most, now = left - turn, max(most, turn), now + 1
    assert now <= 1075 + SPREAD_SECONDS + 1
    assert most <= math.ceil(waiting / SPREAD_SECONDS)


def test_after_a_refusal_nobody_logs_in_for_a_while_and_after_another_for_longer() -> None:
    pace, now = Pace(), 1075.0
    new = Login(2, b"AUTH", now)
    pauses = []
    for _ in range(7):
        assert pace.may([FOREVER], new, now) == 1
        pace.answered(now, accepted=False)
        pace.answered(now, accepted=False)  # of another connection
        begin = now
        while not pace.may([FOREVER], new, now):
            now += 1
        pauses.append(now - begin)
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE]
    assert pace.may([FOREVER], Login(3, b"AUTH", now), now) == 1


def test_another_login_ends_the_pause() -> None:
    pace = Pace()
    pace.may([FOREVER], FOREVER, 1000.0)
    pace.answered(1000.0, accepted=False)
    assert pace.may([FOREVER], FOREVER, 1000.5) == 0
    assert pace.may([FOREVER], Login(3, b"AUTH", 1000.5), 1000.5) == 1
