# cython: annotation_typing=False
"""The links of one client to Redis: a share of a shared connection, and a dedicated connection.

Rule: the session's route decides which link carries a request. The route changes only when no reply is due,
so replies cannot overtake each other. A dedicated connection whose id the client knows is kept idle while the
client shares another one: CLIENT LIST shows the client there, and killing that connection closes the client.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from keyfence.resp.profile import Profile

from .dedicated import DedicatedLink, Owner
from .health import Upstream
from .pools import Pools
from .shared import SharedLink

# How often a PING is sent on a dedicated connection whose client uses a shared one, so that Redis' `timeout`
# does not close it, and the client with it.
KEEP_ALIVE_SECONDS = 20.0


class Shares(Protocol):
    """In place of the one share of a client: those of a client that reads from replicas."""

    @property
    def is_open(self) -> bool:
        """Whether a request was sent."""

    @property
    def is_held(self) -> bool:
        """Whether nothing that the client waits for has left keyfence."""

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share."""

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        """As `Links.send_shared`."""

    def time_next(self) -> None:
        """As `Links.time_shared`."""

    def works_elsewhere(self) -> None:
        """The client uses its dedicated connection."""

    def close(self) -> None:
        """The client no longer uses this."""


class Links:
    """Both links of a client. Each calls the client back by itself."""

    def __init__(self, upstream: Upstream, pools: Pools, owner: Owner) -> None:
        self._upstream = upstream
        self._pools = pools
        self._owner: Owner | None = owner
        self._own: DedicatedLink | None = None
        self._share: SharedLink | None = None
        # In place of that: the shares of a client whose service reads from replicas.
        self._reads: Shares | None = None
        self._shared_as: Profile | None = None  # the profile for which the share was last requested
        self._paused = False
        self._worked = False  # whether the share was used since the last PING on the dedicated connection
        self._pinged_at = 0.0

    def read_by(self, reads: Shares | None) -> None:
        """Share connections by this from now on; None: only the primary's. No reply may be due."""
        self._leave_share()
        self._reads = reads

    def unsent(self) -> int:
        """The number of bytes that wait for the dedicated connection to open."""
        return self._own.unsent() if self._own is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether any request was sent."""
        if self._reads is not None and self._reads.is_open:
            return True
        return self._share is not None or (self._own is not None and not self._own.is_closed)

    @property
    def has_own(self) -> bool:
        """Whether there is a dedicated connection."""
        return self._own is not None and not self._own.is_closed

    def ask_role(self) -> bool:
        """Give up the dedicated connection, and the client, if it leads to a replica. No reply may be due.
        Returns False if it cannot be asked now."""
        return self._own is None or self._own.ask_role()

    def doubt_own(self) -> None:
        """The same, once the dedicated connection is used again."""
        if self._own is not None:
            self._own.is_doubted = True

    @property
    def own(self) -> DedicatedLink | None:
        """The dedicated connection, if it is open."""
        own = self._own
        return own if own is not None and own.is_open and not own.is_closed else None

    @property
    def is_held(self) -> bool:
        """Whether Redis is away, and nothing that the client waits for was sent to it."""
        if self._upstream.up is not False:
            return False
        own, share = self._own, self._share or self._reads
        return (own is None or own.is_held) and (share is None or share.is_held)

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share. The number of kinds is limited."""
        share = self._share
        if share is not None and not share.is_evicted:
            if self._shared_as is profile:
                return True
            if share.kind == profile.kind:
                self._shared_as = profile
                return True
        share = None
        if self._owner is not None and self.may_ever_share(profile):
            if self._reads is not None:
                return self._reads.may_share(profile)
            share = self._pools.link(profile, self._owner)
        if share is None:
            return False
        self._leave_share()
        self._share, self._shared_as = share, profile
        return True

    def may_ever_share(self, profile: Profile) -> bool:
        """Whether a connection of this kind can ever be shared. It cannot if its database can only be
        selected after a login."""
        return not self._upstream.address.selects_later or profile.is_logged_in

    def send_shared(self, chunks: list[bytes], counts: list[int], shapeable: bool = False) -> None:
        """Send over the shared connection that `may_share` has found. `shapeable`: the client's text might
        shape a reply."""
        self._worked = True
        if self._own is not None:
            self._keep_own(self._own)
        share = self._share
        if share is None:
            assert self._reads is not None
            self._reads.send(chunks, counts, shapeable)
        else:
            share.send(chunks, counts, shapeable)

    def _keep_own(self, own: DedicatedLink) -> None:
        if not own.is_kept and self._reads is not None:
            self._reads.works_elsewhere()
        own.is_kept = True

    def time_shared(self) -> None:
        """`Sharer.shared_sent` is called once the next requests of `send_shared` are written."""
        if self._share is not None:
            self._share.is_timed = True
        elif self._reads is not None:
            self._reads.time_next()

    def send_own(self, profile: Profile, chunks: list[bytes]) -> None:
        """Send over the dedicated connection. A new one is first given the settings of `profile`."""
        own = self._own
        if own is None or own.is_closed:
            own = self._own = DedicatedLink(self._upstream, self._owner, profile.commands())
            if self._paused:
                own.pause()
        own.send(chunks)

    def keep_alive(self, now: float) -> None:
        """Call this about once a second, with the loop's time."""
        own = self._own
        if own is None or own.is_closed or not own.is_kept or not self._worked:
            return
        if now - self._pinged_at >= KEEP_ALIVE_SECONDS and own.ping():
            self._worked, self._pinged_at = False, now

    def move(self, reason: str, held: Collection[str]) -> None:
        """Another node is the primary now. A dedicated connection to one of the `held` addresses stays."""
        if self._own is not None:
            self._own.move(reason, held)

    def drop_own(self) -> None:
        """Close the dedicated connection. No reply may be due on it."""
        own, self._own = self._own, None
        if own is not None:
            own.close()
            if self._reads is not None:
                self._reads.works_elsewhere()

    def _leave_share(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None
        if self._reads is not None:
            self._reads.close()
            self._reads = None

    def pause(self) -> None:
        """Stop reading for a client that reads too slowly. A shared connection cannot be paused, because
        other clients' replies follow; there the client's output limit applies."""
        self._paused = True
        if self._own is not None:
            self._own.pause()

    def resume(self) -> None:
        self._paused = False
        if self._own is not None:
            self._own.resume()

    def end(self) -> bool:
        """Tell Redis that the client sends no more. Returns False if that is not possible."""
        own = self._own
        return own is not None and not own.is_closed and not own.is_kept and own.end()

    def close(self) -> None:
        """Give up both links, because the client gets no more replies. It is let go of, too: a circle would
        stay in memory until a garbage collection, and a client keeps the policy."""
        self.drop_own()
        self._leave_share()
        self._owner = None
