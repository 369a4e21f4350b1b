"""The pools of shared connections, one for each kind of connection.

Rule: a kind is a database, a protocol version and a user, with any password. If there are too many kinds, the
one least recently used is evicted, but never one on which a reply is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from keyfence.resp.profile import Profile

from .exchange import Sharer
from .health import Upstream
from .shared import SharedConnection, SharedLink

# The number of kinds. A client that needs another kind gets a dedicated connection.
MAX_POOLS = 64
MAX_LOGINS = 4  # passwords kept for one user


class Pool:
    """The shared connections of one kind."""

    def __init__(
        self, upstream: Upstream, profile: Profile, size: int, ready: list[SharedConnection] | None = None
    ) -> None:
        """`ready`: see below."""
        self.kind = profile.kind
        self.holders = 0  # clients with a link to this pool
        self.used_at = 0.0  # when a request was sent last, as seen by `tick`
        self.is_evicted = False  # whether its clients must request another link
        self._upstream = upstream
        self._size = size
        self.connections: list[SharedConnection] = []
        # The only connections that links get. None: any, and one is opened for requests that need it.
        self.ready = ready
        # Credentials that Redis has accepted from clients, the newest last. Several are kept, because each
        # may have become invalid since.
        self._logins: dict[Profile, None] = {}
        self._known_last: Profile | None = None

    def knows(self, profile: Profile) -> None:
        """Record credentials that Redis has accepted from a client."""
        if profile is self._known_last:
            return  # as for most clients
        login, self._known_last = profile.pool, profile
        self._logins.pop(login, None)
        self._logins[login] = None
        if len(self._logins) > MAX_LOGINS:
            del self._logins[next(iter(self._logins))]

    def refused(self, login: Profile) -> None:
        """Forget a password that Redis has refused. The last one is kept, because there is no other to
        try."""
        if len(self._logins) > 1:
            self._logins.pop(login, None)
            self._known_last = None

    def connection(self, link: SharedLink) -> SharedConnection:
        """The connection with the fewest clients. Opens a new one below the pool's size."""
        used = self._used() if self.ready is None else self._ready_ones()
        chosen = min(used, key=lambda one: len(one.links))
        chosen.links[link] = None
        return chosen

    def _used(self) -> list[SharedConnection]:
        """The connections that take new clients. Adds one below the pool's size."""
        open_ones = self.connections = [one for one in self.connections if not one.is_closed]
        used = [one for one in open_ones if not one.is_drained]
        if len(used) < self._size:
            used.append(SharedConnection(self._upstream, next(reversed(self._logins)), self.refused))
            open_ones.append(used[-1])
        return used

    def _ready_ones(self) -> list[SharedConnection]:
        return [one for one in self.ready or () if not one.is_closed and not one.is_drained]

    def is_ready_for(self, connection: SharedConnection | None) -> bool:
        """Whether the next request of a link goes to a connection that is ready. The link has this one."""
        ready = self._ready_ones()
        return bool(ready) if connection is None or connection.is_drained else connection in ready

    def tick(self, now: float) -> None:
        """Send barriers for recent requests, and close connections that have been idle for a while."""
        for one in self.connections:
            if one.tick():
                self.used_at = now
            one.close_if_idle(now)
        if self.ready is not None and self.holders and not self.is_evicted:
            self.open_next()

    def open_next(self) -> None:
        """Open a connection before a request needs it, if there are fewer than the pool's size."""
        for one in self._used():
            one.connect()

    @property
    def is_empty(self) -> bool:
        return not self.holders and self.is_closed

    @property
    def is_closed(self) -> bool:
        return all(one.is_closed for one in self.connections)

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due."""
        return all(one.is_closed or one.is_idle for one in self.connections)

    def evict(self) -> None:
        """Close the pool in favour of another kind. No reply may be due."""
        self.is_evicted = True
        self.close()

    def close(self) -> None:
        for one in self.connections:
            one.close()


class Pools:
    """All shared connections of a process."""

    def __init__(self, upstream: Upstream, size: int, *, only_checked: bool = False) -> None:
        """`size`: the maximum number of connections of one kind. `only_checked`: they are opened beforehand,
        and clients get those that were open when the last check began."""
        self._upstream = upstream
        self._size = size
        self._only_checked = only_checked
        self._pools: dict[Profile, Pool] = {}

    def link(self, profile: Profile, sharer: Sharer) -> SharedLink | None:
        """A link to a connection of this kind, or None if there are too many kinds in use."""
        kind = profile.kind
        pool = self._pools.get(kind)
        if pool is None:
            if len(self._pools) >= MAX_POOLS and not self._make_room():
                return None
            ready: list[SharedConnection] | None = [] if self._only_checked else None
            pool = self._pools[kind] = Pool(self._upstream, profile, self._size, ready)
        pool.knows(profile)
        if pool.ready is not None and not pool.connections:
            pool.open_next()
        pool.used_at = asyncio.get_running_loop().time()
        return SharedLink(pool, sharer)

    def _make_room(self) -> bool:
        """Evict the kind least recently used, preferably one that no client holds. Returns False if none can
        go."""
        idle = [pool for pool in self._pools.values() if pool.is_idle]
        if not idle:
            return False
        least = min(idle, key=lambda pool: (pool.holders > 0, pool.used_at))
        least.evict()
        del self._pools[least.kind]
        return True

    def tick(self) -> None:
        """Call this about once a second."""
        now = asyncio.get_running_loop().time()
        for kind, pool in list(self._pools.items()):
            pool.tick(now)
            if pool.is_empty:
                del self._pools[kind]

    def connections(self) -> Iterator[SharedConnection]:
        """All connections that are not closed."""
        for pool in self._pools.values():
            yield from (one for one in pool.connections if not one.is_closed)

    def begin_check(self) -> list[SharedConnection]:
        """The connections that are open now."""
        return [one for one in self.connections() if one.is_open]

    def end_check(self, opened: Collection[SharedConnection]) -> None:
        """From now on clients get only these connections."""
        for pool in self._pools.values():
            pool.ready = [one for one in pool.connections if one in opened]

    def move(self, reason: str, held: Collection[str]) -> None:
        """Another node is the primary now. Connections to the `held` addresses stay."""
        for pool in self._pools.values():
            for one in pool.connections:
                one.move(reason, held)

    def drain(self) -> None:
        """Let new connections take the place of all that are open."""
        for pool in self._pools.values():
            for one in pool.connections:
                one.drain()

    def retire(self) -> None:
        """Close each connection once no reply is due on it. No client gets one any more."""
        for pool in self._pools.values():
            pool.is_evicted = True
        self.drain()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
