"""Makes digests when they are due, and sends them.

Rule: it never holds up anything else: the store is asked in threads, each try has a limit of time, and their
number is bounded. What fails is told once for each try, counted, and never raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import aiohttp
from sqlalchemy.exc import SQLAlchemyError

from keyfence.findings.database import reason
from keyfence.findings.spans import span_text
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import notice, report_fault, warn

from .claims import Claims, Waiting
from .delivery import NotDelivered, deliver, shown
from .digest import Bounds, Covered, Digest
from .plan import Period, Plan, Target
from .share import is_quiet, share_of

LOOK_SECONDS = 10.0  # between two looks at what is due
# A digest is made so long after it is due: what services did before may be written after it.
SETTLE_SECONDS = 60.0
# For so long after that, an instance adds its own targets to a digest that another one has made.
JOIN_SECONDS = 600.0


class Makes(Protocol):
    """Makes the digest of some bounds under the policy in force. Raises ValueError."""

    def __call__(self, bounds: Bounds) -> Awaitable[Covered]: ...


class Sender:
    """Sends the digests of one store, beside other instances with the same store."""

    def __init__(
        self, claims: Claims, make: Makes, counters: Counters, clock: Callable[[], float] = time.time
    ) -> None:
        self.plan: Plan | None = None  # None: no digest is asked for
        self._claims = claims
        self._make = make
        self._counters = counters
        self._clock = clock
        self._known = ""  # the last period that is made, as far as this instance knows
        self._look_at = 0.0

    async def tick(self, session: aiohttp.ClientSession) -> None:
        """Called each second: make and send what is due."""
        now = self._clock()
        if self.plan is None or 0 <= self._look_at - now <= LOOK_SECONDS:
            return
        self._look_at = now + LOOK_SECONDS
        try:
            period = self.plan.last_due(now - SETTLE_SECONDS)
            if period.name != self._known:
                await self._make_known(self.plan, period, now)
                self._known = period.name
            for one in await asyncio.to_thread(self._claims.waiting, now):
                await self._try(session, self.plan, one)
        except SQLAlchemyError as exc:
            notice("news", f"the news waits, because the findings store cannot be used: {reason(exc)}")
        except ValueError as exc:
            notice("news", f"the news waits: {exc}")
        except Exception as exc:  # of a library, say: the next look tries again, within the bound of tries
            report_fault(exc)

    async def _make_known(self, plan: Plan, period: Period, now: float) -> None:
        """Make the digest of a period, unless there is one."""
        if await asyncio.to_thread(self._claims.is_made, period.name):
            digest = await asyncio.to_thread(self._claims.digest, period.name)
            if digest is not None and now - period.due <= SETTLE_SECONDS + JOIN_SECONDS:
                names = await asyncio.to_thread(_who_gets, plan, digest)
                await asyncio.to_thread(self._claims.expect, period.name, names)
            return
        bounds = await asyncio.to_thread(self._claims.bounds, period)
        if bounds is None:
            made = await self._make(Bounds(period.due, period.due, period.length))
            await asyncio.to_thread(self._claims.begin, period, made.event)
        elif bounds.since < bounds.until:  # else the digest before covers it, under another plan
            made = await self._make(bounds)
            names = await asyncio.to_thread(_who_gets, plan, made.digest)
            await asyncio.to_thread(self._claims.add, period, made, names)

    async def _try(self, session: aiohttp.ClientSession, plan: Plan, one: Waiting) -> None:
        target = next((each for each in plan.targets if each.name == one.target), None)
        if target is None:  # of an instance with another configuration, or no longer wanted
            return
        now = self._clock()
        tries = await asyncio.to_thread(self._claims.claim, one, now)
        if not tries:
            if await asyncio.to_thread(self._claims.give_up, one, now):
                self._lost(one, target, "keyfence ended each time while it sent them")
            return
        digest = await asyncio.to_thread(self._claims.digest, one.period)
        assert digest is not None  # only such a period waits
        share = await asyncio.to_thread(share_of, digest, target, plan.targets)
        try:
            lacks = await deliver(session, plan, target, share, one.period)
        except NotDelivered as exc:
            await self._failed(one, target, tries, str(exc))
            return
        await asyncio.to_thread(self._claims.sent, one)
        self._counters.news_sent += 1
        if lacks:
            warn(f"{shown(target)} has taken the news of {one.period}, but {lacks}")

    async def _failed(self, one: Waiting, target: Target, tries: int, why: str) -> None:
        self._counters.news_failures += 1
        pause = await asyncio.to_thread(self._claims.failed, one, tries, self._clock())
        if pause:
            warn(
                f"{shown(target)} has not taken the news of {one.period}: {why}; again in {span_text(pause)}"
            )
        else:
            self._lost(one, target, f"{why}, at the last of {tries} tries")

    def _lost(self, one: Waiting, target: Target, why: str) -> None:
        self._counters.news_lost += 1
        warn(
            f"the news of {one.period} are lost for {shown(target)}: {why}; keyfence news --since shows them"
        )


def _who_gets(plan: Plan, digest: Digest) -> list[str]:
    """The names of the targets for which there is anything in a digest."""
    return [
        one.name
        for one in plan.targets
        if plan.even_if_quiet or not is_quiet(share_of(digest, one, plan.targets))
    ]
