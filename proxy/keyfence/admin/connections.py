"""The connections of an admin listener: few, each bounded in time.

Rule: a connection that keeps keyfence waiting makes room for one that doesn't. There are never more
connections than the listener has file descriptors for. Where one comes that is too many, an older one is
closed for it: of the address that has the most, the one that has waited the longest. A request that is being
carried out is left alone.

aiohttp speaks HTTP on them. It has no limit on their number, and none on the time that a header, a body or
the reading of an answer takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL  # aiohttp's own class for addresses

from keyfence.downstream.accepting import Acceptor
from keyfence.net.addresses import Bound
from keyfence.telemetry.operator_log import notice

CONNECTIONS = 64  # of each admin listener, where there are descriptors enough
ARRIVING = 8  # those that are closed for others and those that come for them, for a moment
SHUTDOWN_TIMEOUT = 2.0  # seconds that requests in progress get when the listener stops
CONTINUE = "100-continue"  # the only thing that may be expected: RFC 9110, section 10.1.1
LINGERING_SECONDS = 1.0  # for the rest of a body that nobody wants, so that its sender sees the answer

_log = logging.getLogger("keyfence.admin")


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """What a request may take of each, in seconds."""

    header: float = 10.0  # from the connection, or from the first byte of a further request
    body: float = 10.0
    answer: float = 60.0  # to read the answer and begin another request


def _uncounted(_listener: str, _reason: str) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """What an admin listener may cost, and who counts what is over that."""

    connections: int = CONNECTIONS
    times: Times = Times()
    count: Callable[[str, str], None] = _uncounted  # takes the listener's name and the reason


DEFAULT_BOUNDS = Bounds()


class Connection(asyncio.Protocol):
    """One connection: passes on to aiohttp what comes, and watches the time."""

    def __init__(self, owner: Connections, sock: socket.socket, host: str) -> None:
        self.host = host
        self.gone = asyncio.Event()
        self.works = False  # at a request that was admitted
        self.turn = next(owner.turns)  # counts when it last began to make keyfence wait
        self._owner = owner
        self._sock: socket.socket | None = sock  # until a transport has it
        self._http: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._in_header = True
        self._in_request = False
        self._timer: asyncio.TimerHandle | None = None
        self._expire_in(owner.bounds.times.header)

    def hand_over(self) -> socket.socket | None:
        """The socket, which is the caller's from now on; None: the connection has ended."""
        sock, self._sock = self._sock, None
        return None if self.gone.is_set() else sock

    # -- a request's way

    def asked(self) -> None:
        """A request's header is there. The body has a limit of its own, and so has the answer to a wrong
        token."""
        self._in_request = True
        self._in_header = False
        self._stop_timer()

    def answered(self) -> None:
        """The answer is made: it is to be read, and another request may follow."""
        self._in_request = self.works = False
        self.turn = next(self._owner.turns)
        if not self.gone.is_set():
            self._expire_in(self._owner.bounds.times.answer)

    def _expire_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self._owner.loop.call_later(seconds, self._expired)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expired(self) -> None:
        if self._in_header:
            self._owner.refused("header_time")
        elif self._transport is not None and self._transport.get_write_buffer_size():
            self._owner.refused("answer_time")
        self.end()

    def end(self) -> None:
        """Close it now, whatever is on its way."""
        self._stop_timer()
        self._owner.forget(self)
        self.gone.set()
        if self._transport is not None:
            self._transport.abort()
        elif self._sock is not None:
            self._sock.close()

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.gone.is_set():
            self._transport.abort()
            return
        self._http = self._owner.speak()
        self._owner.by_transport[transport] = self
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._http is None:
            return
        if not self._in_request and not self._in_header:
            self._in_header = True
            self._expire_in(self._owner.bounds.times.header)
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._http is None else self._http.eof_received()

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._owner.forget(self)
        self._owner.by_transport.pop(self._transport, None)
        self.gone.set()
        if self._http is not None:
            self._http.connection_lost(exc)


class Connections:
    """All connections of one listener, and the listener itself."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name = name
        self.bounds = bounds
        self.loop = asyncio.get_running_loop()
        self.by_transport: dict[Any, Connection] = {}
        self.turns = itertools.count()
        self._all: set[Connection] = set()
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, application: web.Application, bound: Bound) -> None:
        """Take connections on these sockets from now on, until `close`."""
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_TIMEOUT,
            keepalive_timeout=self.bounds.times.answer,
            lingering_time=LINGERING_SECONDS,
            auto_decompress=False,  # nobody sends such bodies, and they may grow a thousandfold
            logger=_protocol_log(),
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._runner.server.request_handler = _with_known_expectations(self._runner.server.request_handler)
        self._runner.server.request_factory = _with_a_target(self._runner.server.request_factory)
        self._acceptor = Acceptor(bound, self._arrived, self._no_room, ARRIVING)
        self._acceptor.listen()

    async def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        for connection in list(self._all):
            connection.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def speak(self) -> asyncio.Protocol:
        """What speaks HTTP on a connection."""
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    def of(self, request: web.Request) -> Connection | None:
        """The connection of a request; None where it has gone."""
        return self.by_transport.get(request.transport)

    def refused(self, reason: str) -> None:
        self.bounds.count(self.name, reason)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)

    # -- accepting

    def _arrived(self, sock: socket.socket, peer: Any) -> None:
        host = peer[0]
        if len(self._all) >= self.bounds.connections:
            self.refused("connections")
            notice(
                f"{self.name} connections",
                f"{self.name}: more than {self.bounds.connections} connections; the oldest are closed",
            )
            last = self._dispensable(host)
            if last is None:
                sock.close()
                return
            last.end()
        connection = Connection(self, sock, host)
        self._all.add(connection)
        task = self.loop.create_task(self._connect(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _dispensable(self, newcomer: str) -> Connection | None:
        """Who makes room for one from the address of the newcomer; None: all are at work."""
        held = Counter(one.host for one in self._all)
        held[newcomer] += 1
        waiting = (one for one in self._all if not one.works)
        return max(waiting, key=lambda one: (held[one.host], -one.turn), default=None)

    async def _connect(self, connection: Connection) -> None:
        sock = connection.hand_over()
        if sock is None:
            return
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:
            connection.end()
            sock.close()

    def _no_room(self, why: str) -> None:
        notice(f"{self.name} room", f"{self.name} can't accept: {why}; raise `ulimit -n`")


Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _with_known_expectations(handle: Handle) -> Handle:
    """aiohttp looks at Expect before all else, and fails where it can't be shown as text."""

    async def handle_expected(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", CONTINUE).lower() != CONTINUE:
            return web.Response(status=417)
        return await handle(request)

    return handle_expected


def _with_a_target(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """aiohttp fails where CONNECT comes without a target: then it has parsed no URL."""

    def make_request(message: Any, *rest: Any) -> web.BaseRequest:
        if message.url is None:
            message = message._replace(path="/", url=URL("/"))
        return make(message, *rest)

    return make_request


class _Unexpected(logging.Handler):
    """What aiohttp logs: what is no HTTP and who has gone are nobody's concern, anything else is a fault."""

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        if isinstance(fault, HttpProcessingError | ConnectionError):
            return
        with contextlib.suppress(Exception):
            kind = type(fault).__name__ if fault is not None else record.levelname
            notice(f"admin http {kind}", f"an admin request failed: {record.getMessage()} ({fault!r})")


def _protocol_log() -> logging.Logger:
    log = logging.Logger("keyfence.admin.http", logging.WARNING)
    log.addHandler(_Unexpected())
    return log
