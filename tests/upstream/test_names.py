"""Which addresses a host name counts as having."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.upstream.names import RETURN_SECONDS, HeldAddresses, addresses_of, is_name

from .test_standing import Clock

FORMER, LATER = "10.0.0.1", "10.0.0.2"


def test_an_address_that_an_answer_lacks_has_gone() -> None:
    addresses = HeldAddresses(Clock())
    assert not addresses.answered([FORMER])
    assert not addresses.answered([FORMER])
    assert addresses.answered([LATER])
    assert addresses.held == {LATER}


def test_a_further_address_moves_nothing() -> None:
    addresses = HeldAddresses(Clock())
    addresses.answered([FORMER])
    assert not addresses.answered([LATER, FORMER])
    assert addresses.answered([LATER])


def test_answers_that_take_turns_move_connections_once() -> None:
    clock = Clock()
    addresses = HeldAddresses(clock)
    moves = 0
    for turn in range(1000):
        moves += addresses.answered([(FORMER, LATER)[turn % 2]])
        clock.now += 1
    assert moves == 1
    assert addresses.held == {FORMER, LATER}


def test_an_address_of_a_name_whose_answers_took_turns_goes_after_a_while() -> None:
    clock = Clock()
    addresses = HeldAddresses(clock)
    for address in (FORMER, LATER, FORMER):
        addresses.answered([address])
    assert not addresses.answered([LATER])
    clock.now += RETURN_SECONDS - 1
    assert not addresses.answered([LATER])
    clock.now += 2
    assert addresses.answered([LATER])
    assert addresses.held == {LATER}


def test_an_address_that_comes_back_after_a_long_time_is_another_failover() -> None:
    clock = Clock()
    addresses = HeldAddresses(clock)
    for address in (FORMER, LATER, FORMER):
        assert addresses.answered([address]) is bool(clock.now > 1000.0)
        clock.now += RETURN_SECONDS + 1
    assert addresses.held == {FORMER}


def test_an_absent_address_that_was_left_counts_again_once_an_answer_has_it() -> None:
    addresses = HeldAddresses(Clock())
    for address in (FORMER, LATER, FORMER):
        addresses.answered([address])
    assert addresses.absent == {LATER}
    addresses.leave(LATER)
    assert (addresses.held, addresses.absent) == ({FORMER}, frozenset())
    assert not addresses.answered([LATER])
    assert addresses.absent == {FORMER}


@pytest.mark.parametrize(
    ("host", "expected"),
    [("redis.example.org", True), ("localhost", True), ("10.0.0.1", False), ("::1", False), ("", False)],
)
def test_only_a_name_may_lead_elsewhere_later(host: str, expected: bool) -> None:
    assert is_name(host) is expected


def test_a_host_that_can_be_none_is_an_error_as_one_that_is_not_known() -> None:
    """Cluster and Sentinels may name any text as a host."""
    with pytest.raises(OSError, match=r"'a\.\.b' is not a name of a host"):
        asyncio.run(addresses_of("a..b", 6379))
