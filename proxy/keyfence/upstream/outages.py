"""Messages for operators about outages of the upstream.

Rule: print one line when the upstream fails, one for each new reason during the outage, and one when it is
back, with the duration.
"""

from __future__ import annotations

import time

from keyfence.telemetry.operator_log import Changes, elapsed

MAX_REASONS = 20  # printed per outage


class Outages:
    """Turns the states of an upstream into lines."""

    def __init__(self, shown: str) -> None:
        """`shown` is the upstream's URL without its password."""
        self._shown = shown
        self._changes = Changes()
        self._since: float | None = None  # when the outage began, if there is one
        self._reasons: set[str] = set()
        self._is_begun = False
        self._at_start = ""  # the first line to print

    def begin(self) -> None:
        """Print from now on. Before that, a failed start prints its own line."""
        self._is_begun = True
        if self._at_start:
            self._changes.add(self._at_start)

    def seen(self, up: bool, reason: str) -> None:
        """Record the upstream's state. `reason` says why it is not up."""
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
        """Call this about once a second."""
        self._changes.tick()
