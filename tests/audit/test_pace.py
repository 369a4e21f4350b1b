from __future__ import annotations

import pytest

from keyfence.audit.pace import Pace, in_sample, parse_rate, parse_sample


@pytest.mark.parametrize(("text", "rate"), [("5000/s", 5000), ("10", 10), ("none", 0)])
def test_a_rate_is_a_number_of_keys_a_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "0/s", "5000/m", "-1", "fast", "1e3"])
def test_anything_else_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate; write keys a second, as 5000/s, or none"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "part"), [("1%", 0.01), ("100%", 1.0), ("0.5%", 0.005)])
def test_a_sample_is_a_percentage(text: str, part: float) -> None:
    assert parse_sample(text) == pytest.approx(part)


@pytest.mark.parametrize("text", ["", "0%", "101%", "1", "%", "-1%"])
def test_anything_else_is_no_sample(text: str) -> None:
    with pytest.raises(ValueError, match="is not a sample; write a part of the keys, as 1%"):
        parse_sample(text)


def test_a_sample_has_about_its_part_of_the_keys_and_always_the_same() -> None:
    keys = [b"order:%d" % number for number in range(20_000)]
    chosen = [key for key in keys if in_sample(key, 0.1)]
    assert 1_500 < len(chosen) < 2_500
    assert chosen == [key for key in keys if in_sample(key, 0.1)]
    assert all(in_sample(key, 0.2) for key in chosen)
    assert all(in_sample(key, 1.0) for key in keys)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def test_a_pace_lets_no_more_keys_pass_than_its_rate() -> None:
    clock = Clock()
    pace = Pace(1000, clock, clock.sleep)
    for _ in range(11):
        pace.wait(100)
    assert clock.now - 100.0 == pytest.approx(1.0)


def test_a_pace_does_not_catch_up_after_a_pause() -> None:
    clock = Clock()
    pace = Pace(1000, clock, clock.sleep)
    pace.wait(100)
    clock.now += 60
    for _ in range(3):
        pace.wait(100)
    assert clock.slept == [0.1, 0.1]


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    pace = Pace(0, clock, clock.sleep)
    pace.wait(1_000_000)
    assert not clock.slept
    assert pace.batch(500) == 500


def test_a_slow_pace_takes_few_keys_at_once() -> None:
    assert [Pace(rate).batch(500) for rate in (1, 1000, 5000, 1_000_000)] == [10, 20, 100, 500]
