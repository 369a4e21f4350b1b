"""When keyfence looks again, and how often it renews connections."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.upstream import doubt as module
from keyfence.upstream.doubt import RENEWALS_LEAST, RENEWALS_MOST, Doubt, Renewals
from tests.downstream.test_client import in_loop

from .test_standing import Clock

LONG = 1e6


@in_loop
async def test_a_doubt_ends_the_wait_for_the_next_look() -> None:
    doubt = Doubt()
    asyncio.get_running_loop().call_soon(doubt.look_again)
    await doubt.wait(LONG)


@in_loop
async def test_a_doubt_during_a_look_causes_another_one() -> None:
    doubt = Doubt()
    doubt.look_again()
    await doubt.wait(LONG)
    doubt.look_again()
    await doubt.wait(LONG)


@in_loop
async def test_the_pauses_between_looks_grow_while_the_doubt_goes_on(patch: pytest.MonkeyPatch) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    patch.setattr(asyncio, "sleep", sleep)
    patch.setattr(module.random, "uniform", lambda _least, most: most)
    doubt = Doubt()
    for _ in range(9):
        doubt.look_again()
        await doubt.wait(LONG)
    assert slept == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]
    doubt.calm()
    doubt.look_again()
    await doubt.wait(LONG)
    assert slept[-1] == 0.05


@in_loop
async def test_without_a_doubt_the_next_look_comes_after_the_interval(patch: pytest.MonkeyPatch) -> None:
    doubt = Doubt()
    doubt.look_again()
    await doubt.wait(LONG)
    await doubt.wait(0.01)  # however long the pause would be
    patch.setattr(module, "MOST_SECONDS", LONG)
    for _ in range(30):
        doubt.look_again()
        await doubt.wait(0)


def renewals_within(seconds: int, clock: Clock, renewals: Renewals) -> int:
    """How often connections are renewed if Redis refuses a write each tenth of a second."""
    count = 0
    for _ in range(10 * seconds):
        renewals.refused()
        count += renewals.take()
        clock.now += 0.1
    return count


def test_renewals_become_rare_if_they_do_not_help() -> None:
    clock = Clock()
    renewals = Renewals(clock)
    assert renewals_within(60, clock, renewals) <= 7
    renewals_within(120, clock, renewals)
    assert renewals_within(3600, clock, renewals) <= 3600 / RENEWALS_MOST + 1


def test_the_first_renewal_is_immediate_again_after_a_quiet_time() -> None:
    clock = Clock()
    renewals = Renewals(clock)
    renewals_within(600, clock, renewals)
    clock.now += 3 * RENEWALS_MOST
    renewals.refused()
    assert renewals.take()
    clock.now += RENEWALS_LEAST + 0.1
    renewals.refused()
    assert renewals.take()


def test_no_connection_is_renewed_without_a_refused_write() -> None:
    renewals = Renewals(Clock())
    assert not renewals.take()
    renewals.refused()
    assert renewals.take()
    assert not renewals.take()
