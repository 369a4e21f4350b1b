"""Which connections there are for clients to share: some of each kind.

Rule: a kind is a database, a protocol and a user, whatever the password. Where there are too many kinds, the
one that was used least lately gives way, and never one on which a reply is due.
"""

from __future__ import annotations

import asyncio

from keyfence.resp.profile import Profile

from .health import Upstream
from .shared import SharedConnection, SharedLink, Sharer

# Kinds of connections that are shared; a client that needs another has its own.
MAX_POOLS = 64
MAX_LOGINS = 4  # passwords that are kept of one user


class Pool:
    """The connections of one kind."""

    def __init__(self, upstream: Upstream, profile: Profile, size: int) -> None:
        self.kind = profile.kind
        self.holders = 0  # clients with a share of one of these connections, now or when they send next
        self.used_at = 0.0  # when something was sent last, as `tick` has seen it
        self.is_evicted = False  # its clients have to ask for another share
        self._upstream = upstream
        self._size = size
        self._connections: list[SharedConnection] = []
        # Credentials that Redis has accepted from clients, the newest last. An older password may have been
        # changed since, or the newest one may be another client's that is still valid.
        self._logins: dict[Profile, None] = {}

    def knows(self, profile: Profile) -> None:
        """A client has logged in so, and Redis has accepted it."""
        login = profile.pool
        self._logins.pop(login, None)
        self._logins[login] = None
        if len(self._logins) > MAX_LOGINS:
            del self._logins[next(iter(self._logins))]

    def refused(self, login: Profile) -> None:
        """Redis takes this password no more. The last one is kept: what else could be tried?"""
        if len(self._logins) > 1:
            self._logins.pop(login, None)

    def connection(self, link: SharedLink) -> SharedConnection:
        """The one with the fewest clients."""
        open_ones = self._connections = [one for one in self._connections if not one.is_closed]
        if len(open_ones) < self._size:
            open_ones.append(SharedConnection(self._upstream, next(reversed(self._logins)), self.refused))
        chosen = min(open_ones, key=lambda one: len(one.links))
        chosen.links[link] = None
        return chosen

    def tick(self, now: float) -> None:
        """Prove the order of what is under way, and close what nobody has held for a while."""
        for one in self._connections:
            if one.tick():
                self.used_at = now
            one.close_if_idle(now)

    @property
    def is_empty(self) -> bool:
        return not self.holders and self.is_closed

    @property
    def is_closed(self) -> bool:
        return all(one.is_closed for one in self._connections)

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due."""
        return all(one.is_closed or one.is_idle for one in self._connections)

    def evict(self) -> None:
        """Give way to another kind. No reply may be due."""
        self.is_evicted = True
        self.close()

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
        """A share of a connection of this kind; None where there are too many kinds at work."""
        kind = profile.kind
        pool = self._pools.get(kind)
        if pool is None:
            if len(self._pools) >= MAX_POOLS and not self._make_room():
                return None
            pool = self._pools[kind] = Pool(self._upstream, profile, self._size)
        pool.knows(profile)
        pool.used_at = asyncio.get_running_loop().time()
        return SharedLink(pool, sharer)

    def _make_room(self) -> bool:
        """Evict the kind that was used least lately, one that no client holds before any other."""
        idle = [pool for pool in self._pools.values() if pool.is_idle]
        if not idle:
            return False
        least = min(idle, key=lambda pool: (pool.holders > 0, pool.used_at))
        least.evict()
        del self._pools[least.kind]
        return True

    def tick(self) -> None:
        """To be called each second or so."""
        now = asyncio.get_running_loop().time()
        for kind, pool in list(self._pools.items()):
            pool.tick(now)
            if pool.is_empty:
                del self._pools[kind]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
