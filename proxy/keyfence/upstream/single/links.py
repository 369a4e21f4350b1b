# cython: annotation_typing=False
"""The links of one client to a whole cluster, in place of those to one Redis.

Rule: as `Links`: the session's route says which of the two carries a request, and it changes only when no
reply is due.
"""

from __future__ import annotations

from collections.abc import Collection

from keyfence.resp.profile import Profile
from keyfence.upstream.dedicated import DedicatedLink, Owner
from keyfence.upstream.health import Upstream
from keyfence.upstream.links import Links, Shares
from keyfence.upstream.pools import Pools

from .masters import Masters
from .own import OwnConnections
from .reading import ReadingShares
from .shares import ClusterShares


class ClusterLinks(Links):
    """Both links of a client. Each calls the client back by itself."""

    def __init__(self, upstream: Upstream, pools: Pools, owner: Owner, masters: Masters) -> None:
        """`upstream` and `pools` are those of any node, and not used."""
        super().__init__(upstream, pools, owner)
        self._masters = masters
        self._after_write: float | None = None  # as `serve` was told
        self._shares: ClusterShares = ClusterShares(owner, masters)
        self._owns = OwnConnections(owner, masters)
        self._known: Profile | None = None  # for which a share was requested last
        self._owns_rest = True  # nothing was sent there since the client uses shared connections

    def read_by(self, reads: Shares | None) -> None:
        """A cluster's replicas are read from by `serve`."""

    def serve(self, after_write: float | None, splits: frozenset[bytes]) -> None:
        """Read from replicas again so many seconds after a write (None: never), and send these commands in
        parts if their keys are in several hash slots, from now on. No reply may be due."""
        if self._masters.replicas is None:
            after_write = None
        if after_write != self._after_write:
            self._shares.close()
            assert self._owner is not None
            if after_write is None:
                self._shares = ClusterShares(self._owner, self._masters)
            else:
                self._shares = ReadingShares(self._owner, self._masters, after_write)
            self._after_write, self._known = after_write, None
        self._shares.split(splits)
        self._owns.splits = splits

    def unsent(self) -> int:
        return 0 if self._owns_rest else self._owns.unsent()

    @property
    def is_open(self) -> bool:
        return self._shares.is_open or self._owns.is_open

    @property
    def has_own(self) -> bool:
        return self._owns.is_open

    def ask_role(self) -> bool:
        """Each node's role is in the topology, so none is asked for."""
        return True

    def doubt_own(self) -> None:
        """As `ask_role`."""

    @property
    def own(self) -> DedicatedLink | None:
        return self._owns.current

    @property
    def is_held(self) -> bool:
        is_waiting = self._shares.due or self._owns.due
        return bool(is_waiting) and self._shares.is_held and self._owns.is_held

    def may_share(self, profile: Profile) -> bool:
        if profile is not self._known:
            if not self.may_ever_share(profile) or not self._shares.may_share(profile):
                return False
            self._known = profile
        return True

    def may_ever_share(self, profile: Profile) -> bool:
        return not profile.database  # a cluster has one

    def send_shared(self, chunks: list[bytes], counts: list[int], shapeable: bool = False) -> None:
        if not self._owns_rest:
            self._owns_rest = True
            self._owns.rest()
            self._shares.works_elsewhere()
        self._shares.send(chunks, counts, shapeable)

    def time_shared(self) -> None:
        self._shares.time_next()

    def send_own(self, profile: Profile, chunks: list[bytes]) -> None:
        self._owns_rest = False
        self._owns.send(profile, chunks)

    def keep_alive(self, now: float) -> None:
        self._owns.tick(now)
        self._shares.tick()

    def move(self, reason: str, held: Collection[str]) -> None:
        """That the configured address leads to another node moves nothing here."""

    def drop_own(self) -> None:
        self._owns.rest()

    def pause(self) -> None:
        self._owns.pause()

    def resume(self) -> None:
        self._owns.resume()

    def end(self) -> bool:
        return self._owns.end()

    def close(self) -> None:
        self._owns.close()
        self._shares.close()
        super().close()
