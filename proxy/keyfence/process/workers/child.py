"""One worker, seen from its parent: start, orders, draining, end.

Rule: a worker has ended once its process is gone and all its log lines have been read. Every order that still
waits for an answer fails then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from keyfence import __version__
from keyfence.process.serving.backend import WorkerFailed
from keyfence.process.serving.spawn import start_python
from keyfence.telemetry.log_relay import LogPipe, LogRelay
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.handshake import describe

from .channel import Channel, to_pickle
from .nodes import NodeDoors, send_descriptors, signs_in
from .worker import Start

START_SECONDS = 60.0  # from the start until it serves
MARGIN_SECONDS = 3.0  # for a process to end, after its channel and after the deadline of a drain
PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, fcntl(2)


class WorkerProcess:
    """One worker, from its start to its end."""

    def __init__(
        self,
        place: int,
        relay: LogRelay,
        on_counts: Callable[[WorkerProcess, dict[str, Any]], None],
        on_question: Callable[[WorkerProcess, int, str, list[Any]], None] = lambda *_: None,
        on_sign: Callable[[Reason], None] = lambda _: None,
    ) -> None:
        """`on_question` takes a question of the worker: a number for the `answer`, a kind and the content.
        `on_sign` takes signs that the topology of the cluster has changed."""
        self.place = place
        self.pid = 0
        self.started = time.time()
        self.leaving = False  # it has the order to end
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self.gauges: dict[str, Any] = {}
        self._on_counts = on_counts
        self._on_question = on_question
        self._on_sign = on_sign
        self._is_launched = asyncio.Event()  # it can get orders, or has ended
        self._listeners: set[int] = set()  # of a cluster's nodes, by number: it has their sockets
        self._handing: socket.socket | None = None  # by which it gets further ones
        self._channel = Channel(to_pickle, json.loads, self._received, self._channel_ended)
        self._log = LogPipe(relay)
        self._orders: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: asyncio.Task[None] | None = None

    async def launch(self, start: Start) -> None:
        """Start the process and send its first order. Those that come meanwhile follow. Raises OSError."""
        try:
            await self._start(start)
        except BaseException:
            self.kill()
            self.ended.set()
            raise
        finally:
            self._is_launched.set()

    async def _start(self, start: Start) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        handing, handed = socket.socketpair()
        reading, writing = os.pipe()
        try:
            _enlarge(writing)
            own = theirs.fileno(), handed.fileno(), writing
            arguments = map(str, (*own, os.getpid(), __version__))
            sockets = [fd for one in start.sockets for fd in one.fds]
            self._process = start_python(
                "keyfence.process.workers.worker",
                *arguments,
                pass_fds=[*own, *sockets, *start.nodes.inherited],
            )
        except BaseException:
            ours.close()
            handing.close()
            os.close(reading)
            raise
        finally:
            theirs.close()
            handed.close()
            os.close(writing)
        handing.setblocking(False)
        self._handing = handing
        self._listeners = {one.number for one in start.nodes.listeners}
        self.pid = self._process.pid
        await loop.connect_read_pipe(lambda: self._log, os.fdopen(reading, "rb", 0))
        await loop.create_unix_connection(lambda: self._channel, sock=ours)
        self._channel.send((0, "start", start))

    async def tell_nodes(self, doors: NodeDoors, seconds: float) -> None:
        """Send the nodes of the cluster, with the sockets that it does not have yet. Raises WorkerFailed."""
        await self._is_launched.wait()
        order, descriptors = doors.order_for(self.place, self._listeners)
        if self._handing is None:
            raise WorkerFailed("it has ended")
        try:
            send_descriptors(self._handing, descriptors)
        except OSError as exc:
            raise WorkerFailed(f"it takes no sockets: {describe(exc)}") from None
        self._listeners = {one.number for one in order.listeners}
        await self.ask("nodes", order, seconds)

    async def ask(self, kind: str, content: object, seconds: float) -> Any:
        """Send an order, wait until it is carried out, and return its result if it has one. Raises
        WorkerFailed."""
        self._number += 1
        number = self._number
        answered = self._orders[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._is_launched.wait()
                if self.ended.is_set():
                    raise WorkerFailed("it has ended")
                self._channel.send((number, kind, content))
                return await answered
        except TimeoutError:
            raise WorkerFailed(f"it did not answer within {seconds:g} s") from None
        finally:
            self._orders.pop(number, None)

    def answer(self, number: int, answer: object) -> None:
        """Answer a question that the worker sent."""
        self._channel.send((0, "answer", (number, answer)))

    def leave(self, seconds: float) -> None:
        """Let it drain for `seconds` at most, and end."""
        self.leaving = True
        self._channel.send((0, "drain", seconds))

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def wait_ready(self) -> None:
        """Wait until it serves clients. Raises WorkerFailed."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.ready, self.ended)]
        try:
            await asyncio.wait(waits, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if self.ended.is_set():
            raise WorkerFailed(f"a worker process ended before it could serve ({self.why_ended})")
        if not self.ready.is_set():
            raise WorkerFailed(f"a worker process did not serve within {START_SECONDS:g} s")

    @property
    def why_ended(self) -> str:
        code = self.exit_code or 0
        if code == -signal.SIGALRM:
            return "its event loop stood still"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    @property
    def state(self) -> str:
        return "draining" if self.leaving else "serving" if self.ready.is_set() else "starting"

    def _received(self, message: Any) -> None:
        if "counts" in message:
            self.gauges = message["counts"].get("gauges", self.gauges)
            self._on_counts(self, message["counts"])
        if "ready" in message:
            self.ready.set()
        for reason in signs_in(message.get("signs")):
            self._on_sign(reason)
        match message.get("ask"):
            case [int(number), str(kind), *content]:
                self._on_question(self, number, kind, content)
        answered = self._orders.pop(message.get("re"), None)
        if answered is not None and not answered.done():
            if "error" in message:
                answered.set_exception(WorkerFailed(message["error"]))
            else:
                answered.set_result(message.get("result"))

    def _channel_ended(self) -> None:
        self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def _reap(self) -> None:
        """The channel ends with the process, or shortly before it."""
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + MARGIN_SECONDS
        while self._process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                self._process.kill()
            await asyncio.sleep(0.005)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._log.ended.wait(), MARGIN_SECONDS)
        self.exit_code = self._process.returncode
        if self._handing is not None:
            self._handing.close()
            self._handing = None
        for answered in self._orders.values():
            if not answered.done():
                answered.set_exception(WorkerFailed("it has ended"))
        self.ended.set()


def _enlarge(pipe: int) -> None:
    """Lines that a busy parent has not read yet wait in the pipe, and outlive the worker there."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(pipe, _SET_PIPE_SIZE, PIPE_BYTES)
