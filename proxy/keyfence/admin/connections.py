"""The connections of an admin listener: few, and bounded in time.

Rule: a connection that keeps keyfence waiting makes room for another. There are never more connections than
the listener has file descriptors for. One connection too many closes an older one: of the address that has
the most, the one that has waited longest. A request that is being carried out is never closed for another.

aiohttp parses HTTP on them. It limits neither their number nor the time for a header, a body or the reading
of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from .bounds import ARRIVING, Bounds

SHUTDOWN_TIMEOUT = 2.0  # seconds that requests in progress get when the listener stops
CONTINUE = "100-continue"  # the only value of Expect: RFC 9110, section 10.1.1
LINGERING_SECONDS = 1.0  # for the rest of a refused body, so that its sender sees the answer

_log = logging.getLogger("keyfence.admin")


class Connection(asyncio.Protocol):
    """One connection: passes data to aiohttp and watches the time."""

    def __init__(self, owner: Connections, sock: socket.socket, host: str) -> None:
        self.host = host
        self.gone = asyncio.Event()
        self.works = False  # an accepted request is being carried out
        self.turn = next(owner.turns)  # orders connections by when keyfence began to wait for them
        self._owner = owner
        self._sock: socket.socket | None = sock  # until a transport owns it
        self._http: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._in_header = True
        self._in_request = False
        self._timer: asyncio.TimerHandle | None = None
        self._expire_in(owner.bounds.times.header)

    def hand_over(self) -> socket.socket | None:
        """Give the socket to the caller; None: the connection has ended."""
        sock, self._sock = self._sock, None
        return None if self.gone.is_set() else sock

    # -- the steps of a request

    def asked(self) -> None:
        """A request's header has arrived. Its body, and the answer to a wrong token, have limits of their
        own."""
        self._in_request = True
        self._in_header = False
        self._stop_timer()

    def answered(self) -> None:
        """The answer is ready: the client must read it, and may send another request."""
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
        """Close the connection at once."""
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
        self._http = self._owner.make_http()
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
    """One listener and all its connections."""

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
        """Accept connections on these sockets until `close`."""
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_TIMEOUT,
            keepalive_timeout=self.bounds.times.answer,
            lingering_time=LINGERING_SECONDS,
            auto_decompress=False,  # a compressed body may grow a thousandfold, and no client sends one
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

    def make_http(self) -> asyncio.Protocol:
        """aiohttp's protocol for one connection."""
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    def of(self, request: web.Request) -> Connection | None:
        """The connection of a request; None if it has ended."""
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
        """The connection to close for one from the newcomer's address; None: all carry out requests."""
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
        notice(f"{self.name} room", f"{self.name} cannot accept: {why}; raise `ulimit -n`")


Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _with_known_expectations(handle: Handle) -> Handle:
    """Answer a wrong Expect header here: aiohttp fails on one that is not printable text."""

    async def handle_expected(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", CONTINUE).lower() != CONTINUE:
            return web.Response(status=417)
        return await handle(request)

    return handle_expected


def _with_a_target(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Give CONNECT without a target a URL: aiohttp parses none and fails."""

    def make_request(message: Any, *rest: Any) -> web.BaseRequest:
        if message.url is None:
            message = message._replace(path="/", url=URL("/"))
        return make(message, *rest)

    return make_request


class _Unexpected(logging.Handler):
    """aiohttp's log: invalid HTTP and closed connections are ignored, everything else is reported."""

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
