"""Clients that have sent their last byte."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.downstream import half_closed
from keyfence.downstream.half_closed import HalfClosed
from tests.downstream.test_client import in_loop
from tests.downstream.test_flow import Play


class Ending(Play):
    """A client that has sent its last byte."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up = asyncio.Event()
        self.half_closed = HalfClosed(self.given_up.set)

    def pass_end(self) -> None:
        self.half_closed.pass_end(self.talk, self.links)


@in_loop
async def test_a_client_whose_end_redis_cannot_learn_waits_only_so_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(half_closed, "LINGER_SECONDS", 0.001)
    ending = Ending()
    ending.pass_end()
    await ending.given_up.wait()


@in_loop
async def test_the_wait_begins_once_the_clients_turn_has_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(half_closed, "LINGER_SECONDS", 0.001)
    ending = Ending()
    ending.talk.wants_turn = True
    ending.pass_end()
    await asyncio.sleep(0.01)
    assert not ending.given_up.is_set()
    ending.talk.wants_turn = False
    ending.pass_end()
    await ending.given_up.wait()


@in_loop
async def test_a_stopped_wait_does_not_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(half_closed, "LINGER_SECONDS", 0.001)
    ending = Ending()
    ending.pass_end()
    ending.half_closed.stop()
    ending.half_closed.stop()
    await asyncio.sleep(0.01)
    assert not ending.given_up.is_set()
