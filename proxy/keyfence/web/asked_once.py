"""What the page asks of keyfence, each thing once for all readers.

Rule: an answer is kept for a moment, so that many open pages cost as much as one. A change through the page
forgets all of them. A question that failed is asked again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from keyfence.admin.asked import (
    Fleet,
    Listing,
    Owners,
    Question,
    Readiness,
    RightsOf,
    Single,
    Summary,
    Trend,
    Uses,
)
from keyfence.admin.control import Control
from keyfence.admin.next_step import Step, next_step
from keyfence.findings.filter import Filter
from keyfence.findings.finding import DAY, QUIET_SECONDS
from keyfence.telemetry.reports.services import commands_of

TREND_DAYS = 30
USE_DAYS = 30
MOMENT = 0.8  # seconds; less than the time between two snapshots
WHILE = 10.0  # for what changes slowly and is costly
LONG = 600.0  # for the past, in which late counts may still arrive
UNCHANGED = 10.0  # for findings that this keyfence has not changed: another one with the same store may have
RATE_SECONDS = 10.0  # over which commands a second are measured
MAX_KEPT = 50  # answers; a list of findings may take some 100 KB

_T = TypeVar("_T")


class _Answer(NamedTuple):
    value: Any
    until: float
    version: int


class Questions:
    """Answers of one keyfence, kept for a moment."""

    def __init__(self, control: Control, clock: Callable[[], float] = time.monotonic) -> None:
        self.control = control
        self._clock = clock
        self._kept: dict[Hashable, _Answer] = {}
        self._asking: dict[tuple[Hashable, int], asyncio.Task[Any]] = {}
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=30)  # commands by service

    def forget(self) -> None:
        """Ask everything again from now on. What is being asked answers its askers, and is not kept."""
        self._kept.clear()
        self._asking.clear()

    async def _keep(
        self, what: Hashable, seconds: float, ask: Callable[[], Awaitable[_T]], version: int = 0
    ) -> _T:
        """The answer, at most `seconds` old, and of this version of what it is about. Equal questions at one
        time are one question, and it goes on if an asker gives up. Raises what `ask` raises."""
        kept = self._kept.get(what)
        if kept is not None and kept.version == version and self._clock() < kept.until:
            known: _T = kept.value
            return known
        asking = self._asking.get((what, version))
        if asking is None:
            asking = asyncio.create_task(self._ask(what, seconds, ask, version))
            asking.add_done_callback(_look_at)
            self._asking[what, version] = asking
        answer: _T = await asyncio.shield(asking)
        return answer

    async def _ask(
        self, what: Hashable, seconds: float, ask: Callable[[], Awaitable[_T]], version: int
    ) -> _T:
        own = asyncio.current_task()
        try:
            answer = await ask()
            if self._asking.get((what, version)) is own:  # else it was forgotten meanwhile
                self._make_room()
                self._kept[what] = _Answer(answer, self._clock() + seconds, version)
            return answer
        finally:
            if self._asking.get((what, version)) is own:
                del self._asking[what, version]

    def _make_room(self) -> None:
        if len(self._kept) >= MAX_KEPT:
            now = self._clock()
            self._kept = {what: kept for what, kept in self._kept.items() if now < kept.until}
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()

    async def _of_findings(self, question: Question) -> Mapping[str, Any]:
        """An answer that changes only with the findings. What was counted is written once for all questions
        of a moment."""
        version = await self._keep("caught up", MOMENT, self.control.catch_up)
        return await self._keep(question, UNCHANGED, lambda: self.control.ask(question), version)

    async def ask(self, question: Question) -> Any:
        """An answer that changes slowly, and is costly."""
        return await self._keep(question, WHILE, lambda: self.control.ask(question))

    # -- what the views show

    async def status(self) -> Mapping[str, Any]:
        return await self._keep("status", MOMENT, self.control.status)

    async def summary(self) -> Mapping[str, Any]:
        return await self._of_findings(Summary())

    async def findings(self, which: Filter) -> Mapping[str, Any]:
        return await self._of_findings(Listing(which))

    async def finding(self, one: str) -> Mapping[str, Any]:
        return await self._of_findings(Single(one))

    async def readiness(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self.ask(Readiness(QUIET_SECONDS))
        return found

    async def trend(self, service: str = "") -> Mapping[str, Any]:
        now = time.time()
        begin, today = now - TREND_DAYS * DAY, now // DAY * DAY

        async def of_today() -> Mapping[str, Any]:
            return await self._asked_at(now, Trend(today, service, now - DAY))

        async def before() -> Mapping[str, Any]:
            return await self._asked_at(now, Trend(begin, service, now))

        # The days before change no more, and are the most.
        earlier = await self._keep(("trend before", service, today), LONG, before)
        found = await self._keep(("trend", service, today), WHILE, of_today)
        hours = [one for one in earlier["violations"] if one["hour"] < today]
        # Of the days before the store was made, nothing is known. A chart has at least one day.
        first = min(max(found["at"] - TREND_DAYS * DAY, found["made"]), found["at"] - DAY)
        return {**found, "violations": [*hours, *found["violations"]], "begin": first, "end": found["at"]}

    async def _asked_at(self, now: float, question: Question) -> Mapping[str, Any]:
        """An answer, and when it was asked for."""
        return {**await self.control.ask(question), "at": now}

    async def uses(self) -> Mapping[str, Any]:
        return await self._keep("uses", WHILE, lambda: self.control.ask(Uses(time.time() - USE_DAYS * DAY)))

    async def rights(self, service: str) -> Mapping[str, Any]:
        begin = time.time() - USE_DAYS * DAY
        return await self._keep(
            ("rights", service), WHILE, lambda: self.control.ask(RightsOf(service, begin))
        )

    async def owners(self) -> Sequence[str]:
        found: Sequence[str] = await self.ask(Owners())
        return found

    async def fleet(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self.ask(Fleet())
        return found

    async def has_fleet(self) -> bool:
        """Whether there is a fleet to show: several instances, or environments."""
        try:
            instances = (await self.fleet())["instances"]
        except ValueError:
            return False
        return len(instances) > 1 or any(one["environment"] for one in instances)

    async def next_step(self) -> Step:
        return await next_step(self, (await self.traffic())[0])

    async def look(self) -> Mapping[str, Any]:
        return await self._keep("look", MOMENT, self.control.look)

    async def policy(self) -> Mapping[str, Any]:
        return await self._keep("policy", MOMENT, self.control.policy)

    async def modes(self) -> Mapping[str, Any]:
        return await self._keep("modes", MOMENT, self.control.modes)

    async def candidate(self) -> Mapping[str, Any]:
        return await self._keep("candidate", MOMENT, self.control.candidate)

    async def standing(self) -> Mapping[str, Any]:
        return await self._keep("standing", MOMENT, self.control.standing)

    async def traffic(self) -> tuple[Sequence[Mapping[str, Any]], dict[str, float]]:
        """The services' rows, and the commands a second of each, measured over the last seconds."""

        async def ask() -> tuple[Sequence[Mapping[str, Any]], dict[str, float]]:
            rows = await self.control.traffic()
            return rows, self._rates({row["service"]: commands_of(row) for row in rows})

        return await self._keep("traffic", MOMENT, ask)

    def _rates(self, commands: dict[str, int]) -> dict[str, float]:
        now = self._clock()
        while self._samples and now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        self._samples.append((now, commands))
        then, before = self._samples[0]
        if now <= then:
            return {}
        return {name: max(count - before.get(name, 0), 0) / (now - then) for name, count in commands.items()}


def _look_at(asked: asyncio.Task[Any]) -> None:
    """Look at a failure: every asker may have gone, and asyncio complains of one that nobody looks at."""
    if not asked.cancelled():
        asked.exception()
