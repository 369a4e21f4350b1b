"""A session that reads nothing: what `run --splice` puts in the place of `Session`.

Rule: every byte goes on as it came, in both directions; no policy, no slots, nothing to go wrong.
"""

from __future__ import annotations

from time import monotonic

from keyfence.resp.encode import error
from keyfence.resp.profile import Profile

from .base import Outlet, SessionBase
from .routing import Route


class Passthrough(SessionBase):
    """It has a connection of its own, of which nothing is known."""

    def __init__(self, service: str, database: int = 0) -> None:
        super().__init__(service, Profile(database=database), Outlet(), Route(sharing=False, clock=monotonic))
        self._sent = False  # and nothing has come back since: more can't be told

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
        """Nothing has come from upstream then, so this can't get into the midst of a reply."""
        self.to_upstream.clear()
        self.to_client.append(error(f"ERR keyfence: {reason}"))
        self.closing = reason

    def upstream_lost(self, reason: str) -> None:
        self.closing = reason
