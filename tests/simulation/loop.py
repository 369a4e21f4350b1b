"""An event loop without sockets and without a clock.

Rule: time passes only when nothing is left to do, and then it jumps to the next timer. So the same callbacks
run in the same order each time, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any

BEGIN = 1000.0  # seconds; not 0.0, which stands for "never" in many places
MOST_ROUNDS = 400_000  # of one schedule; one has some thousands


class StandsStill(Exception):
    """Nothing is left to do, or nothing but rounds at one moment: the schedule makes no progress."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks and timers in virtual time. `opens` makes its connections, `resolves` its host names."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.rounds = 0
        self.faults: list[str] = []  # what reached the handler of exceptions
        self.opens: Callable[[Callable[[], Any], str, int], Coroutine[Any, Any, tuple[Any, Any]]]
        self.resolves: Callable[[str], list[str]] = lambda host: [host]
        # By time, and by number: timers of one moment ring in the order in which they were set.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self.set_exception_handler(self._note)

    def _note(self, _loop: object, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        timer._scheduled = True
        return timer

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """It is left out when its time comes."""

    def _run_once(self) -> None:
        """One round: let the time pass if nothing is to be done, and call what is due."""
        self.rounds += 1
        if self.rounds > MOST_ROUNDS:
            raise StandsStill(f"{MOST_ROUNDS} rounds of the loop have led nowhere")
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise StandsStill("there is nothing to do, and no timer")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _write_to_self(self) -> None:
        """Nobody has to be woken up."""

    async def create_connection(self, protocol_factory: Any, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        return await self.opens(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(0, 0, 0, "", (one, port)) for one in self.resolves(host)]

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """Those that would still ring."""
        return [timer for _, _, timer in sorted(self._timers) if not timer.cancelled()]
