"""Idle clients and slow senders, with a simulated clock."""

from __future__ import annotations

import dataclasses

import pytest

from keyfence.config.limits import ClientLimits
from keyfence.downstream.idle import LONGEST_INTERVAL, interval, look
from keyfence.net import closures
from keyfence.net.closures import Closure


@dataclasses.dataclass
class Looked:
    active: bool = False
    waits: bool = False
    holds_back: bool = False
    idle_since: float = 0.0
    partial_since: float = 0.0
    ended: Closure | None = None

    def leaves(self, _now: float) -> bool:
        return self.ended is not None

    def give_up(self, why: Closure) -> None:
        assert self.ended is None, "it is closed once"
        self.ended = why


IDLE = ClientLimits(idle=60.0)
SLOW = ClientLimits(request_time=10.0)


def test_a_client_without_activity_is_closed_as_idle() -> None:
    client = Looked(active=True)
    for now in (100.0, 130.0, 159.0):
        look([client], IDLE, now)
        assert not client.ended
    look([client], IDLE, 160.0)
    assert client.ended == closures.IDLE


def test_a_client_with_some_activity_is_not_idle() -> None:
    client = Looked()
    for now in range(0, 1000, 50):
        client.active = True
        look([client], IDLE, float(now))
    assert not client.ended


def test_a_waiting_client_is_not_idle_and_its_idle_time_begins_afterwards() -> None:
    client = Looked(waits=True)
    look([client], IDLE, 1000.0)
    client.waits = False
    look([client], IDLE, 1059.0)
    assert not client.ended
    look([client], IDLE, 1060.0)
    assert client.ended == closures.IDLE


def test_a_request_that_takes_too_long_closes_the_client() -> None:
    client = Looked(active=True, waits=True, partial_since=5.0)
    look([client], SLOW, 14.9)
    assert not client.ended
    look([client], SLOW, 15.0)
    assert client.ended == closures.REQUEST_TIME


def test_time_in_which_keyfence_does_not_read_does_not_count() -> None:
    client = Looked(holds_back=True, partial_since=5.0)
    look([client], SLOW, 100.0)
    client.holds_back = False
    look([client], SLOW, 109.0)
    assert not client.ended
    look([client], SLOW, 110.0)
    assert client.ended == closures.REQUEST_TIME


def test_without_limits_no_client_is_closed() -> None:
    client = Looked(partial_since=1.0)
    look([client], ClientLimits(), 1e9)
    assert not client.ended


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (ClientLimits(), LONGEST_INTERVAL),
        (ClientLimits(idle=300.0), LONGEST_INTERVAL),
        (ClientLimits(idle=2.0, request_time=1.0), 0.25),
        (ClientLimits(request_time=0.001), 0.02),
    ],
)
def test_short_limits_are_checked_more_often(limits: ClientLimits, seconds: float) -> None:
    assert interval(limits) == seconds


def test_without_limits_it_is_noted_since_when_a_client_is_idle() -> None:
    client = Looked(active=True)
    look([client], ClientLimits(), 100.0)
    look([client], ClientLimits(), 5000.0)
    assert (client.active, client.idle_since, client.ended) == (False, 100.0, None)
