"""Feeds the findings store while keyfence runs.

Rule: the database is never on the path of a request, and never stops keyfence. What cannot be written waits,
is added up, and is written once the database is back. One thread does all writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.units import counted
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import Changes, elapsed, report_fault
from keyfence.telemetry.tally import Key

from .batch import Batch
from .database import Database, reason
from .finding import SETTLE_SECONDS, Event
from .history.book import MAX_CHAINS, Book
from .instances import REPORT_SECONDS, Compared, Instance
from .proof.basis import InForce, described
from .queries import Reader
from .reevaluation import Kept, evaluated_again, resolved
from .spans import LOOKING, OPAQUE, PASSTHROUGH, Span
from .store import Store

WRITE_SECONDS = 1.0
CALM_SECONDS = 5.0  # between two writes while nothing new breaks a rule: a write takes some 20 ms of CPU
AGE_SECONDS = 60.0  # between two looks at findings that nothing was seen of
PRUNE_SECONDS = 3600.0
# For so long the clock must have run evenly before anything old is deleted. What a wrong clock deletes, as at
# the start of a machine, does not come back when the clock is right again.
STEADY_SECONDS = 600.0
UNEVEN_SECONDS = 120.0  # between two looks; a longer pause may be a clock that was set
LONGEST_BACKOFF = 30.0
# A longer pause between two ticks means that this process did not run: it was stopped, or the machine slept.
ASLEEP_SECONDS = 10.0
_FAILURES = (SQLAlchemyError, OSError)


class Writer:
    """Collects what processes count, and writes it to a store: new kinds of violations each second, and what
    only adds to the counts of known ones less often."""

    def __init__(
        self,
        store: Store,
        counters: Counters,
        *,
        keep: float,
        on_change: Callable[[Sequence[Event]], None] = lambda _events: None,
        clock: Callable[[], float] = time.time,
        asleep_seconds: float = ASLEEP_SECONDS,
        book: Book | None = None,
    ) -> None:
        """`keep` is for how many seconds findings are kept. `on_change` gets each change of a finding's
        state. After a pause of more than `asleep_seconds` keyfence was not looking. `book` is the history of
        this process."""
        self.reader = Reader(store.database)
        self.trouble = ""  # why the store lacks what was counted last; "": it lacks nothing
        self.version = 0  # of the findings: changes whenever this process has changed any
        self.reports: Callable[[], Instance] | None = None  # what this instance says of itself …
        self.compares: Callable[[Instance], Compared | None] = lambda _: (
            None
        )  # … and of the fleet's candidate
        self._reported: Instance | None = None  # that was written last, if the store has it
        self._store = store
        self._counters = counters
        self._keep = keep
        self._on_change = on_change
        self._clock = clock
        self._asleep_seconds = asleep_seconds
        self._book = book
        self._chained = ""  # the hash and the tail that the store has of the history
        self._history_waits = False  # it could not be written
        self._batch = Batch()
        self._lately: dict[Key, float] = {}  # when each kind of violation was written last
        self._opaque: set[str] = set()  # services with opaque sessions since the last look
        self._open: set[str] | None = None  # those with open ones now; None: not counted since the last look
        self._were_open: set[str] = set()  # those when they were counted before
        self.in_force = InForce()  # a policy with its modes
        # The policy to evaluate findings under again, and when it was put in force.
        self._to_evaluate: tuple[CompiledPolicy, float] | None = None
        self._announced = ""  # the revision that the store knows of …
        self._described = ""  # … and the basis
        self._looked_until: float | None = None
        self._clock_at = 0.0  # at the last look …
        self._steady_since = 0.0  # … and since when it has run evenly
        self._aged = self._pruned = self._written = 0.0
        self._failing_since: float | None = None
        self._backoff = 0.0
        self._failed_at = 0.0
        self._changes = Changes()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="findings")
        self._writing = asyncio.Lock()

    # -- what comes in

    def take(self, counts: Mapping[str, Any]) -> None:
        """Take increments of a process, or a part of them (`telemetry.increments`)."""
        now = self._clock()
        self._batch.add_rows(counts.get("tally", ()), now)
        self._batch.add_uses(counts.get("asked", ()), now)
        begun = counts.get("counters", {}).get("sessions_opaque", ())
        self._opaque |= {service for service, _, number in begun if number > 0}
        if "gauges" in counts:
            open_now = {service for service, number in counts["gauges"]["opaque_open"] if number > 0}
            self._opaque |= open_now
            self._open = open_now | (self._open or set())

    def policy_taken(self, policy: CompiledPolicy | None, modes: Modes | None = None) -> None:
        """A policy is in force from now on, with these modes; None: commands pass unread."""
        if policy is not None and modes is None:
            modes = Modes((), policy.services)
        self.in_force = InForce(policy, modes)
        if policy is not None:
            self._to_evaluate = policy, self._clock()

    def look(self, is_open: bool) -> None:
        """Called each second: whether clients are served."""
        now = self._clock()
        if not 0 <= now - self._clock_at <= UNEVEN_SECONDS:
            self._steady_since = now
        self._clock_at = now
        begin = self._looked_until
        self._looked_until = now if is_open else None
        if begin is None or not begin <= now <= begin + self._asleep_seconds:
            return
        span = Span(begin, now)
        self._add_span(PASSTHROUGH if self.in_force.policy is None else LOOKING, "", span)
        # A session that was open before may have ended since then.
        for service in self._opaque | self._were_open:
            self._add_span(OPAQUE, service, span)
        self._opaque.clear()
        if self._open is not None:
            self._were_open, self._open = self._open, None

    def _add_span(self, kind: str, service: str, span: Span) -> None:
        self._batch.add_span(kind, service, span)
        if self._book is not None:
            self._book.look(kind, service, *span)

    # -- what goes out

    async def tick(self) -> None:
        """Write what waits, unless it may wait longer, or the database failed a moment ago."""
        self._changes.tick()
        now = self._clock()
        is_due = _is_over(CALM_SECONDS, self._written, now)
        has_history = self._book is not None and self._book.has_waiting and not self._history_waits
        has_news = any(key not in self._lately for key in self._batch.seen)
        is_urgent = has_news or self._to_evaluate is not None or has_history
        if _is_over(self._backoff, self._failed_at, now) and (is_due or is_urgent):
            await self.write()

    async def write(self) -> None:
        """Write what waits. On failure it goes on waiting. If the caller is cancelled, the write goes on."""
        await asyncio.shield(self._write_now())

    async def _write_now(self) -> None:
        async with self._writing:
            instance = self._report()
            compared = None if instance is None else self.compares(instance)
            batch, self._batch = self._batch, Batch()
            batch.instance, batch.compared = instance, compared
            loop = asyncio.get_running_loop()
            try:
                changes = await loop.run_in_executor(self._thread, self._write, batch)
            except _FAILURES as exc:
                batch.add_batch(self._batch)
                self._batch = batch
                self._failed(exc)
                return
            except Exception as exc:  # a fault of keyfence's own, which this batch would meet again
                self._counters.findings_write_failures += 1
                report_fault(exc)
                self._changes.add("what was counted since the last write to the findings store is lost")
                return
            self._succeeded(batch)
        if changes:
            self._on_change(changes)

    def _report(self) -> Instance | None:
        """What this instance says of itself, if the store is to be told."""
        if self.reports is None:
            return None
        one, before = dataclasses.replace(self.reports(), last=self._clock()), self._reported
        if before is not None and 0 <= one.last - before.last < REPORT_SECONDS and one.says_the_same(before):
            return None
        return one

    def _write(self, batch: Batch) -> list[Event]:
        now = self._clock()
        if not self._store.database.is_in_place():
            self._begin_again()
        changes = self._store.write(batch)
        self.version += bool(batch.seen)
        self._write_history(now)
        known = len(changes)
        try:
            self._look_after(now, changes)
        except _FAILURES as exc:  # the batch is written; this part is tried again later
            self._counters.findings_write_failures += 1
            self._changes.add(f"the findings store is not kept up to date: {reason(exc)}")
        except Exception as exc:  # a fault of keyfence's own
            self._counters.findings_write_failures += 1
            report_fault(exc)
        self.version += len(changes) > known
        return changes

    def _write_history(self, now: float) -> None:
        """Write the rows of the history that wait. What cannot be written waits for the next time."""
        if self._book is None:
            return
        try:
            if not self._book.has_named_others:
                known = self.reader.heads(MAX_CHAINS)
                self._book.name_others([one for one in known if one.instance != self._book.head.instance])
            rows, head, tail = self._book.waiting()
            if head.rows and self._chained != head.hash + tail:
                self._store.history_taken(rows, head, tail, int(now * 1000))
                self._book.written(rows)
                self._chained = head.hash + tail
            self._history_waits = False
        except _FAILURES as exc:
            self._history_waits = True
            self._counters.findings_write_failures += 1
            self._changes.add(f"the history is not written, and waits in memory: {reason(exc)}")

    def _begin_again(self) -> None:
        """Go on in a new file. What the old one held is lost."""
        self._counters.findings_write_failures += 1
        self._store.begin_again()
        self._announced = self._described = ""
        if self._book is not None:
            self._book.begin_again()
        self._reported = None
        self.version += 1
        self._changes.add(
            f"the file of the findings store {self._store.database.shown} was deleted or replaced while "
            "keyfence ran; what it held is lost, and keyfence goes on in the file that has the name now"
        )

    def _look_after(self, now: float, changes: list[Event]) -> None:
        """Evaluate examples again under a new policy, move findings on, delete old ones. Changes of state are
        added to `changes` as soon as they are made: what comes next may fail, and they are not made again."""
        in_force = self.in_force
        policy = in_force.policy
        if policy is not None and policy.revision != self._announced:
            self._store.policy_taken(policy.name, policy.revision, now)
            self._announced = policy.revision
        if policy is not None and in_force.modes is not None and in_force.basis != self._described:
            self._store.basis_taken(in_force.basis, json.dumps(described(policy, in_force.modes)), now)
            self._described = in_force.basis
        # Until then violations under the policy before may still arrive.
        to_evaluate = self._to_evaluate
        if to_evaluate is not None and _is_over(SETTLE_SECONDS, to_evaluate[1], now):
            policy_taken, since = to_evaluate
            self._reevaluate(policy_taken, since, now, changes)
            if self._to_evaluate is to_evaluate:
                self._to_evaluate = None
        if _is_over(AGE_SECONDS, self._aged, now):
            changes += self._store.age(now)
            self._aged = now
        is_steady = 0 <= now - self._clock_at <= UNEVEN_SECONDS and now - self._steady_since >= STEADY_SECONDS
        if is_steady and _is_over(PRUNE_SECONDS, self._pruned, now):
            self._store.prune(self._keep, now)
            self._pruned = now
            self.version += 1

    def _reevaluate(self, policy: CompiledPolicy, since: float, now: float, changes: list[Event]) -> None:
        kept = Kept(self.reader, self.in_force.basis)
        allowed = resolved(policy, self.reader.each(), since, kept.keeps)
        changes += self._store.resolve(allowed, policy.revision, now) if allowed else []
        still, others = evaluated_again(policy, self.reader.each(), kept.keeps)
        self._store.still_resolved(still, policy.revision)
        changes += self._store.reopen(others, policy.revision, now) if others else []

    def _failed(self, exc: BaseException) -> None:
        now = self._clock()
        self._counters.findings_write_failures += 1
        self._backoff = min(max(2 * self._backoff, WRITE_SECONDS), LONGEST_BACKOFF)
        self._failed_at = now
        self.trouble = (
            f"the findings store {self._store.database.shown} cannot be written: {reason(exc)}; "
            "findings wait in memory"
        )
        if self._failing_since is None:
            self._failing_since = now
            self._changes.add(self.trouble)

    def _succeeded(self, batch: Batch) -> None:
        if batch.instance is not None:
            self._reported = batch.instance
        self._backoff = self._failed_at = 0.0
        self.trouble = ""
        now = self._written = self._clock()
        self._lately = {key: at for key, at in self._lately.items() if not _is_over(CALM_SECONDS, at, now)}
        self._lately.update(dict.fromkeys(batch.seen, now))
        if self._failing_since is not None:
            took = elapsed(max(0.0, self._clock() - self._failing_since))
            self._failing_since = None
            self._changes.add(f"the findings store is written again after {took}; nothing was lost")

    async def close(self) -> None:
        """Write what is left, and close the database."""
        await self.write()
        self._say_what_is_lost()
        if self._reported is not None:
            with contextlib.suppress(*_FAILURES):  # others see that it is silent
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._store.leave, self._reported.id)
        self._thread.shutdown()
        self._store.database.close()

    def _say_what_is_lost(self) -> None:
        """The process ends, and the store could not be written."""
        lost = [counted(len(self._batch.seen), "finding")] if self._batch.seen else []
        if self._book is not None and self._book.has_waiting:
            lost.append("the newest rows of the history")
        if lost:
            store, is_one = self._store.database.shown, len(self._batch.seen) == len(lost) == 1
            verb = "is" if is_one else "are"
            self._changes.add(f"{' and '.join(lost)} that waited for the findings store {store} {verb} lost")


def _is_over(pause: float, since: float, now: float) -> bool:
    """Whether a pause of some seconds is over. The clock may have been set back meanwhile."""
    return not 0 <= now - since < pause


def open_store(url: str, instance: str) -> Store:
    """A store to write to. Raises StoreError."""
    return Store(Database(url), instance)
