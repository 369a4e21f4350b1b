"""Work beside the clients' commands: in its own thread, one piece at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from keyfence.process.serving.side_work import SideWork
from tests.servers import PATIENCE_SECONDS


def test_the_loop_goes_on_during_a_long_step() -> None:
    """The step ends only after the loop has done something."""
    went_on = threading.Event()

    def steps() -> Generator[None, None, str]:
        assert went_on.wait(PATIENCE_SECONDS)
        yield
        return threading.current_thread().name

    async def scenario() -> str:
        asyncio.get_running_loop().call_soon(went_on.set)
        return await SideWork().do(steps())

    assert asyncio.run(scenario()) != threading.main_thread().name


def test_one_piece_of_work_follows_the_other() -> None:
    order: list[str] = []

    def steps(name: str) -> Generator[None, None, None]:
        for number in range(3):
            order.append(f"{name}{number}")
            yield

    async def scenario() -> None:
        work = SideWork()
        await asyncio.gather(work.do(steps("a")), work.do(steps("b")))

    asyncio.run(scenario())
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_a_fault_reaches_the_asker_and_the_next_one_has_its_turn() -> None:
    def fails() -> Generator[None, None, str]:
        yield
        raise ValueError("no such service")

    def works() -> Generator[None, None, str]:
        yield
        return "done"

    async def scenario() -> str:
        work = SideWork()
        with pytest.raises(ValueError, match="no such service"):
            await work.do(fails())
        return await work.do(works())

    assert asyncio.run(scenario()) == "done"


def test_work_that_nobody_waits_for_ends_with_its_step_before_the_next_begins() -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def endless() -> Generator[None, None, None]:
        while True:
            begun.set()
            assert go_on.wait(PATIENCE_SECONDS)
            order.append("step")
            yield

    def after() -> Generator[None, None, None]:
        order.append("next")
        yield

    async def scenario() -> None:
        work = SideWork()
        asking = asyncio.ensure_future(work.do(endless()))
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        asking.cancel()
        following = asyncio.ensure_future(work.do(after()))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        await following
        assert asking.cancelled()

    asyncio.run(scenario())
    assert order == ["step", "next"]
