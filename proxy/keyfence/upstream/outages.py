"""What operators read about an upstream that goes and comes back.

Rule: a line when it goes, a line for each new reason while it is away, and a line when it is back, with the
time that it was away.
"""

from __future__ import annotations

import time

from keyfence.telemetry.operator_log import Changes, elapsed

MAX_REASONS = 20  # that are remembered of one outage


class Outages:
    """Turns an upstream's states into lines."""

    def __init__(self, shown: str) -> None:
        """`shown` is the upstream's URL without its password."""
        self._shown = shown
        self._changes = Changes()
        self._since: float | None = None  # the beginning of the outage, if there is one
        self._reasons: set[str] = set()
        self._is_begun = False
        self._at_start = ""  # what is printed first

    def begin(self) -> None:
        """Print from now on. Until then a start may fail, which is one line of its own."""
        self._is_begun = True
        if self._at_start:
            self._changes.add(self._at_start)

    def seen(self, up: bool, reason: str) -> None:
        """The upstream is in this state now. `reason` says why it isn't up."""
        now = time.monotonic()
        if up:
            if self._since is not None and self._is_begun:
                self._changes.add(f"upstream {self._shown} is up again after {elapsed(now - self._since)}")
            self._since, self._at_start = None, ""
            self._reasons.clear()
            return
        if self._since is None:
            self._since = now
        if reason in self._reasons or len(self._reasons) >= MAX_REASONS:
            return
        self._reasons.add(reason)
        text = f"upstream {self._shown} is unreachable: {reason}"
        if self._is_begun:
            self._changes.add(text)
        else:
            self._at_start = text

    def tick(self) -> None:
        """To be called each second or so."""
        self._changes.tick()
