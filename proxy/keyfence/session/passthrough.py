"""A session that reads nothing: `run --splice` uses it in place of `Session`.

Rule: every byte is passed on unchanged, in both directions. There is no policy and no reply slot.
"""

from __future__ import annotations

from time import monotonic

from keyfence.net.closures import lost
from keyfence.resp.encode import error
from keyfence.resp.profile import Profile
from keyfence.session.conversation.base import Outlet, SessionBase
from keyfence.session.conversation.routing import Route


class Passthrough(SessionBase):
    """A client whose bytes pass unread. It uses a dedicated connection."""

    def __init__(self, service: str, database: int = 0) -> None:
        super().__init__(service, Profile(database=database), Outlet(), Route(sharing=False, clock=monotonic))
        self._sent = (
            False  # True: nothing has come back since the last bytes were sent; keyfence cannot know more
        )

    @property
    def outstanding(self) -> int:
        return int(self._sent)

    def from_client(self, data: bytes) -> None:
        self._sent = True
        self.to_upstream.append(data)

    def from_upstream(self, data: bytes) -> None:
        self._sent = False
        self.to_client.append(data)

    def upstream_refused(self, reason: str) -> None:
        """Nothing has come from upstream yet, so the error cannot end up inside a reply."""
        self.to_upstream.clear()
        self.to_client.append(error(f"ERR keyfence: {reason}"))
        self.closing = lost(reason)

    def upstream_lost(self, reason: str) -> None:
        self.closing = lost(reason)
