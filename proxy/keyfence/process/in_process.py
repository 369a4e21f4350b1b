"""The backend of a keyfence without workers: this process serves the clients itself.

Rule: it owns nothing but the feed; listeners and clients are the runtime's.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

from keyfence.admin.beside import answers
from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.session.conversation.owner_questions import Question
from keyfence.telemetry.candidate.rehearsal import as_rows
from keyfence.telemetry.candidate.rows import rows_of
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.tally import Tally

from .serving.answers import OF_LEDGER, Answers, from_ledger
from .serving.backend import Backend, Feed, Ledger, WorkerFailed, hand_over
from .serving.candidate import NOTHING, Comparison, PackedCandidate, SoFar, take_candidate
from .serving.packing import Packed
from .serving.runtime import Runtime


class InProcess(Backend):
    """The backend without workers."""

    def __init__(
        self,
        runtime: Runtime,
        feed: Feed | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`feed` gets what is counted, each second and at the end, and `ledger` knows what became of it."""
        self._is_open = False
        self._runtime = runtime
        self._feed = feed
        self._increments = Increments(runtime.telemetry)
        self._since = time.time()
        self._ledger = ledger
        self._answers = Answers(runtime)
        self._jobs: set[asyncio.Task[None]] = set()
        runtime.answer_by(self._ask, is_all=True)

    def _ask(self, question: Question) -> None:
        if question.kind not in OF_LEDGER:
            self._answers.ask(question)
            return
        task = asyncio.get_running_loop().create_task(self._ask_ledger(question))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _ask_ledger(self, question: Question) -> None:
        await self.tick()
        runtime, (service,) = self._runtime, question.content
        tally = runtime.telemetry.tally
        answer = await from_ledger(self._ledger, question.kind, service, runtime.authorizer, tally)
        question.answered(answer)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def bound(self) -> Sequence[tuple[str, str]]:
        return self._runtime.bound

    async def open(self) -> None:
        await self._runtime.start()
        self._is_open = True

    def log_to(self, decision_log: str) -> None:
        self._runtime.telemetry.log_to(decision_log or None)

    async def take(self, _packed: Packed, _loaded_at: float) -> None:
        # The runtime is this process's own and has taken the policy already.
        self._runtime.renew_certificates()

    async def set_candidate(self, candidate: PackedCandidate | None) -> None:
        await take_candidate(self._runtime, candidate)

    async def comparison(self) -> Comparison:
        changes = self._runtime.changes
        if changes is None:
            return NOTHING
        tallies, commands = changes.tallies(), dict(changes.commands)
        rehearsed = as_rows(changes.rehearsal.rows) if changes.rehearsal is not None else []
        return Comparison(commands, await answers.do(rows_of, tallies), rehearsed)

    def compared(self) -> SoFar:
        changes = self._runtime.changes
        if changes is None:
            return SoFar({}, list)
        tallies = changes.tallies()  # first: this counts commands too
        return SoFar(dict(changes.commands), functools.partial(rows_of, tallies))

    async def set_glass(self, _glass: Sequence[BreakGlass]) -> None:
        pass  # the runtime's list is the authorizer's own

    async def shut(self, why: str) -> None:
        self._runtime.shut(why)

    async def counters(self) -> Counters:
        return self._runtime.telemetry.counters

    async def tally(self) -> Tally:
        return self._runtime.telemetry.tally

    def listing(self) -> list[dict[str, Any]]:
        counters = self._runtime.telemetry.counters
        return [
            {
                "slot": 0,
                "pid": os.getpid(),
                "state": "serving" if self.is_open else "starting",
                "started": self._since,
                "revisions": {name: revision for name, (revision, _) in counters.policies.items()},
                "connections": sum(counters.connections_open.values()),
            }
        ]

    def reopen_log(self) -> None:
        self._runtime.telemetry.reopen()

    async def tick(self) -> None:
        if self._feed is not None:
            await hand_over(self._increments, self._feed)

    async def restart(self) -> int:
        raise WorkerFailed(
            "keyfence runs as one process; run it with --workers 1 or more for rolling restarts"
        )

    async def drain(self, seconds: float, at_once: asyncio.Event) -> None:
        await self._runtime.close(seconds, at_once)
        self._is_open = False
        await self.tick()
