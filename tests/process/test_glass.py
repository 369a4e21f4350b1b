"""Break-glass lasts for as long as was asked."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.process import glass as module
from keyfence.process.glass import Glass
from keyfence.telemetry.counters import Counters

AUTHORIZER = cast(Any, SimpleNamespace(policy=SimpleNamespace(services=("web",))))
HOUR = 3600.0


class Processes:
    """The processes that serve clients, as far as orders reach them."""

    def __init__(self) -> None:
        self.glass: list[BreakGlass] = []

    async def set_glass(self, glass: list[BreakGlass]) -> None:
        self.glass = list(glass)


class Clocks:
    """The time of day, which can be set, and the time that runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._running, self._set_by = 1000.0, 1_700_000_000.0
        monkeypatch.setattr(module, "_running", lambda: self._running)
        monkeypatch.setattr(time, "time", lambda: self._running + self._set_by)

    def go_on(self, seconds: float) -> None:
        self._running += seconds

    def set(self, seconds: float) -> None:
        self._set_by += seconds


@pytest.mark.parametrize("by", [-24 * HOUR, -1.0, 0.0, 0.5, 24 * HOUR])
def test_it_lasts_for_as_long_as_was_asked_although_the_clock_is_set(
    by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, processes = Clocks(monkeypatch), Processes()
    runtime = SimpleNamespace(glass=[], telemetry=SimpleNamespace(counters=Counters()))
    glass = Glass(cast(Any, runtime), cast(Any, processes))

    async def is_open() -> bool:
        await glass.tick()
        return any(one.covers("scope.write", "web", time.time()) for one in processes.glass)

    async def run() -> None:
        await glass.open(AUTHORIZER, HOUR, None, None)
        clocks.go_on(HOUR / 2)
        clocks.set(by)
        assert await is_open()
        (shown,) = glass.listing()
        assert abs(shown["until"] - time.time() - HOUR / 2) <= 2, "operators see when it ends"
        clocks.go_on(HOUR / 2 - 3)
        assert await is_open()
        clocks.go_on(4)
        assert not await is_open()
        assert glass.listing() == []

    asyncio.run(run())
