"""A worker: a process that serves clients on the orders of its parent.

Rule: it compiles no policy, binds no address and opens no log file. It ends with its parent, and sends all
its counts and log lines before it ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import signal
import socket
import sys
from typing import Any, NamedTuple

from keyfence import __version__
from keyfence.config.settings import Settings
from keyfence.net.addresses import Bound
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.process.serving.answers import Answers
from keyfence.process.serving.backend import hand_over
from keyfence.process.serving.candidate import PackedCandidate, take_at_start, take_candidate
from keyfence.process.serving.cluster import ClusterNodes
from keyfence.process.serving.command_recorder import Recorder
from keyfence.process.serving.jobs import background, run_loop
from keyfence.process.serving.packing import Packed, unpack, unpack_beside
from keyfence.process.serving.runtime import Runtime, StartError, telemetry_of
from keyfence.process.serving.single import OneAddress
from keyfence.process.serving.spawn import admit_signals, end_with_parent
from keyfence.process.serving.topology_follower import TopologyFollower
from keyfence.session.conversation.owner_questions import Question
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.operator_log import warn
from keyfence.upstream.address import UpstreamAddress

from .asking_parent import OF_ALL, Questions
from .channel import Channel, to_json
from .nodes import NO_NODES, GivenDoors, Nodes, Signs

COUNT_INTERVAL = 1.0  # seconds between two increments
# A worker whose event loop stands still for this long ends itself, and is replaced.
STUCK_SECONDS = 60.0


class Sockets(NamedTuple):
    """The inherited sockets of one listener."""

    name: str
    fds: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A worker's first order."""

    packed: Packed
    loaded_at: float  # Unix seconds
    upstream: UpstreamAddress
    sockets: tuple[Sockets, ...]  # one for each listener of the settings
    glass: tuple[BreakGlass, ...] = ()
    candidate: PackedCandidate | None = None
    shut: str = ""  # why all clients are refused; "": they are served
    nodes: Nodes = NO_NODES


class Worker:
    """Carries out its parent's orders in sequence: (number, kind, content), see `_carry_out`."""

    def __init__(self, control: socket.socket, handed: socket.socket, log: int) -> None:
        """`handed`: where sockets of a cluster's nodes come from."""
        self._control = control
        self._doors = GivenDoors(handed)
        self._cluster: TopologyFollower[Any] | None = None  # which the parent follows
        self._log = log
        self._channel = Channel(to_json, pickle.loads, self._take_order, self._channel_ended)
        self._alone = asyncio.Event()
        self._orders: asyncio.Queue[tuple[int, str, Any]] = asyncio.Queue()
        self._questions = Questions(self._channel.send)
        self._answers: Answers | None = None  # once it serves
        self._drain = asyncio.Event()
        self._drain_seconds: float | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            # They reach the whole process group; the parent handles them.
            signal.signal(number, signal.SIG_IGN)
        admit_signals()
        await loop.create_unix_connection(lambda: self._channel, sock=self._control)
        _, _, start = await self._orders.get()
        await self._serve(start)

    def drain(self) -> None:
        """After SIGTERM, or if the parent is gone: drain with the configured time, and end."""
        self._drain.set()

    def _channel_ended(self) -> None:
        self._alone.set()
        self.drain()

    def _take_order(self, order: tuple[int, str, Any]) -> None:
        """Take an order. Three kinds are carried out at once: `drain`; `ask`, a question of another worker
        (kind, content); and `answer` (number, answer) to a question of this worker."""
        number, kind, content = order
        if kind == "drain":
            self._drain_seconds = content
            self._drain.set()
        elif kind == "ask":
            answer = None if self._answers is None else self._answers.answer(*content)
            self._channel.send({"re": number, "result": answer})
        elif kind == "answer":
            self._questions.answered(*content)
        else:
            self._orders.put_nowait(order)

    async def _serve(self, start: Start) -> None:
        settings = start.packed.settings
        telemetry = telemetry_of(settings, self._log_of(settings))
        recorder = telemetry.recorder = Recorder(settings.record) if settings.record else None
        self._increments = Increments(telemetry)
        policy = unpack(start.packed)
        runtime = Runtime(settings, policy, telemetry, loaded_at=start.loaded_at, quiet=True)
        runtime.glass[:] = start.glass
        if start.candidate is not None:
            take_at_start(runtime, start.candidate)
        served = await runtime.reach_upstream(start.upstream)
        signs = Signs(self._channel.send)
        if settings.announce is not None:
            self._cluster = ClusterNodes(runtime, served, settings.announce, self._doors, signs.noticed)
        elif settings.expose is not None:
            self._cluster = OneAddress(runtime, served, self._doors, signs.noticed)
        runtime.serve(served, [_inherited(one) for one in start.sockets])
        runtime.shut(start.shut)
        self._answers = answers = Answers(runtime)

        def ask(question: Question) -> None:
            (self._questions if question.kind in OF_ALL else answers).ask(question)

        runtime.answer_by(ask, is_all=False)
        chores = [*runtime.chores(), self._obey(runtime), self._count_forever()]
        if self._cluster is not None:
            await self._cluster.take(*self._doors.take(start.nodes))
            chores.append(self._cluster.keep_forever())
        async with background(*chores):
            await runtime.start()
            self._channel.send({"ready": True, "counts": self._increments.take()})
            await self._drain.wait()
            seconds = self._drain_seconds
            await runtime.close(runtime.settings.drain if seconds is None else seconds)
        telemetry.close()
        if recorder is not None:
            recorder.close()
        self._channel.send({"counts": self._increments.take()})
        self._channel.close()
        await self._alone.wait()

    def _log_of(self, settings: Settings) -> int | None:
        return self._log if settings.decision_log else None

    async def _count_forever(self) -> None:
        while True:
            # SIGALRM ends a process without a handler for it.
            signal.setitimer(signal.ITIMER_REAL, STUCK_SECONDS)
            if not self._channel.is_full:
                await hand_over(self._increments, self._send_counts)
            await asyncio.sleep(COUNT_INTERVAL)

    async def _obey(self, runtime: Runtime) -> None:
        while True:
            number, kind, content = await self._orders.get()
            answer: dict[str, Any] = {"re": number}
            try:
                await self._carry_out(kind, content, runtime)
            except Exception as exc:
                answer["error"] = f"{type(exc).__name__}: {exc}"
            await hand_over(self._increments, self._send_counts)
            self._channel.send(answer)

    def _send_counts(self, part: dict[str, Any]) -> None:
        self._channel.send({"counts": part})

    async def _carry_out(self, kind: str, content: Any, runtime: Runtime) -> None:
        """`count`: only the counts that precede every answer; `glass`: the break-glasses from now on;
        `candidate`: the policy to compare with the one in force (PackedCandidate), or None; `nodes`: the
        nodes of the cluster (Nodes); `shut`: why all clients are refused, or ""; `take`: a policy and its
        configuration (Packed, Unix seconds)."""
        if kind == "glass":
            runtime.glass[:] = content
        elif kind == "shut":
            runtime.shut(content)
        elif kind == "candidate":
            await take_candidate(runtime, content)
        elif kind == "nodes":
            assert self._cluster is not None
            await self._cluster.take(*self._doors.take(content))
        elif kind == "take":
            packed, loaded_at = content
            policy = await unpack_beside(packed)
            settings = packed.settings
            if bool(settings.decision_log) != bool(runtime.settings.decision_log):
                runtime.telemetry.log_to(self._log_of(settings))
            runtime.take(settings, policy, loaded_at)
            runtime.renew_certificates()


def _inherited(sockets: Sockets) -> Bound:
    return Bound(sockets.name, [socket.socket(fileno=fd) for fd in sockets.fds])


def main() -> None:
    """Arguments: the descriptors of channel, handed sockets and log, the parent's process id, its version."""
    control, handed, log, parent = map(int, sys.argv[1:5])
    end_with_parent(parent)
    if sys.argv[5] != __version__:
        warn(f"keyfence {sys.argv[5]} cannot start a worker of {__version__}: restart keyfence completely")
        sys.exit(1)
    sock, doors = socket.socket(fileno=control), socket.socket(fileno=handed)
    doors.setblocking(False)
    signal.setitimer(signal.ITIMER_REAL, STUCK_SECONDS)
    try:
        run_loop(lambda: Worker(sock, doors, log).run())
    except (StartError, FileError, OSError) as exc:
        warn(f"a worker cannot start: {exc}")
        os._exit(1)
    os._exit(0)  # a normal exit would wait for threads that resolve names
