"""How clients leave when the process ends."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from keyfence.downstream.drain import CLIENTS_PER_SECOND, COURTESY_SECONDS, Departures
from keyfence.downstream.flow import Leaving

BEGUN = 1000.0


class Guest:
    """A client that notes what becomes of it."""

    def __init__(self, host: str = "10.0.0.1", *, takes_notices: bool = False) -> None:
        self.host = host
        self.takes_notices = takes_notices
        self.notices: list[bytes] = []
        self.told: dict[Leaving, float] = {}
        self.now = BEGUN

    def leave(self, how: Leaving) -> None:
        self.told.setdefault(how, self.now - BEGUN)

    def notify(self, notice: bytes, *, moves: bool) -> bool:
        assert moves
        if self.takes_notices:
            self.notices.append(notice)
        return self.takes_notices


def departed(*guests: Guest, seconds: float = 5.0) -> None:
    """Let the whole time pass, in the steps in which the loop polls."""
    departures = Departures(BEGUN, seconds)
    for step in itertools.count():
        now = BEGUN + step * 0.02
        if now > BEGUN + seconds:
            break
        for one in guests:
            one.now = now
        departures.advance(guests, now)


def test_a_client_leaves_after_a_reply_first_and_at_rest_a_little_later() -> None:
    one = Guest()
    departed(one)
    assert one.told[Leaving.AFTER_REPLY] < 0.1
    assert (
        COURTESY_SECONDS
        <= one.told[Leaving.AT_REST] - one.told[Leaving.AFTER_REPLY]
        < COURTESY_SECONDS + 0.05
    )


@pytest.mark.parametrize(("number", "expected"), [(100, 100 / CLIENTS_PER_SECOND), (5_000, 2.5)])
def test_many_clients_leave_one_after_the_other_within_half_of_the_time(number: int, expected: float) -> None:
    guests = [Guest() for _ in range(number)]
    departed(*guests)
    times = sorted(one.told[Leaving.AFTER_REPLY] for one in guests)
    assert times[-1] == pytest.approx(expected, abs=0.05)
    in_tenths = Counter(int(time * 10) for time in times[:-1])
    assert max(in_tenths.values()) <= 1.3 * number / (10 * expected)


def test_clients_leave_in_another_order_than_they_came() -> None:
    guests = [Guest() for _ in range(200)]
    departed(*guests)
    order = sorted(guests, key=lambda one: one.told[Leaving.AFTER_REPLY])
    assert order != guests


def test_a_client_that_takes_notices_is_told_at_once_and_has_the_time_that_it_was_told() -> None:
    one, other = Guest(takes_notices=True), Guest()
    departed(one, other)
    (notice,) = one.notices
    assert notice.startswith(b">4\r\n$6\r\nMOVING\r\n:")
    assert notice.endswith(b"\r\n:1\r\n_\r\n")  # one second, and no address
    assert one.told[Leaving.AFTER_REPLY] == pytest.approx(1.0, abs=0.05)
    assert not other.notices


def test_all_connections_of_a_host_are_told_the_same_and_those_of_many_hosts_spread() -> None:
    guests = [Guest(f"10.0.0.{host}", takes_notices=True) for host in range(100) for _ in range(10)]
    departed(*guests, seconds=20.0)
    notices = {(one.host, notice) for one in guests for notice in one.notices}
    assert len(notices) == 100
    times = Counter(round(one.told[Leaving.AFTER_REPLY]) for one in guests)
    assert set(times) == {1, 2, 3, 4, 5}


def test_without_time_for_a_notice_none_is_sent() -> None:
    one = Guest(takes_notices=True)
    departed(one, seconds=1.0)
    assert not one.notices
    assert one.told[Leaving.AFTER_REPLY] < 0.1


def test_a_client_that_comes_late_leaves_too() -> None:
    departures, late = Departures(BEGUN, 5.0), Guest()
    departures.advance([Guest()], BEGUN)
    late.now = BEGUN + 1.0
    departures.advance([late], late.now)
    assert late.told == {Leaving.AFTER_REPLY: 1.0}
