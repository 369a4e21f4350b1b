# cython: annotation_typing=False
"""One client's ways to Redis: its share of a common connection, and a connection of its own.

Rule: what the session wants sent goes where its route says. It changes only when nothing is awaited, so no
reply can overtake another. A connection whose id the client knows is kept for it, idle, while it shares:
Redis shows the client there, and who kills that connection closes the client.
"""

from __future__ import annotations

from keyfence.resp import encode
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError, ReplyFramer

from .dedicated import DedicatedLink, Receiver
from .health import Upstream
from .pools import Pools
from .shared import SharedLink, Sharer

# So often something is said on a connection that is kept while its client works over another: with Redis'
# `timeout` set, it would be closed, and its client with it.
KEEP_ALIVE_SECONDS = 20.0
_PING = encode.command(b"PING")


class Owner(Sharer):
    """The client's side, of its own connection too."""

    def upstream_data(self, data: bytes) -> None:
        """Bytes from Redis."""
        raise NotImplementedError

    def upstream_unasked(self, data: bytes) -> None:
        """Bytes from Redis on the own connection, while the client shares another."""
        raise NotImplementedError

    def upstream_lost(self, reason: str) -> None:
        """The connection ended, with whatever was under way on it."""
        raise NotImplementedError


class Links(Receiver):
    """Both ways. It is the receiver of the client's own connection, and passes on what comes there."""

    def __init__(self, upstream: Upstream, pools: Pools, owner: Owner) -> None:
        self._upstream = upstream
        self._pools = pools
        self._owner = owner
        self._own: DedicatedLink | None = None
        self._share: SharedLink | None = None
        self._shared_as: Profile | None = None  # what the client was when it was last asked for
        self._shares = False  # what was sent last went over the share
        self._paused = False
        self._own_is_full = False
        self._worked = False  # something went over the share since a PING was sent on the own connection
        self._pinged_at = 0.0
        self._pongs = 0  # replies to those that are still to come, before any of the client's
        self._framer: ReplyFramer | None = None  # of these

    def unsent(self) -> int:
        """Bytes that wait for the own connection to be made."""
        return self._own.unsent() if self._own is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether anything was ever sent."""
        return self._own is not None or self._share is not None

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share. There are only so many kinds."""
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
        """Whether a connection of this kind could be shared at all; not where its database can't be selected
        before a login."""
        return not self._upstream.address.selects_later or profile.is_logged_in

    def send_shared(self, chunks: list[bytes], counts: list[int], shapeable: bool = False) -> None:
        """Send over the connection that `may_share` has said yes to. `shapeable`: a client's text might shape
        a reply."""
        self._shares = self._worked = True
        assert self._share is not None
        self._share.send(chunks, counts, shapeable)

    def send_own(self, profile: Profile, chunks: list[bytes]) -> None:
        """Send over the client's own connection, which is made to be like `profile` first if it is new."""
        self._shares = False
        if self._own is None:
            self._pongs = 0
            self._own = DedicatedLink(self._upstream, self, profile.commands())
            if self._paused:
                self._own.pause()
        self._own.send(chunks)

    def keep_alive(self, now: float) -> None:
        """To be called each second or so, with the loop's time."""
        kept = self._own is not None and self._shares
        if kept and self._worked and not self._pongs and now - self._pinged_at >= KEEP_ALIVE_SECONDS:
            assert self._own is not None
            self._worked, self._pinged_at = False, now
            self._pongs += 1
            self._framer = ReplyFramer()
            self._own.send([_PING])

    def drop_own(self) -> None:
        """Give the own connection up; nothing is awaited on it."""
        if self._own is not None:
            self._own.close()
            self._own = None
            if self._own_is_full:
                self.upstream_full(False)

    def _leave_share(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None

    def pause(self) -> None:
        """The client doesn't keep up. Others' replies are behind its own where it shares: there it is for
        the client's output limit to end that."""
        self._paused = True
        if self._own is not None:
            self._own.pause()

    def resume(self) -> None:
        self._paused = False
        if self._own is not None:
            self._own.resume()

    def end(self) -> bool:
        """The client sends no more. False: Redis can't be told so, the client has to be waited for."""
        return not self._shares and self._own is not None and self._own.end()

    def close(self) -> None:
        """The client is gone."""
        self.drop_own()
        self._leave_share()

    # -- the own connection's side

    def upstream_data(self, data: bytes) -> None:
        if self._pongs:
            data = self._without_pong(data)
            if not data:
                return
        if self._shares:  # nothing is awaited there
            self._owner.upstream_unasked(data)
        else:
            self._owner.upstream_data(data)

    def _without_pong(self, data: bytes) -> bytes:
        """Take the answer to a PING off the head of what came; whatever it is, Redis has answered."""
        assert self._framer is not None
        try:
            at = self._framer.advance(data, 0, 1)
        except ReplyError:
            self._pongs = 0  # the session finds out what is wrong with it
            return data
        self._pongs -= self._framer.completed
        return data[at:]

    def upstream_refused(self, reason: str) -> None:
        """It was never made, so nothing is kept: else a PING would try again while the client shares, and
        what the client awaits there would be refused with it."""
        self.drop_own()
        self._owner.upstream_refused(reason)

    def upstream_lost(self, reason: str) -> None:
        self._own = None
        self._owner.upstream_lost(reason)

    def upstream_full(self, full: bool) -> None:
        self._own_is_full = full
        self._owner.upstream_full(full)
