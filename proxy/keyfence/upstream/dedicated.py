# cython: annotation_typing=False
"""A dedicated connection to Redis: it belongs to one client.

Rule: a dedicated connection carries the bytes of one client only, and ends with that client. It is opened at
the client's first request; bytes sent before it is open wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from .health import Greeting, GreetingError, Upstream, UpstreamDown, describe, keep_alive

_SETINFO = b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n"


def _introduces(request: bytes) -> bool:
    """Whether a request is CLIENT SETINFO. node-redis ignores its failure: if its connection is closed then,
    it takes itself for connected, for ever. So a client that has sent nothing else may wait for Redis."""
    return request[: len(_SETINFO)].upper() == _SETINFO


class Receiver:
    """The client's side, which a link calls back. A base class, so that compiled modules call its methods
    without looking them up by name."""

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        """Redis sent `data`."""
        raise NotImplementedError

    def upstream_refused(self, link: DedicatedLink, reason: str) -> None:
        """The connection failed, and the bytes sent were dropped. The next `send` tries again."""
        raise NotImplementedError

    def upstream_lost(self, link: DedicatedLink, reason: str) -> None:
        """The connection ended. The link cannot be used any more."""
        raise NotImplementedError

    def upstream_full(self, link: DedicatedLink, full: bool) -> None:
        """Pause sending if `full`, because Redis reads too slowly; otherwise resume."""
        raise NotImplementedError


class DedicatedLink:
    """One client's connection (an `asyncio.Protocol`).

    `send` never blocks. `pause` and `resume` control reading, for clients that read too slowly. `end` tells
    Redis that the client sends no more, or returns False if that is not possible. `close` delivers the bytes
    sent, but not in an outage, and ends the connection; no callback comes after it.
    """

    def __init__(self, upstream: Upstream, receiver: Receiver, settings: Sequence[bytes] = ()) -> None:
        """`settings` are the client's own commands that are repeated when the connection opens."""
        self._upstream = upstream
        self._settings = settings
        self._receiver: Receiver | None = receiver
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        self._greeting: Greeting | None = None
        self._paused = False
        self._ended = False
        self._full = False
        self._login_timer: asyncio.TimerHandle | None = None
        self._may_wait = False  # whether the client waits for the end of an outage
        self._proven = False  # whether a byte was received, which shows that a server answers there

    def send(self, chunks: list[bytes]) -> None:
        if self._transport is not None and self._greeting is None:
            self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            return
        self._waiting.extend(chunks)
        if self._may_wait and self._connecting is not None and not all(map(_introduces, chunks)):
            self._connecting.cancel()
            self._may_wait, self._connecting = False, None
        if self._connecting is None and self._transport is None:
            self._connect()

    def unsent(self) -> int:
        """The number of bytes that wait for the connection to open."""
        return sum(map(len, self._waiting)) if self._waiting else 0

    @property
    def is_held(self) -> bool:
        """Whether nothing that was sent has left keyfence."""
        return self._transport is None

    def pause(self) -> None:
        self._paused = True
        if self._transport is not None and self._greeting is None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def end(self) -> bool:
        if self._upstream.address.kind == "tls":
            return False  # TLS closes both directions at once
        if not self._ended and self._transport is not None and self._greeting is None:
            self._transport.write_eof()
        self._ended = True
        return True

    def close(self) -> None:
        self._receiver = None
        if self._transport is not None:
            if self._waiting:
                return  # the greeting is not answered yet; `_open` delivers and closes
            self._transport.close()
        elif self._connecting is None or self._may_wait or self._upstream.up is False:
            self._waiting.clear()
            if self._connecting is not None:
                self._connecting.cancel()

    # -- connecting

    def _connect(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._try_connecting())

    async def _try_connecting(self) -> None:
        """Connect, and report a failure."""
        while True:
            try:
                await self._upstream.connect(self._itself)
                return
            except UpstreamDown as exc:
                if exc.is_refused or not all(map(_introduces, self._waiting)):
                    self._connecting = None
                    (self._refused if exc.is_refused else self._end)(str(exc))
                    return
            self._may_wait = True
            await self._upstream.can_connect()
            self._may_wait = False

    def _itself(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self)  # it has all methods that are called, without inheriting them

    def _refused(self, reason: str) -> None:
        self._waiting.clear()
        if self._receiver is not None:
            self._receiver.upstream_refused(self, reason)

    def _end(self, reason: str) -> None:
        """No connection could be made. The client is closed, as Redis itself would have closed it."""
        self._waiting.clear()
        if self._receiver is not None:
            self._receiver.upstream_lost(self, reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._connecting = None
        self._transport = transport
        keep_alive(transport.get_extra_info("socket"))
        address = self._upstream.address
        greeting = [*address.login(), *self._settings]
        if greeting:
            self._greeting = Greeting(len(greeting), logs_in_later=address.selects_later)
            transport.writelines(greeting)
            self._login_timer = asyncio.get_running_loop().call_later(
                self._upstream.connect_timeout, self._give_up, "login timed out"
            )
        else:
            self._open()

    def _open(self) -> None:
        """The connection is ready for the client's bytes."""
        assert self._transport is not None
        self._end_login()
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._transport.writelines(waiting)
        if self._ended:
            self._transport.write_eof()
        if self._paused:
            # Not at once, because uvloop starts reading after `connection_made` in any case.
            asyncio.get_running_loop().call_soon(self._pause_if_asked)
        if self._receiver is None:
            self._transport.close()
        else:
            self._receiver.upstream_full(self, self._full)  # the bytes that waited here also counted

    def _pause_if_asked(self) -> None:
        if self._paused and self._transport is not None:
            self._transport.pause_reading()

    def _end_login(self) -> None:
        self._greeting = None
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None

    # -- the connection

    def data_received(self, data: bytes) -> None:
        if not self._proven:
            self._proven = True
            self._upstream.succeeded()
        if self._greeting is not None:
            data = self._greet(self._greeting, data)
        if data and self._receiver is not None:
            self._receiver.upstream_data(self, data)

    def _greet(self, greeting: Greeting, data: bytes) -> bytes:
        try:
            rest = greeting.take(data)
        except GreetingError as exc:
            if exc.refusal and exc.unanswered < len(self._settings):
                self._give_up_client(f"it no longer takes the client's settings: {exc.refusal}")
            else:
                self._give_up(str(exc), is_refused=bool(exc.refusal))
            return b""
        if greeting.expected == 0:
            self._open()
        return rest

    def _give_up(self, reason: str, *, is_refused: bool = False) -> None:
        """The connection cannot be used. If Redis has not refused it, this is the same for the client as a
        failed connection."""
        self._upstream.failed(reason, is_refused=is_refused)
        self._abort()
        (self._refused if is_refused else self._end)(self._upstream.state)

    def _give_up_client(self, reason: str) -> None:
        """Redis refuses the client's settings, which has no consequence for the upstream's state."""
        self._abort()
        self._refused(reason)

    def _abort(self) -> None:
        assert self._transport is not None
        self._end_login()
        transport, self._transport = self._transport, None
        transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return  # it was given up before
        if self._greeting is not None:
            self._give_up(describe(exc) if exc else "it closed the connection during login")
            return
        self._transport = None
        if self._receiver is not None:
            reason = describe(exc) if exc else "it closed the connection"
            if not self._proven and not self._ended:
                self._upstream.dropped(reason)
            self._receiver.upstream_lost(self, f"upstream {self._upstream.address.shown} is gone: {reason}")

    def eof_received(self) -> None:
        """Do nothing: the transport then closes itself."""

    def pause_writing(self) -> None:
        self._full = True
        if self._receiver is not None:
            self._receiver.upstream_full(self, True)

    def resume_writing(self) -> None:
        self._full = False
        if self._receiver is not None:
            self._receiver.upstream_full(self, False)
