"""How long a failover took."""

from __future__ import annotations

from keyfence.upstream.failovers import Failovers

from .test_standing import Clock


def test_a_failover_takes_from_the_first_sign_of_a_loss_to_the_first_connection_that_can_be_used() -> None:
    clock = Clock()
    failovers = Failovers(clock)
    failovers.doubted()
    clock.now += 3
    failovers.doubted()
    failovers.moved("10.0.0.2:6379", "the Sentinels")
    assert failovers.last is not None
    assert failovers.last.seconds is None
    clock.now += 1
    assert failovers.served() == 4
    assert failovers.last[:2] == ("10.0.0.2:6379", "the Sentinels")
    assert failovers.last.seconds == 4
    assert failovers.served() is None


def test_a_failover_without_a_sign_before_it_begins_with_the_move() -> None:
    clock = Clock()
    failovers = Failovers(clock)
    clock.now += 100
    failovers.moved("10.0.0.2:6379", "the Sentinels")
    clock.now += 0.5
    assert failovers.served() == 0.5


def test_a_doubt_that_ends_without_a_failover_does_not_lengthen_the_next_one() -> None:
    clock = Clock()
    failovers = Failovers(clock)
    failovers.doubted()
    assert failovers.served() is None
    clock.now += 3600
    failovers.moved("10.0.0.2:6379", "the Sentinels")
    assert failovers.served() == 0


def test_a_doubt_after_a_failover_is_no_failover() -> None:
    failovers = Failovers(Clock())
    failovers.moved("10.0.0.2:6379", "the Sentinels")
    failovers.served()
    failovers.doubted()
    assert failovers.served() is None
