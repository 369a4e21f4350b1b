"""How soon a published version is taken: within 2 s of a signal, and within 40 s without one, with loading.

Time is virtual here, so these bounds are those of the pauses and waits. How long a load takes depends on the
machine: it is taken as LOAD_SECONDS, and `python -m benchmarks.fleet` measures it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keyfence.fleet.copy import Copy
from keyfence.fleet.model import Answer, PolicyServer
from keyfence.fleet.source import PolicySource
from keyfence.process import provision as provisions
from keyfence.process.provision import Provision
from keyfence.process.serving.reload import Origin
from tests.loops import own_loop
from tests.simulation.loop import VirtualLoop

LOAD_SECONDS = 1.2
ANSWER_SECONDS = 0.05
PUSHES = 200


class Store:
    """A store with one version after the other. It waits for a change if it can, and tells of it, or not."""

    def __init__(self, *, waits: bool, signals: bool) -> None:
        self.newest = 1
        self._waits, self._signals = waits, signals
        self._changed = asyncio.Event()

    def push(self) -> None:
        self.newest += 1
        if self._signals:
            self._changed.set()

    async def fetch(self, _source: PolicySource, etag: str, wait: float) -> Answer:
        await asyncio.sleep(ANSWER_SECONDS)
        if self._waits and wait and etag == str(self.newest):
            self._changed.clear()
            await _first(self._changed.wait(), wait)
        waits = self._waits and wait > 0
        if etag == str(self.newest):
            return Answer(None, etag, waits)
        return Answer(b"%d" % self.newest, str(self.newest), waits, b"signature")


async def _first(event: Awaitable[object], seconds: float) -> None:
    try:
        await asyncio.wait_for(event, seconds)
    except TimeoutError:
        return


async def slowest(store: Store, gaps: Callable[[], float]) -> float:
    """Pushes again and again. Returns the longest time from a push until it was loaded."""
    source = PolicySource(PolicyServer("redis://store", signed_as="shop"), Copy(b"1", "1", 0.0, b"signature"))
    provision = Provision(Origin(), source=source)
    provision.path = Path("/nowhere")
    taken = asyncio.Event()

    async def take() -> None:
        await asyncio.sleep(LOAD_SECONDS)
        assert source.offered is not None
        source.accepted(source.offered)
        if source.held is not None and source.held.etag == str(store.newest):
            taken.set()

    polling = asyncio.ensure_future(provision.poll_forever(take))
    loop, longest = asyncio.get_running_loop(), 0.0
    await asyncio.sleep(100)
    for _ in range(PUSHES):
        await asyncio.sleep(gaps())
        taken.clear()
        store.push()
        pushed = loop.time()
        await taken.wait()
        longest = max(longest, loop.time() - pushed)
    polling.cancel()
    return longest


@pytest.mark.parametrize(
    ("waits", "signals", "bound"),
    [(True, True, 2.0), (True, False, 40.0), (False, False, 40.0)],
    ids=["signal", "signal lost", "poll"],
)
def test_each_of_many_pushes_is_in_force_within_the_bound(
    waits: bool, signals: bool, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(function: Callable[..., Any], *given: Any) -> Any:
        return function(*given)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    dice = random.Random(1)

    async def run() -> float:
        store = Store(waits=waits, signals=signals)
        monkeypatch.setattr(provisions, "_fetch", store.fetch)
        return await slowest(
            store, lambda: dice.choice((0.0, 0.3, 1.0, 7.0, 29.9, 31.0, 100.0)) * dice.random()
        )

    with own_loop(VirtualLoop) as runner:
        assert runner.run(run()) <= bound
