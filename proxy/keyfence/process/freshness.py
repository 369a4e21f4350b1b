"""What happens while the policy is older than it may be: `stale_after`, and `then`.

Rule: it begins within a second of the bound, in all processes, and ends as soon as the policy is confirmed.
"""

from __future__ import annotations

import time
from typing import Literal

from keyfence.fleet.model import Then
from keyfence.fleet.source import PolicySource
from keyfence.policy.units import clock_text
from keyfence.telemetry.operator_log import Changes, elapsed

from .glass import Glass
from .serving.backend import Backend

_EFFECTS: dict[Then, str] = {
    "keep": "it stays in force",
    "observe": "nothing is refused",
    "refuse": "all clients are refused",
}

_TOO_OLD = "the policy is older than stale_after allows"  # as clients are told


class Freshness:
    """Keeps to the bound on the policy's age."""

    def __init__(self, glass: Glass, backend: Backend) -> None:
        self.acts: Then | Literal[""] = ""  # what is done now; "": the policy is fresh
        self.text = ""  # what operators are told about it
        self._glass = glass
        self._backend = backend
        self._changes = Changes()

    async def tick(self, source: PolicySource | None) -> None:
        """Called each second, and when another policy is in force."""
        self._changes.tick()
        now = time.time()
        wanted: Then | Literal[""] = ""
        if source is not None and source.held is not None and source.is_stale(now):
            wanted = source.server.then
            server, confirmed = source.server, clock_text(source.held.confirmed)
            self.text = (
                f"the policy is stale, and {_EFFECTS[wanted]}: {server.shown} has confirmed it last at "
                f"{confirmed}, and stale_after is {elapsed(server.stale_after)}"
            )
        before, self.acts = self.acts, wanted
        if wanted == before:
            return
        self._changes.add(self.text if wanted else "the policy is confirmed: it is no longer stale")
        if "observe" in (before, wanted):
            await self._glass.observe_all(wanted == "observe")
        if "refuse" in (before, wanted):
            await self._backend.shut(_TOO_OLD if wanted == "refuse" else "")
        self.text = self.text if wanted else ""
