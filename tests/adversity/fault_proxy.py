"""A TCP proxy that injects the faults of networks and dying servers.

Rule: a fault is a value. It applies to all connections from the moment it is set until another one is set.
Without a fault, every byte passes. The proxy has its own thread and event loop, so that tests may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Literal, Self

CHUNK = 64 * 1024
Writer = asyncio.StreamWriter


@dataclasses.dataclass(frozen=True)
class Direction:
    """The faults on the bytes of one direction."""

    delay: float = 0.0  # seconds that each chunk waits
    cut_after: int | None = None  # after this number of bytes the connection ends in both directions
    reset: bool = False  # it ends with RST in place of FIN
    garble: Callable[[bytes], bytes] | None = None  # makes other bytes of each chunk
    one_byte: bool = False  # each byte in a segment of its own
    hang: bool = False  # no byte is taken in any more


@dataclasses.dataclass(frozen=True)
class Faults:
    """The faults of the proxy."""

    # For a new connection: pass it on, accept and ignore it, reset it, or answer it without the target.
    accept: Literal["pass", "silent", "reset", "answer"] = "pass"
    answer: bytes = b""  # for `answer`: to each chunk that comes
    to_target: Direction = Direction()
    to_client: Direction = Direction()


NONE = Faults()


class FaultProxy:
    """Listens on a loopback port, and passes connections on to `target`, a port on the same machine.

    `faults` may be set at any time. `accepted` are the times, as of `time.monotonic`, of each connection.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.faults = NONE
        self.accepted: list[float] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[Writer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.come_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def connections(self) -> int:
        """The number of open connections to clients."""
        return len(self._open)

    @contextlib.contextmanager
    def doing(self, **faults: Any) -> Iterator[None]:
        """Sets these faults within the block, and none after it."""
        self.faults = Faults(**faults)
        try:
            yield
        finally:
            self.faults = NONE

    def refuse(self) -> None:
        """Stops listening, so that new connections are refused. Open connections stay."""
        self._do(self._stop_listening())

    def come_back(self) -> None:
        """Listens again, on the same port."""
        self._do(self._listen())

    def cut(self, *, reset: bool = False) -> None:
        """Ends the open connections."""
        self._do(self._cut(reset))

    def go_away(self) -> None:
        """Acts like a dying server: ends open connections and refuses new ones."""
        self.refuse()
        self.cut(reset=True)

    # -- in the loop

    def _do(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(30)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self.port, backlog=4096, limit=CHUNK
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            # What was accepted in this turn gets its transport in the next; Python before 3.12 loses it, its
            # socket left open, where the server is closed between.
            for one in self._server.sockets:
                self._loop.remove_reader(one.fileno())
            await asyncio.sleep(0)
            self._server.close()
            self._server = None

    async def _cut(self, reset: bool) -> None:
        for writer in list(self._open):
            _end(writer, reset)

    async def _end(self) -> None:
        await self._stop_listening()
        await self._cut(reset=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        self.accepted.append(time.monotonic())
        try:
            await self._play(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._open.discard(writer)
            writer.transport.abort()

    async def _play(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        kind = self.faults.accept
        if kind == "reset":
            _end(writer, reset=True)
        elif kind == "silent":
            await asyncio.Event().wait()
        elif kind == "answer":
            while await reader.read(CHUNK):
                writer.write(self.faults.answer)
        else:
            await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        from_target, to_target = await asyncio.open_connection("127.0.0.1", self.target, limit=CHUNK)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, to_target, writer, lambda: self.faults.to_target))
                both.create_task(self._pump(from_target, writer, to_target, lambda: self.faults.to_client))
        except* (OSError, EOFError):
            pass
        finally:
            to_target.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: Writer, other: Writer, faults_now: Callable[[], Direction]
    ) -> None:
        passed = 0
        while True:
            while faults_now().hang:
                await asyncio.sleep(0.005)
            data = await reader.read(CHUNK)
            if not data:
                writer.write_eof()
                return
            while faults_now().hang:
                await asyncio.sleep(0.005)
            way = faults_now()
            if way.delay:
                await asyncio.sleep(way.delay)
            if way.garble is not None:
                data = way.garble(data)
            is_cut = way.cut_after is not None and passed + len(data) >= way.cut_after
            if is_cut:
                assert way.cut_after is not None
                data = data[: max(0, way.cut_after - passed)]
            await _write(writer, data, way.one_byte)
            passed += len(data)
            if is_cut:
                _end(writer, way.reset)
                _end(other, way.reset)
                raise EOFError


async def _write(writer: Writer, data: bytes, one_byte: bool) -> None:
    if not one_byte:
        writer.write(data)
        await writer.drain()
        return
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0)


def _end(writer: Writer, reset: bool) -> None:
    """Ends a connection: with RST, or after all written bytes are sent."""
    if reset:
        sock = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


@contextlib.contextmanager
def unanswered_port() -> Iterator[int]:
    """A loopback port that never answers a connect: its queue is full, and nothing accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.3)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]
