# cython: annotation_typing=False
"""Shared connections to Redis, each used by many clients.

Rule: replies belong to requests in their order. Replies to a client that has gone are read and dropped. If
the order is in doubt, the connection is closed, every request that waits on it fails, and none is sent again.
A request that waits for the end of an outage is not sent if its client goes, since the client may ask again.

Barriers prove the order (`keyfence.resp.barrier`). A barrier follows every request whose reply a client's
text might shape, and such replies are held until the barrier is passed. Other replies have a fixed shape and
are delivered at once; a barrier follows each 512 of them, and the rest each second.

Requests of one turn of the event loop are collected and written together one turn later. So a batch of
clients costs one system call, which is the gain of sharing. A single active client's requests are written at
once. `pools` chooses a client's connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from keyfence.resp.barrier import LONGEST_REPLY, Barrier, Form
from keyfence.resp.limits import MIB
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart, ReplyError, ReplyFramer

from .health import Greeting, GreetingError, Upstream, UpstreamDown, describe, keep_alive

IDLE_SECONDS = 60.0  # after which a connection without clients is closed
# Bytes that may wait for Redis on a connection, also of clients that have gone. With more, it takes none.
MAX_QUEUED = 64 * MIB
# After this many sends in a row while nothing was awaited, assume a single active client and write at once.
_ALONE = 16
# A barrier follows each group of this many requests whose replies cannot be shaped.
_PROVEN_EACH = 512
# Bytes of replies held for a barrier. With more, the client that has most of them is closed.
MAX_KEPT = 16 * MIB

_PUSH = ord(">")


class Sharer:
    """The client's side, which a shared link calls back. A base class, so that compiled modules call its
    methods without looking them up by name."""

    def shared_replies(self, data: bytes, completed: int, whole: bool) -> None:
        """`data` completes `completed` replies; `whole`: it ends at the end of a reply. `shared_turn`
        follows."""
        raise NotImplementedError

    def shared_errors(self, data: bytes, errors: list[ErrorPart], at: int) -> bytes:
        """The next `data` of `shared_replies` has noted errors. It began at `at` of the bytes in which they
        were found. Returns the bytes that the client gets in its place."""
        raise NotImplementedError

    def shared_sent(self) -> None:
        """The requests were written for which `SharedLink.is_timed` was set."""
        raise NotImplementedError

    def shared_turn(self) -> None:
        """All replies received in this turn of the loop were passed on."""
        raise NotImplementedError

    def upstream_refused(self, reason: str) -> None:
        """The connection failed, and the bytes sent were dropped. The next `send` tries again."""
        raise NotImplementedError

    def shared_lost(self, reason: str) -> None:
        """The connection ended while replies to this client were due."""
        raise NotImplementedError

    def upstream_full(self, full: bool) -> None:
        """Pause sending if `full`, because Redis reads too slowly; otherwise resume."""
        raise NotImplementedError


class ConnectionSource(Protocol):
    """Where a link gets its connection: the pool of its kind (pools.Pool)."""

    kind: Profile
    holders: int  # links that are not closed
    is_evicted: bool  # whether links must use another source

    def connection(self, link: SharedLink) -> SharedConnection: ...


class SharedLink:
    """One client's share of a connection. It keeps its connection while replies are due there."""

    def __init__(self, pool: ConnectionSource, sharer: Sharer) -> None:
        self.sharer: Sharer | None = sharer
        self.awaited = 0  # the number of replies due
        self.is_notified = False  # whether replies were passed on in this turn
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
    def is_held(self) -> bool:
        """Whether nothing of what it sent has left keyfence, as far as replies are due."""
        return self._connection is None or self._connection._transport is None

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool = False) -> None:
        """Send chunks with `counts` requests each. `shapeable`: the client's text might shape a reply."""
        connection = self._connection
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
                self.sharer.upstream_full(True)
        connection.send(self, chunks, counts, shapeable)

    def _refuse(self) -> None:
        self._is_refused = False
        if self.sharer is not None:
            self.sharer.upstream_refused("upstream does not keep up with what it is sent")

    def dropped(self) -> None:
        """The connection is gone or was never opened. The next request uses another one."""
        self._connection = None
        self.awaited = 0

    def close(self) -> None:
        """The client no longer uses this link. No callback comes after this."""
        sharer, self.sharer = self.sharer, None
        if sharer is not None:
            self._pool.holders -= 1
        if self._connection is not None:
            if self._connection.is_full and sharer is not None:
                sharer.upstream_full(False)
            self._connection.leave(self)
            self._connection = None


class Due:
    """The next replies due: `count` replies to one link, or the reply to a barrier. A linked list."""

    def __init__(self, link: SharedLink | None, count: int, shapeable: bool, barrier: Barrier | None) -> None:
        self.link = link
        self.count = count
        self.shapeable = shapeable  # the replies are held until the next barrier is passed
        self.barrier = barrier
        self.behind: Due | None = None  # the replies due after these


class Kept(NamedTuple):
    """Held replies of a link: the arguments of `Sharer.shared_replies`."""

    link: SharedLink
    data: bytes
    completed: int
    whole: bool


class SharedConnection:
    """One connection (an `asyncio.Protocol`), and the replies due on it."""

    def __init__(
        self,
        upstream: Upstream,
        profile: Profile,
        on_refused: Callable[[Profile], None] = lambda _login: None,
    ) -> None:
        """`on_refused` is called with `profile` if Redis refuses its login."""
        self.links: dict[SharedLink, None] = {}  # takes less memory than a set
        self.is_closed = False
        self._upstream = upstream
        self._profile = profile
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._greeting: Greeting | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._framer = ReplyFramer()
        self._due: Due | None = None  # the first replies due
        self._due_last: Due | None = None
        self._waiting: list[bytes] = []
        self._held = 0  # bytes that wait for the connection to open
        # While it is not open: the link of each piece of `_waiting` (None: a barrier), and those that left.
        self._owners: list[SharedLink | None] = []
        self._gone: dict[SharedLink, None] = {}
        self._flush_due = False
        self._alone = 0  # how many sends in a row happened while no reply was due
        self._full = False
        self._proven = False  # whether a byte was received, which shows that a server answers there
        self._idle_since = self._loop.time()
        self._worked = False  # whether a request was sent since the last tick
        self._timed: SharedLink | None = None  # the link that is told when the waiting requests are written
        self._unproven = 0  # requests since the last barrier
        self._barrier_form = Form.ECHO
        self._barrier_reply = b""  # the part received so far
        self._keeps = False  # whether replies are held until a barrier is passed
        self._kept: list[Kept] = []
        self._kept_bytes = 0

    # -- requests

    def send(self, link: SharedLink, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        self._alone = self._alone + 1 if self._due is None else 0
        for count in counts:
            self._expect(Due(link, count, shapeable, None))
            link.awaited += count
            self._unproven += count
        self._worked = True
        if link.is_timed:
            link.is_timed = False
            if self._timed is None and self._transport is not None and self._greeting is None:
                self._timed = link
        self._waiting.extend(chunks)
        if self._transport is None or self._greeting is not None:
            self._owners.extend([link] * len(chunks))
        if shapeable or self._unproven >= _PROVEN_EACH:
            self._send_barrier()
        if self._transport is None:
            self._held += sum(map(len, chunks))
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._try_connecting())
        elif not self._flush_due and self._greeting is None:
            if self._alone > _ALONE:
                self._flush()
            else:
                self._flush_soon()

    def _expect(self, due: Due) -> None:
        if self._due_last is None:
            self._due = due
        else:
            self._due_last.behind = due
        self._due_last = due

    def _send_barrier(self) -> None:
        barrier = Barrier.draw(self._barrier_form)
        self._expect(Due(None, 1, False, barrier))
        self._waiting.append(barrier.request)
        if self._owners:
            self._owners.append(None)
        self._unproven = 0

    def tick(self) -> bool:
        """Send a barrier after the requests since the last one. Call this about once a second.

        Returns whether there were requests since the last tick.
        """
        worked, self._worked = self._worked, False
        if self._unproven and self._transport is not None and self._greeting is None:
            self._send_barrier()
            self._flush_soon()
        return worked

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is not None and self._greeting is None and self._waiting:
            waiting, self._waiting = self._waiting, []
            self._transport.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))
        if self._timed is not None:
            timed, self._timed = self._timed, None
            if timed.sharer is not None:
                timed.sharer.shared_sent()

    def leave(self, link: SharedLink) -> None:
        """Remove a link. Its requests stay sent, but not in an outage, and their replies will be dropped."""
        self.links.pop(link, None)
        if link.awaited and self._transport is None and self._upstream.up is False:
            self._gone[link] = None
        self._idle_since = self._loop.time()

    @property
    def queued(self) -> int:
        """The number of bytes that wait for Redis, without those of this turn."""
        return self._held if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_full(self) -> bool:
        """Whether Redis reads too slowly."""
        return self._full

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due."""
        return self._due is None

    def close_if_idle(self, now: float) -> None:
        if not self.links and self._due is None and now - self._idle_since > IDLE_SECONDS:
            self.close()

    def close(self) -> None:
        """Close without calling anyone back, because all clients are leaving."""
        self.is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._end_login()
        if self._transport is not None:
            self._transport.close()

    # -- connecting

    async def _try_connecting(self) -> None:
        try:
            await self._upstream.connect(self._itself)
        except UpstreamDown as exc:
            (self._refuse if exc.is_refused else self._lose)(str(exc))

    def _itself(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self)  # it has all methods that are called, without inheriting them

    def _refuse(self, reason: str) -> None:
        """Refuse the waiting requests, because Redis has refused the connection. None was sent, so the
        clients stay, and the next request connects again."""
        self.is_closed = True
        waiting = self._fail()
        for link in waiting:
            if link.sharer is not None:
                link.sharer.upstream_refused(reason)

    def _fail(self) -> list[SharedLink]:
        """Forget all replies due, and return the links that wait for them."""
        waiting: dict[SharedLink, None] = {}  # in order, without duplicates
        for one in self._kept:
            waiting[one.link] = None
        self._kept.clear()
        while self._due is not None:
            if self._due.link is not None:
                waiting[self._due.link] = None
            self._due = self._due.behind
        self._due_last = None
        self._waiting.clear()
        self._tell_full(full=False)
        for link in self.links:
            link.dropped()
        self.links.clear()
        return list(waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._connecting = None
        self._transport = transport
        if self.is_closed:
            transport.abort()
            return
        keep_alive(transport.get_extra_info("socket"))
        greeting = [*self._upstream.address.login(), *self._profile.commands()]
        if not greeting:
            self._open()
            return
        self._greeting = Greeting(len(greeting))
        transport.writelines(greeting)
        self._login_timer = self._loop.call_later(
            self._upstream.connect_timeout, self._give_up, "login timed out"
        )

    def _open(self) -> None:
        self._end_login()
        self._withdraw()
        self._flush()

    def _withdraw(self) -> None:
        """Forget what clients sent that left in the outage."""
        owned = zip(self._waiting, self._owners, strict=True)
        self._waiting = [piece for piece, link in owned if link not in self._gone]
        due, self._due, self._due_last = self._due, None, None
        while due is not None:
            behind, due.behind = due.behind, None
            if due.link not in self._gone:
                self._expect(due)
            due = behind
        self._gone.clear()
        self._owners.clear()

    def _end_login(self) -> None:
        self._greeting = None
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None

    def _give_up(self, reason: str, *, is_refused: bool = False) -> None:
        """The connection cannot be used. If a client's login failed, the upstream's state does not change. If
        Redis has not refused it, the clients are closed, as Redis itself would have closed them."""
        self._end_login()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        end = self._refuse if is_refused else self._lose
        if self._profile.is_logged_in:
            end(f"upstream {self._upstream.address.shown}: {reason}")
        else:
            self._upstream.failed(reason, is_refused=is_refused)
            end(self._upstream.state)

    # -- replies

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        if not self._proven:
            self._proven = True
            self._upstream.succeeded()
        if self._greeting is not None:
            data = self._greet(self._greeting, data)
        if data:
            notified: list[SharedLink] = []
            try:
                self._hand_out(data, notified)
            except ReplyError as exc:
                self._abandon(f"upstream sent an invalid reply: {exc}")
            for link in notified:
                link.is_notified = False
                if link.sharer is not None:
                    link.sharer.shared_turn()

    def _hand_out(self, data: bytes, notified: list[SharedLink]) -> None:
        """Pass each client its replies, and add these clients to `notified`.

        A push is dropped. No client of a shared connection has requested one, but CLIENT TRACKING … REDIRECT
        on another connection can name this one.
        """
        framer = self._framer
        raw = data
        at, size = 0, len(data)
        while at < size:
            entry = self._due
            start = at
            at = framer.advance(data, at, 1 if entry is None else entry.count, True)
            end = at
            if framer.kind == _PUSH:
                end = framer.frame_at
                if framer.at_boundary:
                    self._upstream.on_fault("push")
                if end == start:
                    continue
            if entry is None:
                self._abandon("upstream sent a reply that no request asked for")
                return
            completed = framer.completed
            if completed == entry.count:
                self._due = entry.behind
                if entry.behind is None:
                    self._due_last = None
            else:
                entry.count = entry.count - completed
            piece = data if start == 0 and end == size else raw[start:end]
            link = entry.link
            if framer.errors is not None:
                piece = self._with_errors(link, piece, start)
            if link is None:
                self._take_barrier(entry, piece, completed, notified)
                if self.is_closed:
                    return
                continue
            link.awaited -= completed
            whole = framer.at_boundary or framer.kind == _PUSH
            if entry.shapeable or self._keeps:
                self._keep(Kept(link, piece, completed, whole))
            else:
                self._deliver(link, piece, completed, whole, notified)

    def _with_errors(self, link: SharedLink | None, piece: bytes, at: int) -> bytes:
        """A part of the replies to a client has noted errors. Returns what the client gets in its place."""
        errors = self._framer.take_errors()
        if link is None or link.sharer is None:
            return piece
        return link.sharer.shared_errors(piece, errors, at)

    def _deliver(
        self, link: SharedLink, piece: bytes, completed: int, whole: bool, notified: list[SharedLink]
    ) -> None:
        """Pass a part of its replies to a client that is still there, and add the client to `notified`."""
        if link.sharer is None:
            return
        link.sharer.shared_replies(piece, completed, whole)
        if not link.is_notified:
            link.is_notified = True
            notified.append(link)

    # -- barriers

    def _take_barrier(self, entry: Due, piece: bytes, completed: int, notified: list[SharedLink]) -> None:
        """Read a part of a barrier's reply. When it is complete, deliver the held replies, or give up."""
        assert entry.barrier is not None
        reply = self._barrier_reply = self._barrier_reply + piece
        if not completed and len(reply) <= LONGEST_REPLY:
            return
        self._barrier_reply = b""
        if completed and entry.barrier.is_passed(reply):
            self._deliver_kept(notified)
        elif completed and entry.barrier.is_undecided(reply):
            self._keeps = True
            self._barrier_form = Form.HELLO
            self._send_barrier()
            self._flush_soon()
        else:
            self._upstream.on_fault("out_of_step")
            self._abandon("upstream sent replies that are out of step with the requests")

    def _keep(self, kept: Kept) -> None:
        self._keeps = True
        if kept.link.sharer is None:
            return
        self._kept.append(kept)
        self._kept_bytes += len(kept.data)
        if self._kept_bytes > MAX_KEPT:
            self._drop_largest()

    def _drop_largest(self) -> None:
        """Close the client that has most of the held replies, which need not be the one that sent last."""
        sizes: Counter[SharedLink] = Counter()
        for one in self._kept:
            sizes[one.link] += len(one.data)
        [(largest, size)] = sizes.most_common(1)
        self._kept = [one for one in self._kept if one.link is not largest]
        self._kept_bytes -= size
        if largest.sharer is not None:
            largest.sharer.shared_lost("upstream sent a reply too large for a shared connection")

    def _deliver_kept(self, notified: list[SharedLink]) -> None:
        kept, self._kept = self._kept, []
        self._keeps, self._kept_bytes = False, 0
        for link, data, completed, whole in kept:
            self._deliver(link, data, completed, whole, notified)

    def _greet(self, greeting: Greeting, data: bytes) -> bytes:
        try:
            rest = greeting.take(data)
        except GreetingError as exc:
            if exc.refusal:
                self._on_refused(self._profile)
            self._give_up(str(exc), is_refused=bool(exc.refusal))
            return b""
        if greeting.expected == 0:
            self._open()
        return rest

    def _abandon(self, reason: str) -> None:
        """Close the connection, because the owner of the next reply is unknown."""
        transport = self._transport
        self._lose(reason)
        if transport is not None:
            transport.abort()

    def _lose(self, reason: str) -> None:
        self.is_closed = True
        self._transport = None
        for link in self._fail():
            if link.sharer is not None:
                link.sharer.shared_lost(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None or self.is_closed:
            return  # it was given up before
        if self._greeting is not None:
            self._give_up(describe(exc) if exc else "it closed the connection during login")
            return
        reason = describe(exc) if exc else "it closed the connection"
        if not self._proven:
            self._upstream.dropped(reason)
        self._lose(f"upstream {self._upstream.address.shown} is gone: {reason}")

    def eof_received(self) -> None:
        """Do nothing: the transport then closes itself."""

    # -- flow control

    def pause_writing(self) -> None:
        self._tell_full(full=True)

    def resume_writing(self) -> None:
        self._tell_full(full=False)

    def _tell_full(self, *, full: bool) -> None:
        if full is self._full:
            return
        self._full = full
        for link in list(self.links):
            if link.sharer is not None:
                link.sharer.upstream_full(full)
