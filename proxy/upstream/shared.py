# cython: annotation_typing=False
"""Connections to Redis that many clients share.

Rule: a connection's replies belong to its requests in their order, and to nobody else. Who has gone still has
its replies taken in, and dropped; where the order can't be trusted any more the connection is closed, every
request that waits on it fails, and none is sent again.

Requests of one turn of the loop are collected and written together one turn later: a system call per batch of
clients in place of one per client is what sharing gains. Where only one client works there is nothing to wait
for.
"""

from __future__ import annotations

import asyncio
from typing import cast

from proxy.upstream.target import Greeting, GreetingError, Upstream, UpstreamDown, describe, keep_alive
from proxy.wire.limits import MIB
from proxy.wire.profile import Profile
from proxy.wire.replies import ReplyError, ReplyFramer

# kinds of connections (database, protocol, login) that are shared; who needs another has its own
MAX_POOLS = 64
IDLE_SECONDS = 60.0  # after which a connection that nobody holds is closed
# Where so many bytes wait for Redis on a connection, nobody more is let on: what those have left behind who
# have gone stays there too.
MAX_QUEUED = 64 * MIB
# So often in a row nothing may have been awaited when something was sent: then it is one client's alone that
# works, and what it sends is written at once.
_ALONE = 16

_PUSH = ord(">")


class Sharer:
    """Who a shared link works for: the client's side of the relay. A base class, so that compiled modules
    reach its methods without a look-up."""

    def shared_replies(self, data: bytes, completed: int, whole: bool) -> None:
        """These bytes end so many replies; `whole`: none is left in part. `shared_turn` follows."""
        raise NotImplementedError

    def shared_turn(self) -> None:
        """All that this turn brought has been told."""
        raise NotImplementedError

    def upstream_refused(self, reason: str) -> None:
        """No connection could be made; what was sent is dropped. Sending again tries again."""
        raise NotImplementedError

    def shared_lost(self, reason: str) -> None:
        """The connection ended with requests of this client under way."""
        raise NotImplementedError

    def upstream_full(self, full: bool) -> None:
        """Whether sending should pause because Redis doesn't keep up."""
        raise NotImplementedError


class SharedLink:
    """One client's share of a connection. It stays with one connection while anything is awaited there."""

    def __init__(self, pool: Pool, sharer: Sharer) -> None:
        self.sharer: Sharer | None = sharer
        self.awaited = 0  # replies
        self.is_told = False  # something was handed over in this turn
        self._is_refused = False  # which the client is about to be told
        self._pool = pool
        self._connection: SharedConnection | None = None
        pool.holders += 1

    @property
    def profile(self) -> Profile:
        return self._pool.profile

    def send(self, chunks: list[bytes], counts: list[int]) -> None:
        """Send pieces that hold so many requests each."""
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
        connection.send(self, chunks, counts)

    def _refuse(self) -> None:
        self._is_refused = False
        if self.sharer is not None:
            self.sharer.upstream_refused("upstream doesn't keep up with what it is sent")

    def dropped(self) -> None:
        """The connection is gone or never was: the next request takes another."""
        self._connection = None
        self.awaited = 0

    def close(self) -> None:
        """The client is gone, or has gone elsewhere. No callback comes after this."""
        sharer, self.sharer = self.sharer, None
        if sharer is not None:
            self._pool.holders -= 1
        if self._connection is not None:
            if self._connection.is_full and sharer is not None:
                sharer.upstream_full(False)
            self._connection.leave(self)
            self._connection = None


class Pool:
    """The connections of one kind."""

    def __init__(self, upstream: Upstream, profile: Profile, size: int) -> None:
        self.profile = profile
        self.holders = 0  # clients with a share of one of these connections, now or when they send next
        self._upstream = upstream
        self._size = size
        self._connections: list[SharedConnection] = []

    def connection(self, link: SharedLink) -> SharedConnection:
        """The one with the fewest clients."""
        open_ones = self._connections = [one for one in self._connections if not one.is_closed]
        if len(open_ones) < self._size:
            open_ones.append(SharedConnection(self._upstream, self.profile))
        chosen = min(open_ones, key=lambda one: len(one.links))
        chosen.links[link] = None
        return chosen

    def tick(self, now: float) -> None:
        """Close what nobody has held for a while."""
        for one in self._connections:
            one.close_if_idle(now)

    @property
    def is_empty(self) -> bool:
        return not self.holders and self.is_closed

    @property
    def is_closed(self) -> bool:
        return all(one.is_closed for one in self._connections)

    def close(self) -> None:
        for one in self._connections:
            one.close()


class Pools:
    """All shared connections of a process."""

    def __init__(self, upstream: Upstream, size: int) -> None:
        """`size`: how many connections of one kind there may be."""
        self._upstream = upstream
        self._size = size
        self._pools: dict[Profile, Pool] = {}

    def link(self, profile: Profile, sharer: Sharer) -> SharedLink | None:
        """A share of a connection of this kind; None where there are too many kinds already."""
        pool = self._pools.get(profile)
        if pool is None:
            if len(self._pools) >= MAX_POOLS:
                return None
            pool = self._pools[profile] = Pool(self._upstream, profile, self._size)
        return SharedLink(pool, sharer)

    def tick(self) -> None:
        """To be called each second or so."""
        now = asyncio.get_running_loop().time()
        for profile, pool in list(self._pools.items()):
            pool.tick(now)
            if pool.is_empty:
                del self._pools[profile]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


class Due:
    """How many replies come next for one link, and what is due behind them."""

    def __init__(self, link: SharedLink, count: int) -> None:
        self.link = link
        self.count = count
        self.behind: Due | None = None


class SharedConnection:
    """One connection (an `asyncio.Protocol`), and who waits for what on it."""

    def __init__(self, upstream: Upstream, profile: Profile) -> None:
        self.links: dict[SharedLink, None] = {}  # less memory than a set takes
        self.is_closed = False
        self._upstream = upstream
        self._profile = profile
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._greeting: Greeting | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._framer = ReplyFramer()
        self._due: Due | None = None  # first
        self._due_last: Due | None = None
        self._waiting: list[bytes] = []
        self._held = 0  # bytes that wait for the connection to be made
        self._flush_due = False
        self._alone = 0  # how often in a row nothing was awaited when something was sent
        self._full = False
        self._proven = False  # a byte has come: whoever listens there is more than a port
        self._idle_since = self._loop.time()

    # -- requests

    def send(self, link: SharedLink, chunks: list[bytes], counts: list[int]) -> None:
        self._alone = self._alone + 1 if self._due is None else 0
        for count in counts:
            due = Due(link, count)
            if self._due_last is None:
                self._due = due
            else:
                self._due_last.behind = due
            self._due_last = due
            link.awaited += count
        self._waiting.extend(chunks)
        if self._transport is None:
            self._held += sum(map(len, chunks))
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._try_connecting())
        elif not self._flush_due and self._greeting is None:
            if self._alone > _ALONE:
                self._flush()
            else:
                self._flush_due = True
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is not None and self._greeting is None and self._waiting:
            waiting, self._waiting = self._waiting, []
            self._transport.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def leave(self, link: SharedLink) -> None:
        """What was sent for it is sent; the answers will be dropped."""
        self.links.pop(link, None)
        self._idle_since = self._loop.time()

    @property
    def queued(self) -> int:
        """Bytes that wait for Redis, but for those of this turn."""
        return self._held if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_full(self) -> bool:
        """Whether Redis doesn't keep up."""
        return self._full

    def close_if_idle(self, now: float) -> None:
        if not self.links and self._due is None and now - self._idle_since > IDLE_SECONDS:
            self.close()

    def close(self) -> None:
        """Fail whatever waits, without a word to anybody: all are leaving."""
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
            self._refuse(str(exc))

    def _itself(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self)  # it has all that is called, and inherits nothing

    def _refuse(self, reason: str) -> None:
        """Nothing was sent, so the clients may stay; the next request makes another connection."""
        self.is_closed = True
        waiting = self._fail()
        for link in waiting:
            if link.sharer is not None:
                link.sharer.upstream_refused(reason)

    def _fail(self) -> list[SharedLink]:
        """Forget all that is due, and return who waits for it."""
        waiting: dict[SharedLink, None] = {}  # in their order, each once
        while self._due is not None:
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
        transport = cast(asyncio.Transport, transport)  # uvloop's doesn't inherit from it
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
        self._flush()

    def _end_login(self) -> None:
        self._greeting = None
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None

    def _give_up(self, reason: str) -> None:
        """The connection stands but can't be used. Where a client's own login failed, that says nothing of
        the upstream."""
        self._end_login()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._profile.is_logged_in:
            self._refuse(f"upstream {self._upstream.address.shown}: {reason}")
        else:
            self._upstream.failed(reason)
            self._refuse(self._upstream.state)

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
            told: list[SharedLink] = []
            try:
                self._hand_out(data, told)
            except ReplyError as exc:
                self._doubt(f"upstream sent what is no reply: {exc}")
            for link in told:
                link.is_told = False
                if link.sharer is not None:
                    link.sharer.shared_turn()

    def _hand_out(self, data: bytes, told: list[SharedLink]) -> None:
        """Give each client its replies; `told` gets who had any."""
        framer = self._framer
        raw = data
        at, size = 0, len(data)
        while at < size:
            entry = self._due
            if entry is None:
                self._doubt("upstream sent a reply that nothing asked for")
                return
            link, count = entry.link, entry.count
            start = at
            at = framer.advance(data, at, count, True)
            if framer.kind == _PUSH:
                self._doubt("upstream sent a push on a connection that is shared")
                return
            completed = framer.completed
            if completed == count:
                self._due = entry.behind
                if entry.behind is None:
                    self._due_last = None
            else:
                entry.count = count - completed
            link.awaited -= completed
            if link.sharer is not None:
                piece = data if start == 0 and at == size else raw[start:at]
                link.sharer.shared_replies(piece, completed, framer.at_boundary)
                if not link.is_told:
                    link.is_told = True
                    told.append(link)

    def _greet(self, greeting: Greeting, data: bytes) -> bytes:
        try:
            rest = greeting.take(data)
        except GreetingError as exc:
            self._give_up(str(exc))
            return b""
        if greeting.expected == 0:
            self._open()
        return rest

    def _doubt(self, reason: str) -> None:
        """Whose the next reply is can't be told any more."""
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
            return  # given up already
        if self._greeting is not None:
            self._give_up(describe(exc) if exc else "it closed the connection during login")
            return
        reason = describe(exc) if exc else "it closed the connection"
        if not self._proven:
            self._upstream.dropped(reason)
        self._lose(f"upstream {self._upstream.address.shown} is gone: {reason}")

    def eof_received(self) -> None:
        """Then the transport closes itself."""

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
