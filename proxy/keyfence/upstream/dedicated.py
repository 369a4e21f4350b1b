# cython: annotation_typing=False
"""A dedicated connection to Redis: it belongs to one client.

Rule: a dedicated connection carries the bytes of one client only, and ends with that client. It is opened at
the client's first request; bytes sent before it is open wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import cast

from keyfence.net.closures import OTHER
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError, ReplyFramer
from keyfence.resp.role import REPLICA, role_in

from .attempt import Attempt
from .credentials.login import Login
from .exchange import Sharer
from .handshake import ASK_ROLE, GreetingError, Handshake, describe, give_up, introduces
from .health import Upstream, UpstreamDown
from .names import is_at
from .own_commands import PING

LARGE = 1024 * 1024  # bytes
_PING = PING.request()
_PUSH = ord(">")


def _only_introduces(requests: list[bytes]) -> bool:
    """Whether all requests are CLIENT SETINFO. node-redis ignores its failure: if its connection is closed
    then, it takes itself for connected, for ever. So a client that has sent nothing else may wait for
    Redis."""
    return all(map(introduces, requests))


class Owner(Sharer):
    """The client's side, which both kinds of its links call back."""

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        """Redis sent `data`."""
        raise NotImplementedError

    def upstream_unasked(self, link: DedicatedLink, data: bytes) -> None:
        """Redis sent `data` while the client uses a shared connection."""
        raise NotImplementedError

    def upstream_lost(self, link: DedicatedLink, reason: str) -> None:
        """The connection ended. Replies due on it will not come."""
        raise NotImplementedError

    # What a link has to know of its client if it leads to several nodes.

    def current_profile(self) -> Profile:
        """What its connection must have, as far as has been confirmed."""
        raise NotImplementedError

    def listens(self) -> bool:
        """Whether messages may come at any time."""
        raise NotImplementedError

    def confirmation(self) -> object:
        """What stands for the confirmation of a subscription, if that is the next reply that it awaits."""
        raise NotImplementedError


class DedicatedLink:
    """One client's connection (an `asyncio.Protocol`).

    `send` never blocks. `pause` and `resume` control reading, for clients that read too slowly. `end` tells
    Redis that the client sends no more, or returns False if that is not possible. `close` delivers the bytes
    sent, but not in an outage, and ends the connection; no callback comes after it, nor after
    `upstream_refused` and `upstream_lost`.
    """

    def __init__(self, upstream: Upstream, owner: Owner | None, settings: Sequence[bytes] = ()) -> None:
        """`settings` are the client's own commands that are repeated when the connection opens."""
        self.is_closed = False  # whether the client needs another link
        self.is_kept = False  # whether it is idle, because the client uses a shared connection
        self.is_doubted = False  # whether it may lead to a replica by now
        self._upstream = upstream
        self._settings = settings
        self._owner: Owner | None = owner
        self._transport: asyncio.Transport | None = None
        self._attempt: Attempt | None = None  # to connect, while it has no transport
        self._waiting: list[bytes] = []
        self._handshake: Handshake | None = None
        self._is_open = False  # whether the client's bytes may be sent
        self._paused = False
        self._ended = False
        self._full = False
        self._may_wait = False  # whether the client waits for the end of an outage
        self._pongs = 0  # replies to keyfence's own requests that are still to come, before any to the client
        self._framer: ReplyFramer | None = None  # finds the ends of these replies
        self._pong = b""  # the last of these replies, as far as it has come, …
        self._answered: Callable[[bytes], None] | None = None  # … and who gets it
        self.login: Login | None = None  # keyfence's, if it changes
        self.is_logging_in = False  # whether an answer to another one is due
        self.logged_in_as: tuple[bytes, bytes] | None = None  # the client's own login, as seen last

    def send(self, chunks: list[bytes]) -> None:
        if self.is_doubted and self.is_kept:  # no reply is due, so it can be asked
            self.is_doubted = not self.ask_role()
        self.is_kept = False
        self._write(chunks)

    def _write(self, chunks: list[bytes]) -> None:
        if self._transport is not None and self._is_open:
            if len(chunks) == 1:
                self._transport.write(chunks[0])
            elif max(map(len, chunks)) > LARGE:
                self._transport.writelines(chunks)  # does not copy them, as a join does
            else:
                self._transport.write(b"".join(chunks))
            return
        self._waiting.extend(chunks)
        if self._may_wait and self._attempt is not None and not _only_introduces(chunks):
            self._attempt.give_up()
            self._may_wait, self._attempt = False, None
        if self._attempt is None and self._transport is None:
            self._attempt = Attempt(self).begin(self._try_connecting)

    def ping(self) -> bool:
        """Have Redis answer, so that its `timeout` does not close the connection. Returns False if the last
        answer is still due. No reply to the client may be due."""
        return self.ask(_PING)

    def ask_role(self) -> bool:
        """Have Redis say its role, and give up the connection if it is a replica. As `ping`."""
        return self.ask(ASK_ROLE, self._has_role)

    def _has_role(self, reply: bytes) -> None:
        if role_in(reply) == REPLICA:
            self.move(f"upstream {self._upstream.address.shown} is a replica now")

    def ask(self, request: bytes, answered: Callable[[bytes], None] | None = None) -> bool:
        """Send a request of keyfence's own; `answered` gets the reply. As `ping`."""
        if self._pongs:
            return False
        self._pongs += 1
        self._pong, self._answered = b"", answered
        self._framer = ReplyFramer()
        self._write([request])
        return True

    @property
    def is_open(self) -> bool:
        """Whether the client's bytes may be sent."""
        return self._is_open

    def unsent(self) -> int:
        """The number of bytes that wait for the connection to open."""
        return sum(map(len, self._waiting)) if self._waiting else 0

    @property
    def is_held(self) -> bool:
        """Whether nothing that was sent has left keyfence."""
        return self._transport is None

    def pause(self) -> None:
        self._paused = True
        if self._transport is not None and self._is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def end(self) -> bool:
        if self._upstream.address.kind == "tls":
            return False  # TLS closes both directions at once
        if not self._ended and self._transport is not None and self._is_open:
            self._transport.write_eof()
        self._ended = True
        return True

    def close(self) -> None:
        owner = self._let_go()
        if owner is not None and self._full:
            owner.upstream_full(self, False)
        if self._transport is not None:
            if self._waiting:
                return  # the greeting is not answered yet; `opened` delivers and closes
            self._transport.close()
        elif self._attempt is None or self._may_wait or self._upstream.up is False:
            self._waiting.clear()
            if self._attempt is not None:
                self._attempt.give_up()

    # -- connecting

    async def _try_connecting(self, attempt: Attempt) -> None:
        """Connect, and report a failure."""
        while True:
            try:
                await self._upstream.connect(attempt)
                return
            except UpstreamDown as exc:
                is_over = exc.is_refused or not self._upstream.patience or self._owner is None
                if is_over or not _only_introduces(self._waiting):
                    self._attempt = None
                    (self._refused if exc.is_refused else self._lose)(str(exc))
                    return
            self._may_wait = True
            await self._upstream.can_connect()
            self._may_wait = False

    def _refused(self, reason: str) -> None:
        self._waiting.clear()
        owner = self._let_go()
        if owner is not None:
            owner.upstream_refused(self, reason)

    def _lose(self, reason: str) -> None:
        """The client is closed, as Redis itself would have closed it."""
        self._waiting.clear()
        owner = self._let_go()
        if owner is not None:
            owner.upstream_lost(self, reason)

    def _let_go(self) -> Owner | None:
        """The link is of no more use to its client, which is returned if it is still there."""
        self.is_closed = True
        owner, self._owner = self._owner, None
        return owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._attempt = None
        self._transport = transport
        address = self._upstream.address
        self.login = self._upstream.login
        commands = [*address.login(), *self._settings]
        self._handshake = Handshake(self, self._upstream.succeeded)
        self._handshake.begin(
            transport,
            commands,
            self._upstream.connect_timeout,
            logs_in_later=address.selects_later,
            asks_role=self._upstream.is_followed,
        )

    def opened(self) -> None:
        assert self._transport is not None
        self._is_open = True
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._transport.writelines(waiting)
        if self._ended:
            self._transport.write_eof()
        if self._paused:
            # Not at once, because uvloop starts reading after `connection_made` in any case.
            asyncio.get_running_loop().call_soon(self._pause_if_asked)
        if self._owner is None:
            self._transport.close()
        else:
            self._owner.upstream_full(self, self._full)  # the bytes that waited here also counted

    def _pause_if_asked(self) -> None:
        if self._paused and self._transport is not None:
            self._transport.pause_reading()

    def move(self, reason: str, held: Collection[str] = ()) -> None:
        """Another node is the primary now. If nothing was sent yet, connect to that; otherwise give up. A
        connection to one of the `held` addresses stays."""
        if held and (self._transport is None or is_at(self._transport, held)):
            return
        if self._is_open:
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.abort()
                self._upstream.lost()
                self._lose(reason)
        elif self._transport is not None or self._attempt is not None:
            self._connect_again()

    def _connect_again(self) -> None:
        """Give up a connection on which nothing was sent, and open another one."""
        give_up(self._attempt, self._handshake, self._transport)
        self._handshake = self._transport = None
        self._may_wait = False
        self._attempt = Attempt(self).begin(self._try_connecting)

    def login_failed(self, failure: GreetingError) -> None:
        """If Redis has not refused it, this is the same for the client as a failed connection. If Redis
        refuses the client's settings, the upstream's state does not change."""
        if self._upstream.may_try_again(failure, self.login):
            self._connect_again()
            return
        self._handshake = self._transport = None
        if failure.refusal and failure.unanswered < len(self._settings):
            text = f"it no longer takes the client's settings: {failure.refusal}"
            reason: str = OTHER.because(text)
        else:
            reason = self._upstream.login_failed(failure)
        (self._refused if failure.refusal else self._lose)(reason)

    # -- the connection

    def data_received(self, data: bytes) -> None:
        handshake = self._handshake
        if handshake is not None:
            data = handshake.take(data)
            if not handshake.is_logging_in:
                self._handshake = None
        if data and self._pongs:
            data = self._without_pong(data)
        if not data or self._owner is None:
            return
        if self.is_kept:  # no reply is due here
            self._owner.upstream_unasked(self, data)
        else:
            self._owner.upstream_data(self, data)

    def _without_pong(self, data: bytes) -> bytes:
        """Remove the reply to keyfence's own request from `data`. Pushes before it are the client's."""
        framer = self._framer
        assert framer is not None
        pushes, at = b"", 0
        while self._pongs and at < len(data):
            begin = at
            try:
                at = framer.advance(data, begin, 1, True)
            except ReplyError:
                self._pongs = 0  # the session will report the error
                return data
            if framer.kind == _PUSH:
                pushes += data[begin:at]
            else:
                self._pong += data[begin:at]
                self._pongs -= framer.completed
        if not self._pongs and self._answered is not None:
            answered, self._answered = self._answered, None
            answered(self._pong)
        return pushes + data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return  # it was given up before
        handshake, self._handshake = self._handshake, None
        if handshake is not None and handshake.cut_short(exc):
            return
        self._transport, self._is_open = None, False
        if handshake is not None and self._owner is not None and not self._ended:
            self._upstream.dropped(describe(exc))
        if self._owner is not None and not self._ended:
            self._upstream.lost()
        self._lose(f"upstream {self._upstream.address.shown} is gone: {describe(exc)}")

    def eof_received(self) -> None:
        """Do nothing: the transport then closes itself."""

    def pause_writing(self) -> None:
        self._tell_full(True)

    def resume_writing(self) -> None:
        self._tell_full(False)

    def _tell_full(self, full: bool) -> None:
        self._full = full
        if self._owner is not None:
            self._owner.upstream_full(self, full)
