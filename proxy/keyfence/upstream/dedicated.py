# cython: annotation_typing=False
"""A connection to Redis that belongs to one client.

Rule: it carries one client's bytes and nobody else's, and it ends with that client. The connection is made at
the client's first request, and what is sent meanwhile waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from .health import Greeting, GreetingError, Upstream, UpstreamDown, describe, keep_alive


class Receiver:
    """Who a link works for: the client's side of the relay. A base class, so that compiled modules reach its
    methods without a look-up."""

    def upstream_data(self, data: bytes) -> None:
        """Redis sent this."""
        raise NotImplementedError

    def upstream_refused(self, reason: str) -> None:
        """No connection could be made; what was sent is dropped. Sending again tries again."""
        raise NotImplementedError

    def upstream_lost(self, reason: str) -> None:
        """The connection ended. The link is of no further use."""
        raise NotImplementedError

    def upstream_full(self, full: bool) -> None:
        """Whether sending should pause because Redis doesn't keep up."""
        raise NotImplementedError


class DedicatedLink:
    """One client's connection (an `asyncio.Protocol`).

    `send` never blocks; `pause` and `resume` stop the reading where the client doesn't keep up; `end` tells
    Redis that the client sends no more (False: it can't be told); `close` delivers what was sent and ends,
    and no callback comes after it.
    """

    def __init__(self, upstream: Upstream, receiver: Receiver, settings: Sequence[bytes] = ()) -> None:
        """`settings` are the client's own commands that are said again once the connection is made."""
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
        self._proven = False  # a byte has come: whoever listens there is more than a port

    def send(self, chunks: list[bytes]) -> None:
        if self._transport is not None and self._greeting is None:
            self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            return
        self._waiting.extend(chunks)
        if self._connecting is None and self._transport is None:
            self._connect()

    def unsent(self) -> int:
        """Bytes that wait for the connection to be made."""
        return sum(map(len, self._waiting)) if self._waiting else 0

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
            return False  # TLS ends in both directions at once
        if not self._ended and self._transport is not None and self._greeting is None:
            self._transport.write_eof()
        self._ended = True
        return True

    def close(self) -> None:
        self._receiver = None
        if self._transport is not None:
            if self._waiting:
                return  # the greeting is under way; `_open` delivers and closes
            self._transport.close()
        elif self._connecting is None:
            self._waiting.clear()

    # -- connecting

    def _connect(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._try_connecting())

    async def _try_connecting(self) -> None:
        """Also a refusal without an attempt comes from here, never from within `send`: its receiver may send
        the next request at once, and be refused again, as often as it has requests."""
        try:
            await self._upstream.connect(self._itself)
        except UpstreamDown as exc:
            self._connecting = None
            self._refused(str(exc))

    def _itself(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self)  # it has all that is called, and inherits nothing

    def _refused(self, reason: str) -> None:
        self._waiting.clear()
        if self._receiver is not None:
            self._receiver.upstream_refused(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's doesn't inherit from it
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
            # Not at once: uvloop starts to read after `connection_made`, whatever that asked for.
            asyncio.get_running_loop().call_soon(self._pause_if_asked)
        if self._receiver is None:
            self._transport.close()
        else:
            self._receiver.upstream_full(self._full)  # what waited here counted too

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
            self._receiver.upstream_data(data)

    def _greet(self, greeting: Greeting, data: bytes) -> bytes:
        try:
            rest = greeting.take(data)
        except GreetingError as exc:
            if exc.refusal and exc.unanswered < len(self._settings):
                self._give_up_client(f"it no longer takes the client's settings: {exc.refusal}")
            else:
                self._give_up(str(exc))
            return b""
        if greeting.expected == 0:
            self._open()
        return rest

    def _give_up(self, reason: str) -> None:
        """The connection stands but is of no use; as far as the client goes it was never made."""
        self._upstream.failed(reason)
        self._give_up_client(self._upstream.state)

    def _give_up_client(self, reason: str) -> None:
        """The same, where that says nothing of the upstream."""
        assert self._transport is not None
        self._end_login()
        transport, self._transport = self._transport, None
        transport.abort()
        self._refused(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return  # given up already
        if self._greeting is not None:
            self._give_up(describe(exc) if exc else "it closed the connection during login")
            return
        self._transport = None
        if self._receiver is not None:
            reason = describe(exc) if exc else "it closed the connection"
            if not self._proven and not self._ended:
                self._upstream.dropped(reason)
            self._receiver.upstream_lost(f"upstream {self._upstream.address.shown} is gone: {reason}")

    def eof_received(self) -> None:
        """Then the transport closes itself."""

    def pause_writing(self) -> None:
        self._full = True
        if self._receiver is not None:
            self._receiver.upstream_full(True)

    def resume_writing(self) -> None:
        self._full = False
        if self._receiver is not None:
            self._receiver.upstream_full(False)
