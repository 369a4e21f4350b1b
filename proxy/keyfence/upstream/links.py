# cython: annotation_typing=False
"""The links of one client to Redis: a share of a shared connection, and a dedicated connection.

Rule: the session's route decides which link carries a request. The route changes only when no reply is due,
so replies cannot overtake each other. A dedicated connection whose id the client knows is kept idle while the
client shares another one: CLIENT LIST shows the client there, and killing that connection closes the client.
"""

from __future__ import annotations

from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError, ReplyFramer

from .dedicated import DedicatedLink, Receiver
from .exchange import Sharer
from .health import Upstream
from .own_commands import PING
from .pools import Pools
from .shared import SharedLink

# How often a PING is sent on a dedicated connection whose client uses a shared one, so that Redis' `timeout`
# does not close it, and the client with it.
KEEP_ALIVE_SECONDS = 20.0
_PING = PING.request()


class Owner(Sharer):
    """The client's side, which both links call back."""

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        """Redis sent `data` on the dedicated connection."""
        raise NotImplementedError

    def upstream_unasked(self, link: DedicatedLink, data: bytes) -> None:
        """Redis sent `data` on the dedicated connection while the client uses a shared one."""
        raise NotImplementedError

    def upstream_lost(self, link: DedicatedLink, reason: str) -> None:
        """The connection ended. Replies due on it will not come."""
        raise NotImplementedError


class _Gone(Owner):
    """Stands for a client that has gone, to which nothing matters any more."""

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        pass

    def upstream_unasked(self, link: DedicatedLink, data: bytes) -> None:
        pass

    def upstream_lost(self, link: DedicatedLink, reason: str) -> None:
        pass

    def upstream_refused(self, link: object, reason: str) -> None:
        pass

    def upstream_full(self, link: object, full: bool) -> None:
        pass


_GONE = _Gone()


class Links(Receiver):
    """Both links of a client. It is the receiver of the dedicated connection and passes its data on."""

    def __init__(self, upstream: Upstream, pools: Pools, owner: Owner) -> None:
        self._upstream = upstream
        self._pools = pools
        self._owner = owner
        self._own: DedicatedLink | None = None
        self._share: SharedLink | None = None
        self._shared_as: Profile | None = None  # the profile for which the share was last requested
        self._shares = False  # whether the last request went over the share
        self._paused = False
        self._own_is_full = False
        self._worked = False  # whether the share was used since the last PING on the dedicated connection
        self._pinged_at = 0.0
        self._pongs = 0  # replies to PINGs that are still to come, before any reply to the client
        self._framer: ReplyFramer | None = None  # finds the ends of these replies

    def unsent(self) -> int:
        """The number of bytes that wait for the dedicated connection to open."""
        return self._own.unsent() if self._own is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether any request was sent."""
        return self._own is not None or self._share is not None

    @property
    def is_held(self) -> bool:
        """Whether Redis is away, and nothing that the client waits for was sent to it."""
        if self._upstream.up is not False:
            return False
        own, share = self._own, self._share
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
        share = self._pools.link(profile, self._owner) if self.may_ever_share(profile) else None
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
        self._shares = self._worked = True
        assert self._share is not None
        self._share.send(chunks, counts, shapeable)

    def time_shared(self) -> None:
        """`Sharer.shared_sent` is called once the next requests of `send_shared` are written."""
        assert self._share is not None
        self._share.is_timed = True

    def send_own(self, profile: Profile, chunks: list[bytes]) -> None:
        """Send over the dedicated connection. A new one is first given the settings of `profile`."""
        self._shares = False
        if self._own is None:
            self._pongs = 0
            self._own = DedicatedLink(self._upstream, self, profile.commands())
            if self._paused:
                self._own.pause()
        self._own.send(chunks)

    def keep_alive(self, now: float) -> None:
        """Call this about once a second, with the loop's time."""
        kept = self._own is not None and self._shares
        if kept and self._worked and not self._pongs and now - self._pinged_at >= KEEP_ALIVE_SECONDS:
            assert self._own is not None
            self._worked, self._pinged_at = False, now
            self._pongs += 1
            self._framer = ReplyFramer()
            self._own.send([_PING])

    def drop_own(self) -> None:
        """Close the dedicated connection. No reply may be due on it."""
        own, self._own = self._own, None
        if own is not None:
            own.close()
            if self._own_is_full:
                self.upstream_full(own, False)

    def _leave_share(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None

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
        return not self._shares and self._own is not None and self._own.end()

    def close(self) -> None:
        """Give up both links, because the client gets no more replies."""
        self.drop_own()
        self._leave_share()

    def leave(self) -> None:
        """The same, because the client has gone. Both would keep each other in memory until a garbage
        collection, and the client keeps the policy."""
        self.close()
        self._owner = _GONE

    # -- callbacks of the dedicated connection

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        if self._pongs:
            data = self._without_pong(data)
            if not data:
                return
        if self._shares:  # no reply is due on the dedicated connection
            self._owner.upstream_unasked(link, data)
        else:
            self._owner.upstream_data(link, data)

    def _without_pong(self, data: bytes) -> bytes:
        """Remove the reply to a PING from the start of `data`. Any reply will do."""
        assert self._framer is not None
        try:
            at = self._framer.advance(data, 0, 1)
        except ReplyError:
            self._pongs = 0  # the session will report the error
            return data
        self._pongs -= self._framer.completed
        return data[at:]

    def upstream_refused(self, link: object, reason: str) -> None:
        """Drop the link, because the connection never opened. Otherwise a PING would try to connect again
        while the client shares, and a refusal would fail the replies due on the shared connection."""
        self.drop_own()
        self._owner.upstream_refused(link, reason)

    def upstream_lost(self, link: DedicatedLink, reason: str) -> None:
        self._own = None
        self._owner.upstream_lost(link, reason)

    def upstream_full(self, link: object, full: bool) -> None:
        self._own_is_full = full
        self._owner.upstream_full(link, full)
