# cython: annotation_typing=False
"""Shared connections to Redis, each used by many clients.

Rule: if the order of replies is in doubt, the connection is closed, every request that waits on it fails, and
none is sent again. A request that waits for the end of an outage is not sent if its client goes, since the
client may ask again. `exchange` knows whose each reply is.

Requests of one turn of the event loop are collected and written together one turn later. So a batch of
clients costs one system call, which is the gain of sharing. A single active client's requests are written at
once. `pools` chooses a client's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol, cast

from keyfence.net.closures import CREDENTIALS
from keyfence.resp.limits import MIB
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart

from .attempt import Attempt
from .credentials.login import ACCEPTED, Login
from .exchange import Exchange, Share, Sharer
from .handshake import GreetingError, Handshake, describe, give_up
from .health import Upstream, UpstreamDown
from .names import is_at

IDLE_SECONDS = 60.0  # after which a connection without clients is closed
# Bytes that may wait for Redis on a connection, also of clients that have gone. With more, it takes none.
MAX_QUEUED = 64 * MIB
# After this many sends in a row while nothing was awaited, assume a single active client and write at once.
_ALONE = 16


class ConnectionSource(Protocol):
    """Where a link gets its connection: the pool of its kind (pools.Pool)."""

    kind: Profile
    holders: int  # links that are not closed
    is_evicted: bool  # whether links must use another source

    def connection(self, link: SharedLink) -> SharedConnection: ...

    def is_ready_for(self, connection: SharedConnection | None) -> bool: ...


class SharedLink(Share):
    """One client's share of a connection. It keeps its connection while replies are due there."""

    def __init__(self, pool: ConnectionSource, sharer: Sharer) -> None:
        super().__init__(sharer)
        self.is_timed = False  # whether `Sharer.shared_sent` is called once the next requests are written
        self._is_refused = False  # whether a refusal is about to be reported
        self._pool = pool
        self._connection: SharedConnection | None = None
        pool.holders += 1

    @property
    def kind(self) -> Profile:
        return self._pool.kind

    @property
    def is_evicted(self) -> bool:
        """Whether the pool was evicted, so that the client needs another link."""
        return self._pool.is_evicted

    @property
    def is_ready(self) -> bool:
        """Whether its next requests go to a connection that is known to be ready."""
        return self._pool.is_ready_for(self._connection)

    @property
    def is_held(self) -> bool:
        """Whether nothing of what it sent has left keyfence, as far as replies are due."""
        return self._connection is None or self._connection._transport is None

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool = False) -> None:
        """Send chunks with `counts` requests each. `shapeable`: the client's text might shape a reply."""
        connection = self._connection
        if connection is not None and connection.is_drained and not self.awaited:
            self.leave_connection()
            connection = None
        if connection is None or connection.is_closed:
            if self._is_refused:
                return
            connection = self._pool.connection(self)
            if connection.queued > MAX_QUEUED:
                connection.leave(self)
                self._is_refused = True
                asyncio.get_running_loop().call_soon(self._refuse)
                return
            self._connection = connection
            if connection.is_full and self.sharer is not None:
                self.sharer.upstream_full(self, True)
        connection.send(self, chunks, counts, shapeable)

    def _refuse(self) -> None:
        self._is_refused = False
        if self.sharer is not None:
            self.sharer.upstream_refused(self, "upstream does not keep up with what it is sent")

    def dropped(self) -> None:
        """The connection is gone or was never opened. The next request uses another one."""
        self._connection = None
        self.awaited = 0

    def close(self) -> None:
        """The client no longer uses this link. No callback comes after this."""
        if self._connection is not None:
            self.leave_connection()
        sharer, self.sharer = self.sharer, None
        if sharer is not None:
            self._pool.holders -= 1

    def leave_connection(self) -> None:
        """Use another connection from the next request on."""
        connection, self._connection = self._connection, None
        assert connection is not None
        if connection.is_full and self.sharer is not None:
            self.sharer.upstream_full(self, False)
        connection.leave(self)


class OwnReply(Sharer):
    """The reply to one request of keyfence's own. It takes its place among the clients' replies as a client's
    does, and no client gets it."""

    def __init__(self, answered: Callable[[bytes], None]) -> None:
        """`answered` gets the reply. It is not called if the connection is lost."""
        self._answered = answered
        self._reply = b""

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:  # noqa: ARG002
        self._reply += data
        if completed:
            self._answered(self._reply)

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:  # noqa: ARG002
        return data

    def shared_turn(self, link: Share) -> None:
        """It was taken in when it came."""

    def shared_lost(self, link: Share, reason: str) -> None:
        """The connection's clients are told, and the next one logs in anew."""


class SharedConnection:
    """One connection (an `asyncio.Protocol`), which carries an exchange."""

    def __init__(
        self,
        upstream: Upstream,
        profile: Profile,
        on_refused: Callable[[Profile], None] = lambda _login: None,
    ) -> None:
        """`on_refused` is called with `profile` if Redis refuses its login."""
        self.links: dict[SharedLink, None] = {}  # takes less memory than a set
        self.is_closed = False
        self.is_full = False  # whether Redis reads too slowly
        self.is_drained = False  # whether it serves only those who still await replies
        self._upstream = upstream
        self._profile = profile
        self._on_refused = on_refused
        self._exchange = Exchange(upstream.on_fault, upstream.seen)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._attempt: Attempt | None = None  # to connect, while it has no transport
        self._handshake: Handshake | None = None
        self._flush_due = False
        self._alone = 0  # how many sends in a row happened while no reply was due
        self._idle_since = self._loop.time()
        self._worked = False  # whether a request was sent since the last tick
        self.login: Login | None = None  # keyfence's, if it changes
        self.is_logging_in = False  # whether the answer to `log_in_again` is due
        self._timed: SharedLink | None = None  # the link that is told when the waiting requests are written

    # -- requests

    def send(self, link: SharedLink, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        exchange = self._exchange
        self._alone = self._alone + 1 if exchange.due is None else 0
        self._worked = True
        exchange.send(link, chunks, counts, shapeable)
        is_timed, link.is_timed = link.is_timed, False
        if not exchange.is_open:
            self.connect()
            return
        if is_timed and self._timed is None:
            self._timed = link
        if not self._flush_due:
            if self._alone > _ALONE:
                self._flush()
            else:
                self._flush_soon()

    def connect(self) -> None:
        """Open the connection, unless that has begun."""
        if self._transport is None and self._attempt is None and not self.is_closed:
            self._attempt = Attempt(self).begin(self._try_connecting)

    @property
    def is_open(self) -> bool:
        """Whether requests are written at once."""
        return self._exchange.is_open and not self.is_closed

    @property
    def is_clients(self) -> bool:
        """Whether a client's login counts there, not keyfence's."""
        return self._profile.is_logged_in

    def log_in_again(self, login: Login, answered: Callable[[bytes], None]) -> bool:
        """Send this login of keyfence's between the clients' requests; `answered` gets Redis' reply. Returns
        False if that is not possible."""
        if self.is_clients or self.is_logging_in or not self._exchange.is_open:
            return False

        def take(reply: bytes) -> None:
            self.is_logging_in = False
            if reply == ACCEPTED:
                self.login = login
            answered(reply)

        self.is_logging_in = True
        self._exchange.send(Share(OwnReply(take)), [login.request], [1], False)
        self._flush_soon()
        return True

    def login_ends(self, *, at_once: bool) -> None:
        """Have another connection take its place, because its login ends: once no reply is due, or
        `at_once`."""
        self.drain()
        if at_once and self._exchange.is_open:
            self._abandon(CREDENTIALS.because(f"upstream {self._upstream.address.shown}: the login ends"))

    def tick(self) -> bool:
        """Have the order of the requests since the last call proved. Call this about once a second.

        Returns whether there were requests since then.
        """
        worked, self._worked = self._worked, False
        self._exchange.prove()
        self._flush_soon()
        return worked

    def _flush_soon(self) -> None:
        if self._exchange.is_open and self._exchange.output and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        exchange = self._exchange
        if self._transport is not None and exchange.is_open and exchange.output:
            output, exchange.output = exchange.output, []
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))
        if self._timed is not None:
            timed, self._timed = self._timed, None
            if timed.sharer is not None:
                timed.sharer.shared_sent(timed)

    def leave(self, link: SharedLink) -> None:
        """Remove a link. Its requests stay sent, but not in an outage, and their replies will be dropped."""
        self.links.pop(link, None)
        if link.awaited and self._transport is None and self._upstream.up is False:
            self._exchange.withdraw(link)
        self._idle_since = self._loop.time()

    @property
    def queued(self) -> int:
        """The number of bytes that wait for Redis, without those of this turn."""
        return self._exchange.held if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due."""
        return self._exchange.due is None

    def drain(self) -> None:
        """Leave new requests to another connection, except those of links that still await replies here."""
        if self._exchange.is_open and not self.is_drained:
            self.is_drained = True
            self._upstream.remake()

    def close_if_idle(self, now: float) -> None:
        if self.is_drained:
            for link in [one for one in self.links if not one.awaited]:
                link.leave_connection()
        is_over = self.is_drained or now - self._idle_since > IDLE_SECONDS
        if not self.links and self.is_idle and is_over:
            self.close()

    def close(self) -> None:
        """Close without calling anyone back, because all clients are leaving."""
        self.is_closed = True
        if self._attempt is not None:
            self._attempt.give_up()
        if self._handshake is not None:
            self._handshake.stop()
            self._handshake = None
        if self._transport is not None:
            self._transport.close()

    # -- connecting

    async def _try_connecting(self, attempt: Attempt) -> None:
        try:
            await self._upstream.connect(attempt)
        except UpstreamDown as exc:
            (self._refuse if exc.is_refused else self._lose)(str(exc))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._attempt = None
        self._transport = transport
        if self.is_closed:
            transport.abort()
            return
        self.login = self._upstream.login
        commands = self._upstream.opening(self._profile.commands())
        self._handshake = Handshake(self, self._upstream.succeeded)
        asks_role = self._upstream.is_followed
        self._handshake.begin(transport, commands, self._upstream.connect_timeout, asks_role=asks_role)

    def opened(self) -> None:
        self._exchange.open()
        self._flush()

    def login_failed(self, failure: GreetingError) -> None:
        """If a client's login failed, the upstream's state does not change. If Redis has not refused it, the
        clients are closed, as Redis itself would have closed them."""
        if self._upstream.may_try_again(failure, self.login):
            self._connect_again()
            return
        if failure.refusal:
            self._on_refused(self._profile)
        if self._profile.is_logged_in:
            reason = f"upstream {self._upstream.address.shown}: {failure}"
        else:
            reason = self._upstream.login_failed(failure)
        (self._refuse if failure.refusal else self._lose)(reason)

    def move(self, reason: str, held: Collection[str] = ()) -> None:
        """Another node is the primary now. If nothing was sent yet, connect to that; otherwise give up. A
        connection to one of the `held` addresses stays."""
        if self.is_closed or (held and (self._transport is None or is_at(self._transport, held))):
            return
        if self._exchange.is_open:
            self._abandon(reason)
        elif self._transport is not None or self._attempt is not None:
            self._connect_again()

    def _connect_again(self) -> None:
        """Give up a connection on which nothing was sent, and open another one."""
        give_up(self._attempt, self._handshake, self._transport)
        self._handshake = self._transport = None
        self._attempt = Attempt(self).begin(self._try_connecting)

    # -- the end

    def _refuse(self, reason: str) -> None:
        """Refuse the waiting requests, because Redis has refused the connection. None was sent, so the
        clients stay, and the next request connects again."""
        for link in self._fail():
            if link.sharer is not None:
                link.sharer.upstream_refused(link, reason)

    def _lose(self, reason: str) -> None:
        for link in self._fail():
            if link.sharer is not None:
                link.sharer.shared_lost(link, reason)

    def _fail(self) -> list[Share]:
        """Let go of all links, and return those that wait for replies."""
        self.is_closed = True
        self._transport = self._handshake = None
        waiting = self._exchange.fail()
        self._tell_full(full=False)
        for link in self.links:
            link.dropped()
        self.links.clear()
        return waiting

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None or self.is_closed:
            return  # it was given up before
        if self._handshake is not None:
            if self._handshake.cut_short(exc):
                return
            self._upstream.dropped(describe(exc))
        self._upstream.lost()
        self._lose(f"upstream {self._upstream.address.shown} is gone: {describe(exc)}")

    def eof_received(self) -> None:
        """Do nothing: the transport then closes itself."""

    # -- replies

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        handshake = self._handshake
        if handshake is not None:
            data = handshake.take(data)
            if not handshake.is_logging_in:
                self._handshake = None
        if data:
            exchange = self._exchange
            doubt = exchange.receive(data)
            if doubt:
                self._abandon(doubt)
            elif exchange.output:
                self._flush_soon()  # a barrier that has to follow another one
            exchange.end_turn()

    def _abandon(self, reason: str) -> None:
        """Close the connection, because the owner of the next reply is unknown, or it leads to a former
        primary."""
        self._upstream.lost()
        transport = self._transport
        self._lose(reason)
        if transport is not None:
            transport.abort()

    # -- flow control

    def pause_writing(self) -> None:
        self._tell_full(full=True)

    def resume_writing(self) -> None:
        self._tell_full(full=False)

    def _tell_full(self, *, full: bool) -> None:
        if full is self.is_full:
            return
        self.is_full = full
        for link in list(self.links):
            if link.sharer is not None:
                link.sharer.upstream_full(link, full)
