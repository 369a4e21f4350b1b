"""When changed files are loaded: once they have stopped changing.

Rule: no I/O and no clock of its own. A change is loaded once, whether it is accepted or not.
"""

from __future__ import annotations

SETTLE_SECONDS = 2.0  # for which files must stay as they are; longer than two steps of one change take
RETRY_SECONDS = 60.0  # after a load that has failed for another reason than the files


class Settling:
    """Compares hashes over files with the one that was loaded."""

    def __init__(self, loaded: str) -> None:
        self._loaded = loaded
        self._changed_to = ""
        self._since = 0.0
        self._not_before = 0.0

    def is_due(self, digest: str, now: float) -> bool:
        """Whether the files shall be loaded, which now have this hash."""
        if digest == self._loaded:
            self._changed_to = ""
        elif digest != self._changed_to:
            self._changed_to, self._since = digest, now
        else:
            return now >= max(self._since + SETTLE_SECONDS, self._not_before)
        return False

    def took(self, digest: str) -> None:
        """Files with this hash were read. "": it is not known what was read."""
        self._loaded, self._changed_to = digest, ""

    def failed(self, now: float) -> None:
        """The load has failed, and not for its files. It is tried again."""
        self._loaded, self._not_before = "", now + RETRY_SECONDS
