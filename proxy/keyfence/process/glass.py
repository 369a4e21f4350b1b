"""Break-glass: the periods in which violations are only observed.

Rule: all processes have the same ones, and a period that is over is removed. It lasts for as long as was
asked, although the clock may be set meanwhile. One that the age of the policy has opened is not an
operator's: it is neither listed nor ended with theirs.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, NamedTuple

from keyfence.admin.acting import acting_as, who_acts
from keyfence.findings.history.book import BREAK_GLASS
from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.rules import RULES
from keyfence.telemetry.operator_log import warn

from .history import Note
from .serving.backend import Backend
from .serving.runtime import Runtime

MAX_GLASS = 100  # that may be open at a time
MOVED_SECONDS = 2.0  # by which the clock differs at least if it was set, and was not merely corrected


class _Opened(NamedTuple):
    glass: BreakGlass
    who: str  # has opened it
    ends: float  # on a clock that nobody sets


def _running() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Glass:
    """The break-glasses of one keyfence."""

    def __init__(self, runtime: Runtime, backend: Backend, note: Note = lambda _kind, _detail: None) -> None:
        """`note` takes what goes into the history."""
        self._runtime = runtime
        self._backend = backend
        self._note = note
        self._open: list[_Opened] = []  # by operators
        self._of_age: list[BreakGlass] = []

    def listing(self) -> list[dict[str, Any]]:
        """Those that operators have opened."""
        return [dataclasses.asdict(one.glass) for one in self._open]

    async def open(
        self, authorizer: Authorizer, seconds: float, rule: str | None, service: str | None
    ) -> dict[str, Any]:
        """Open one for a rule, a service, both, or (None) all. Raises ValueError."""
        if rule and rule not in RULES:
            raise ValueError(f"{rule!r} is not a rule")
        if service and service not in authorizer.policy.services:
            raise ValueError(f"{service!r} is not a service of the policy")
        if len(self._open) >= MAX_GLASS:
            raise ValueError(f"{MAX_GLASS} are open already; end them with keyfence observe --end")
        one = BreakGlass(time.time() + seconds, rule or "", service or "")
        self._open.append(_Opened(one, who_acts(), _running() + seconds))
        await self._put("opened")
        of = " ".join(
            part for part in (f"of {rule}" if rule else "", f"by {service}" if service else "") if part
        )
        warn(f"break-glass: violations {of or 'of every rule'} are only observed for {seconds:g} s")
        return dataclasses.asdict(one)

    async def end(self) -> dict[str, Any]:
        """End all that operators have opened."""
        ended = len(self._open)
        self._open = []
        await self._put("ended")
        warn("break-glass was ended: modes are as configured again")
        return {"ended": ended}

    async def tick(self) -> None:
        """Remove those that are over. If the clock was set, put right when the others end."""
        now = _running()
        set_by = time.time() - now
        left = [one for one in self._open if one.ends > now]
        moved = [one for one in left if abs(one.ends + set_by - one.glass.until) >= MOVED_SECONDS]
        for one in moved:
            one.glass.until = one.ends + set_by
        is_over = len(left) < len(self._open)
        self._open = left
        if is_over and not left:
            warn("break-glass has ended: modes are as configured again")
        if is_over or moved:
            await self._put("over" if is_over else "the clock was set")

    async def observe_all(self, is_on: bool) -> None:
        """Only observe everything, because the policy is too old, or (False) no longer."""
        self._of_age = [BreakGlass(math.inf)] if is_on else []
        with acting_as("the policy's age"):
            await self._put("opened" if is_on else "ended")

    async def _put(self, change: str) -> None:
        self._note(BREAK_GLASS, {"change": change, "open": self._described()})
        self._runtime.glass[:] = [*(one.glass for one in self._open), *self._of_age]
        self._runtime.telemetry.counters.set_break_glass(bool(self._open))
        await self._backend.set_glass(self._runtime.glass)

    def _described(self) -> list[dict[str, Any]]:
        """All that are open, for the history."""
        found = [(one.glass, one.who, int(one.glass.until * 1000)) for one in self._open]
        of_age = [(one, "the policy's age", 0) for one in self._of_age]
        return [
            {"rule": one.rule, "service": one.service, "until": until, "who": who}
            for one, who, until in (*found, *of_age)
        ]
