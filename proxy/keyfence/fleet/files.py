"""Looks whether the files that keyfence has loaded have changed.

Rule: by content. It looks once a second and reads all of them: that costs less than a millisecond for a usual
policy, and works where the system reports no changes (NFS, FUSE, overlays, a swapped symbolic link above the
file). A thread reads, so no client waits for a slow file system.
"""

from __future__ import annotations

import asyncio

from keyfence.policy.source.files import POLICY_ENDS, Seen

from .mounts import mounts, unchanging
from .settling import Settling

LOOK_SECONDS = 1.0


class WatchedFiles:
    """The files that were loaded last. Whoever loads them again says so."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.unchanging: list[str] = []  # sentences about those that cannot change where keyfence sees them
        self._settling = Settling(seen.digest)
        self._looked_at: Seen | None = None

    def took(self, seen: Seen) -> None:
        """These were read, and accepted or not."""
        if seen.digest:
            self.seen = seen
        self._settling.took(seen.digest)

    def failed(self) -> None:
        """They were not loaded, for a reason that is not in them."""
        self._settling.failed(asyncio.get_running_loop().time())

    async def have_changed(self) -> bool:
        """Whether they have changed, and have stopped changing. It looks once."""
        seen = self.seen
        if not seen.digest:  # it is not known what was read
            return False
        if seen is not self._looked_at:
            self._looked_at = seen
            self.unchanging = await asyncio.to_thread(_unchanging, seen)
        digest = await asyncio.to_thread(seen.look)
        # Another load may have come between.
        return seen is self.seen and self._settling.is_due(digest, asyncio.get_running_loop().time())


def _unchanging(seen: Seen) -> list[str]:
    """Secrets are left out: Docker mounts each by itself, and they are not meant to change."""
    return unchanging([file for file, _ in seen.files if file.endswith(POLICY_ENDS)], mounts())
