"""The findings feed for people: POSTs new and reopened findings to a webhook.

Rule: what waits is bounded, every failure is tried again with growing pauses, and nothing of it delays the
store. A message holds what a report shows: masked keys, no values. The URL is a secret, so it is never shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiohttp

from keyfence.findings.finding import Event, Finding, State
from keyfence.policy.show import one_line
from keyfence.policy.units import counted, plural
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import Changes, warn

from . import slack, teams
from .document import Document, Part, Section
from .document import line as line_of
from .posting import TIMEOUT, host_of, post, why_not

MAX_WAITING = 1_000  # changes; beyond, the oldest are dropped and counted
MAX_SHOWN = 20  # findings of one message in full
FIRST_PAUSE = 1.0  # seconds after a failure; it doubles
LONGEST_PAUSE = 300.0
LAST_TIMEOUT = 2.0  # of the one at the end


# Fields of a finding that a message has as they are.
_TOLD = ("service", "rule", "severity", "command", "entry", "shape", "owner", "hint")


class Feed(NamedTuple):
    """Where and when to send. `form`: json, slack or teams."""

    webhook: str
    on: frozenset[State]
    group: float  # seconds for which changes are gathered into one message
    form: str = "json"


class Notifier:
    """Gathers changes of findings, and sends them."""

    def __init__(
        self,
        feed: Feed,
        find: Callable[[str], Finding | None],
        counters: Counters,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` returns a finding of the store by its id; it is called in a thread."""
        self._feed = feed
        self._find = find
        self._counters = counters
        self._clock = clock
        self._waiting: dict[str, Event] = {}  # by finding: its last change
        self._since: float | None = None  # when the first of them came
        self._pause = 0.0
        self._retry_at = 0.0
        self._changes = Changes()
        self._host = host_of(feed.webhook)

    def changed(self, events: Sequence[Event]) -> None:
        """Take changes of findings' states."""
        for one in events:
            if one.state not in self._feed.on:
                continue
            self._waiting.pop(one.finding, None)
            if len(self._waiting) >= MAX_WAITING:
                del self._waiting[next(iter(self._waiting))]
                self._counters.notifications_dropped += 1
            self._waiting[one.finding] = one
            if self._since is None:
                self._since = self._clock()

    async def run_forever(self) -> None:
        """Send each second what is due."""
        async with aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(1)
                await self.tick(session)

    async def tick(self, session: aiohttp.ClientSession) -> None:
        """Send what waits, if its time has come."""
        self._changes.tick()
        now = self._clock()
        if self._since is not None and now >= max(self._since + self._feed.group, self._retry_at):
            await self.send(session, TIMEOUT)

    async def close(self) -> None:
        """Send what waits, once. What is not taken is lost, because it waits in memory only."""
        if self._waiting:
            async with aiohttp.ClientSession() as session:
                await self.send(session, LAST_TIMEOUT)
        if lost := len(self._waiting):
            warn(
                f"{counted(lost, 'notification')} that waited for the webhook at {self._host} "
                f"{plural(lost, 'is', 'are')} lost; keyfence findings lists what has changed"
            )

    async def send(self, session: aiohttp.ClientSession, timeout: float) -> None:
        """Send all that waits. After a failure it goes on waiting."""
        events = dict(self._waiting)
        try:
            findings = await asyncio.to_thread(self._found, list(events))
            if findings:
                await post(session, self._feed.webhook, message(self._feed.form, findings, events), timeout)
        except Exception as exc:  # whatever it is, it must not end the notifications: the next try may work
            self._failed(exc)
            return
        if self._pause:
            self._changes.add(f"the webhook at {self._host} takes notifications again")
        self._pause = self._retry_at = 0.0
        for one, event in events.items():
            if self._waiting.get(one) is event:
                del self._waiting[one]
        self._since = self._clock() if self._waiting else None

    def _found(self, ids: Sequence[str]) -> list[Finding]:
        return [found for found in map(self._find, ids) if found is not None]

    def _failed(self, exc: Exception) -> None:
        self._counters.notification_failures += 1
        if not self._pause:
            why = why_not(exc)
            self._changes.add(f"the webhook at {self._host} does not take notifications: {why}; they wait")
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
        self._retry_at = self._clock() + self._pause


def message(form: str, findings: Sequence[Finding], events: dict[str, Event]) -> dict[str, Any]:
    """The body of a request: findings with the changes that they are told for."""
    text = headline(findings, events)
    shown = findings[:MAX_SHOWN]
    if form in ("slack", "teams"):
        more = len(findings) - len(shown)
        rest = [line_of(f"and {more} more: keyfence findings --state active")] if more else []
        lines = [line_of(Part(line(one, events[one.id]), is_name=True)) for one in shown]
        document = Document(text, (Section("", (*lines, *rest)),))
        return slack.message(document) if form == "slack" else teams.message(document)
    return {
        "text": text,
        "findings": [
            {
                "id": one.id,
                "change": str(events[one.id].state),
                "why": events[one.id].why,
                "at": events[one.id].at,
                **{name: getattr(one, name) for name in _TOLD},
                "count": one.total,
                "clients": one.clients,
                "example": one.examples[0]["key"] if one.examples else "",
            }
            for one in shown
        ],
        "more": len(findings) - len(shown),
    }


def headline(findings: Sequence[Finding], events: dict[str, Event]) -> str:
    """How many findings changed, in words: `2 new findings and 1 reopened (shop, billing)`."""
    counts: dict[str, int] = {}
    for one in findings:
        state = str(events[one.id].state)
        counts[state] = counts.get(state, 0) + 1
    parts = [f"{number} {state}" for state, number in counts.items()]
    services = ", ".join(sorted({one_line(one.service) for one in findings}))
    return f"keyfence: {' and '.join(parts)} {plural(len(findings), 'finding')} ({services})"


def line(one: Finding, event: Event) -> str:
    """One finding in one line."""
    owner = f", owner {one.owner}" if one.owner else ""
    hint = f": {one.hint}" if one.hint else ""
    return one_line(
        f"{one.id} {event.state}: {one.service} {one.command} {one.place} breaks {one.rule}{hint} "
        f"({counted(one.total, 'time')}{owner})"
    )
