"""The parent of the workers: starts and replaces them, sends them changes, and adds up their counts.

Rule: every place has a worker that serves or starts. A worker's counts outlast it. Every worker has, or will
start with, the policy and configuration in force here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import random
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from keyfence.net.addresses import Bound
from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.process.serving.answers import from_ledger, merged_clients, stats_of
from keyfence.process.serving.backend import Backend, Feed, Ledger, WorkerFailed
from keyfence.process.serving.candidate import Comparison, PackedCandidate, SoFar
from keyfence.process.serving.packing import Packed
from keyfence.process.serving.runtime import Runtime, StartError
from keyfence.process.serving.topology_follower import TopologyFollower
from keyfence.telemetry.candidate.rehearsal import as_rows
from keyfence.telemetry.candidate.rows import Comparisons, rows_of
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.log_relay import LogRelay
from keyfence.telemetry.operator_log import Changes, elapsed, warn
from keyfence.telemetry.tally import Tally

from .child import MARGIN_SECONDS, WorkerProcess
from .nodes import NodeDoors
from .sockets import Place
from .worker import Sockets, Start

ANSWER_SECONDS = 30.0  # for an order; a slower worker is replaced
COUNT_SECONDS = 2.0  # for fresh counts; after it, older ones serve
# For what a worker's question needs of the others. It is less than the asking worker's patience, so that one
# slow worker does not leave the question without an answer.
OTHERS_SECONDS = 1.0
STEADY_SECONDS = 10.0  # a worker that lived so long did not fail at its start
FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 5.0


class Workers(Backend):
    """The backend with workers: all of them."""

    def __init__(
        self,
        places: Sequence[Place],
        runtime: Runtime,
        relay: LogRelay,
        start: Start,
        feed: Feed | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`runtime` is the parent's own; `start` is a worker's first order, without its sockets; `feed` gets
        all increments, and `ledger` knows what became of them."""
        self.closing = False
        self._places = places
        self._runtime = runtime
        self._relay = relay
        self._cluster: TopologyFollower[Any] | None = None  # that this process follows
        self._doors: NodeDoors | None = None
        self._start = start
        self._feed = feed
        self._ledger = ledger
        self._workers: list[WorkerProcess] = []
        self._total = Counters()  # of all workers, ended ones included, without gauges
        self._tally = Tally()
        self._comparisons = Comparisons(0)  # of the candidate policy
        self._rolling = asyncio.Lock()
        self._refreshing = asyncio.Lock()
        self._refreshes_begun = 0
        self._jobs: set[asyncio.Task[None]] = set()
        self._backoff = [0.0] * len(places)
        self._changes = [Changes() for _ in places]

    def follow(self, cluster: TopologyFollower[Any], doors: NodeDoors) -> None:
        """Have the workers serve the nodes of a cluster. Call it before `open`."""
        self._cluster, self._doors = cluster, doors
        doors.publish = self._tell_nodes

    def _tell_nodes(self) -> None:
        for worker in self._workers:
            if not worker.leaving:  # a worker that drains opens no listeners
                self._do(self._tell_nodes_to(worker))

    async def _tell_nodes_to(self, worker: WorkerProcess) -> None:
        assert self._doors is not None
        await self._carry_out(worker, worker.tell_nodes(self._doors, ANSWER_SECONDS))

    @property
    def bound(self) -> list[tuple[str, str]]:
        return [
            (bound.name, model.service)
            for bound, model in zip(self._places[0], self._runtime.settings.listeners, strict=True)
        ]

    @property
    def is_open(self) -> bool:
        return any(worker.state == "serving" for worker in self._workers)

    async def open(self) -> None:
        """Start all workers and wait until all of them serve. Raises StartError."""
        try:
            workers = [await self._launch(place) for place in range(len(self._places))]
            await asyncio.gather(*(worker.wait_ready() for worker in workers))
        except (WorkerFailed, OSError) as exc:
            self.closing = True
            raise StartError(str(exc)) from None

    async def _launch(self, place: int) -> WorkerProcess:
        if self.closing:
            raise WorkerFailed("keyfence ends")
        on_sign = self._cluster.noticed if self._cluster is not None else lambda _: None
        worker = WorkerProcess(place, self._relay, self._take_counts, self._take_question, on_sign)
        sockets = [Sockets(one.name, _fds(one)) for one in self._places[place]]
        start = dataclasses.replace(self._start, sockets=tuple(sockets))
        if self._doors is not None:
            nodes, descriptors = self._doors.order_for(place, ())
            start = dataclasses.replace(start, nodes=dataclasses.replace(nodes, inherited=tuple(descriptors)))
        self._workers.append(worker)
        try:
            await worker.launch(start)
        except BaseException:
            self._workers.remove(worker)
            raise
        self._do(self._supervise(worker))
        return worker

    def _do(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _supervise(self, worker: WorkerProcess) -> None:
        """Replace a worker that ends without an order."""
        await worker.ended.wait()
        self._workers.remove(worker)
        has_successor = any(one.place == worker.place and not one.leaving for one in self._workers)
        if worker.leaving or self.closing or has_successor:
            return
        self._runtime.telemetry.counters.worker_restarts += 1
        wait = self._next_wait(worker)
        gone = time.monotonic()
        self._changes[worker.place].add(
            f"worker {worker.pid} has ended ({worker.why_ended}); another takes its place"
        )
        while not self.closing:
            await asyncio.sleep(wait)
            if self.closing:
                return
            try:
                successor = await self._launch(worker.place)
            except OSError as exc:
                self._changes[worker.place].add(
                    f"no worker can be started: {(exc.strerror or str(exc)).lower()}"
                )
                wait = self._next_wait(worker)
                continue
            await self._report_successor(successor, worker, gone)
            return

    async def _report_successor(self, successor: WorkerProcess, worker: WorkerProcess, gone: float) -> None:
        with contextlib.suppress(WorkerFailed):  # its own `_supervise` reports its end
            await successor.wait_ready()
            took = elapsed(time.monotonic() - gone)
            self._changes[worker.place].add(
                f"worker {successor.pid} serves in place of {worker.pid} after {took}"
            )

    def _next_wait(self, worker: WorkerProcess) -> float:
        """Seconds until a place gets its next worker: 0, or more if its workers fail again and again."""
        if time.time() - worker.started > STEADY_SECONDS:
            self._backoff[worker.place] = 0.0
            return 0.0
        backoff = min(max(self._backoff[worker.place] * 2, FIRST_BACKOFF), LONGEST_BACKOFF)
        self._backoff[worker.place] = backoff
        return backoff * random.uniform(0.5, 1.0)

    # -- what is in force

    async def take(self, packed: Packed, loaded_at: float) -> None:
        """Put a policy and its configuration in force in all workers."""
        upstream = packed.settings.upstream or self._start.upstream
        self._start = dataclasses.replace(self._start, packed=packed, loaded_at=loaded_at, upstream=upstream)
        await self._order_all("take", (packed, loaded_at))

    async def set_candidate(self, candidate: PackedCandidate | None) -> None:
        self._start = dataclasses.replace(self._start, candidate=candidate)
        self._comparisons = Comparisons(0 if candidate is None else candidate.number)
        await self._order_all("candidate", candidate)

    async def comparison(self) -> Comparison:
        await self._refresh()
        found = self._comparisons
        return Comparison(dict(found.commands), rows_of(found.tallies()), as_rows(found.rehearsal.rows))

    def compared(self) -> SoFar:
        found = self._comparisons
        return SoFar(dict(found.commands), functools.partial(rows_of, dict(found.tallies())))

    async def set_glass(self, glass: Sequence[BreakGlass]) -> None:
        self._start = dataclasses.replace(self._start, glass=tuple(glass))
        await self._order_all("glass", list(glass))

    async def shut(self, why: str) -> None:
        self._start = dataclasses.replace(self._start, shut=why)
        await self._order_all("shut", why)

    async def _order_all(self, kind: str, content: object) -> None:
        """Send an order to all workers, also to those that drain: their clients may stay for long. A worker
        that fails is killed; its successor starts with the new state."""
        await asyncio.gather(*(self._order(worker, kind, content) for worker in list(self._workers)))

    async def _order(self, worker: WorkerProcess, kind: str, content: object) -> None:
        await self._carry_out(worker, worker.ask(kind, content, ANSWER_SECONDS))

    async def _carry_out(self, worker: WorkerProcess, order: Coroutine[Any, Any, Any]) -> None:
        try:
            await order
        except WorkerFailed as exc:
            if not worker.ended.is_set():
                warn(f"worker {worker.pid} did not carry out an order: {exc}")
                worker.kill()

    # -- questions of workers

    def _take_question(self, worker: WorkerProcess, number: int, kind: str, content: list[Any]) -> None:
        self._do(self._answer(worker, number, kind, content))

    async def _answer(self, asking: WorkerProcess, number: int, kind: str, content: list[Any]) -> None:
        answer: object = None
        match kind, content:
            case "whose", [str(), str(), int()]:
                others = [one for one in self._workers if one is not asking]
                answer = any(one is True for one in await self._ask(others, kind, content))
            case "clients", [str(service)]:
                answers = await self._ask(self._workers, kind, content)
                answer = merged_clients((one for one in answers if isinstance(one, dict)), service)
            case "findings" | "readiness", [str(service)]:
                await self._counts_since_now()
                authorizer = self._runtime.authorizer
                answer = await from_ledger(self._ledger, kind, service, authorizer, self._tally)
            case "stats", [str(service)]:
                await self._counts_since_now()
                answer = stats_of([self._total, self._runtime.telemetry.counters], service)
        asking.answer(number, answer)

    async def _ask(self, workers: Iterable[WorkerProcess], kind: str, content: list[Any]) -> list[object]:
        """The answers of these workers. A worker that is too slow gives an exception."""
        asked = (one.ask("ask", (kind, content), OTHERS_SECONDS) for one in workers if one.ready.is_set())
        return list(await asyncio.gather(*asked, return_exceptions=True))

    async def _counts_since_now(self) -> None:
        """Refresh the counts, so that they hold everything that was counted before this call. Calls that wait
        together share one refresh."""
        called = self._refreshes_begun
        async with self._refreshing:
            if self._refreshes_begun == called:
                self._refreshes_begun += 1
                await self._refresh(OTHERS_SECONDS)

    # -- counts

    def _take_counts(self, _worker: WorkerProcess, counts: dict[str, Any]) -> None:
        """Take increments of a worker, or a part of them."""
        if "counters" in counts:
            # The log relay counts written lines, in the parent's own counters.
            self._total.absorb(counts["counters"] | {"log_lines": 0}, live=False)
            now = time.time()
            errors = ((word, now) for word, _ in counts["counters"]["upstream_errors"])
            for word, at in (*errors, *counts["shown"]):
                # Of a cluster, the workers tell themselves what they notice (`Signs`).
                for one in self._runtime.upstreams if self._cluster is None else ():
                    one.upstream.seen(word, at)
        self._tally.absorb(counts.get("tally", ()))
        if counts.get("candidate") is not None:
            self._comparisons.absorb(counts["candidate"])
        if self._feed is not None:
            self._feed(counts)

    async def _refresh(self, seconds: float = COUNT_SECONDS) -> None:
        asked = [worker.ask("count", None, seconds) for worker in self._workers if worker.state == "serving"]
        await asyncio.gather(*asked, return_exceptions=True)

    async def counters(self) -> Counters:
        """The sum of all workers and of this process."""
        await self._refresh()
        union = Counters()
        union.absorb(self._runtime.telemetry.counters.snapshot())
        union.absorb(self._total.snapshot(), live=False)
        for worker in self._workers:
            if worker.gauges:
                union.absorb_gauges(worker.gauges)
        union.workers = sum(worker.state == "serving" for worker in self._workers)
        return union

    async def tally(self) -> Tally:
        await self._refresh()
        return self._tally

    def listing(self) -> list[dict[str, Any]]:
        return [
            {
                "slot": worker.place,
                "pid": worker.pid,
                "state": worker.state,
                "started": worker.started,
                "revisions": {name: revision for name, revision, _ in worker.gauges.get("policies", ())},
                "connections": sum(row[-1] for row in worker.gauges.get("connections_open", ())),
            }
            for worker in self._workers
        ]

    # -- log

    def log_to(self, decision_log: str) -> None:
        self._relay.write_to(decision_log)

    def reopen_log(self) -> None:
        self._relay.reopen()

    async def tick(self) -> None:
        self._relay.flush()
        for changes in self._changes:
            changes.tick()

    # -- restart and end

    async def restart(self) -> int:
        """Replace the workers one by one. On WorkerFailed, the workers not yet replaced stay.

        The new worker serves before the old one drains, on the same sockets.
        """
        if self._rolling.locked():
            raise WorkerFailed("a rolling restart is under way already")
        async with self._rolling:
            for place in range(len(self._places)):
                await self._replace(place)
        return len(self._places)

    async def _replace(self, place: int) -> None:
        old = [worker for worker in self._workers if worker.place == place]
        new = await self._launch(place)
        try:
            await new.wait_ready()
        except WorkerFailed:
            # If all have ended, the place needs another one.
            new.leaving = not all(worker.ended.is_set() for worker in old)
            new.kill()
            raise
        await asyncio.gather(*(self._dismiss(worker, self._runtime.settings.drain) for worker in old))

    async def _dismiss(self, worker: WorkerProcess, seconds: float) -> None:
        worker.leave(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds + MARGIN_SECONDS):
                await worker.ended.wait()
        worker.kill()

    async def drain(self, seconds: float, at_once: asyncio.Event) -> None:
        """End all workers, within `seconds` or as soon as `at_once` is set."""
        self.closing = True
        self._close_sockets()  # or connections would wait here after the workers have closed theirs
        workers = list(self._workers)
        going: asyncio.Future[Any] = asyncio.gather(*(self._dismiss(worker, seconds) for worker in workers))
        hurry: asyncio.Future[Any] = asyncio.ensure_future(at_once.wait())
        await asyncio.wait([going, hurry], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (going, hurry):
            waiting.cancel()
        await asyncio.gather(going, hurry, return_exceptions=True)
        await self.kill()

    async def kill(self) -> None:
        """End the remaining workers at once, and close the sockets."""
        self.closing = True
        for worker in list(self._workers):
            worker.kill()
        for worker in list(self._workers):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.ended.wait(), MARGIN_SECONDS)
        for job in list(self._jobs):
            job.cancel()
        self._close_sockets()
        self._relay.close()

    def _close_sockets(self) -> None:
        for place in self._places:
            for bound in place:
                bound.close()
        if self._doors is not None:
            self._doors.close_all()


def _fds(bound: Bound) -> tuple[int, ...]:
    return tuple(sock.fileno() for sock in bound.sockets)
