"""A session that reads nothing: what `run --splice` puts in the place of `Session`.

Rule: every byte goes on as it came, in both directions; no policy, no slots, nothing to go wrong.
"""

from __future__ import annotations

from proxy.wire.encode import error
from proxy.wire.profile import Profile


class Splice:
    """Has the outside of `Session`."""

    def __init__(self, service: str, database: int = 0) -> None:
        self.to_client: list[bytes] = []
        self.to_upstream: list[bytes] = []
        self.service = service
        self.closing = ""
        self.outstanding = 0  # 1 from what the client sends until something comes back: more can't be told
        self.wants_input = True
        self.holds_back = False
        self.awaits_more = True
        self.backlog = 0
        self.waits = True
        self.in_transaction = False
        # It has a connection of its own, of which nothing is known.
        self.profile = Profile(database=database)
        self.counts: list[int] = []
        self.is_shared = False
        self.keeps_own = True
        self.reopen = False

    def settle(self) -> None:
        """There is nothing to go back to."""

    def take_own(self) -> None:
        """It has never anything else."""

    def from_shared(self, data: bytes, _completed: int, _whole: bool) -> None:
        self.to_client.append(data)

    def from_client(self, data: bytes) -> None:
        self.outstanding = 1
        self.to_upstream.append(data)

    def from_upstream(self, data: bytes) -> None:
        self.outstanding = 0
        self.to_client.append(data)

    def upstream_refused(self, reason: str) -> None:
        """Nothing has come from upstream then, so this can't get into the midst of a reply."""
        self.to_upstream.clear()
        self.to_client.append(error(f"ERR keyfence: {reason}"))
        self.closing = reason

    def upstream_lost(self, reason: str) -> None:
        self.closing = reason
