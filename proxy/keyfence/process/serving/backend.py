"""The backend: the process or the workers that serve the clients.

Rule: `process.control` knows this interface only. `process.in_process.InProcess` and
`process.workers.parent.Workers` implement it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.tally import Tally

from .candidate import Comparison, PackedCandidate, SoFar
from .packing import Packed

NOTHING_KEPT = "keyfence runs without a findings store; set findings: in the configuration"
# Takes the increments of a process that serves clients, part by part (telemetry.increments).
Feed = Callable[[dict[str, Any]], None]


async def hand_over(increments: Increments, feed: Feed) -> None:
    """Feed everything that was counted before this call, part by part. Clients have their turns in between.
    If the caller is cancelled, the rest follows at once, so nothing is lost."""
    parts = increments.parts()
    try:
        for part in parts:
            feed(part)
            await asyncio.sleep(0)
    finally:
        for part in parts:
            feed(part)


def not_known(why: str) -> ValueError:
    """What is raised in place of an answer about what was not seen. `why` the store lacks something."""
    return ValueError(f"not known: {why}; ask again when the store can be written")


class Ledger(Protocol):
    """The findings store, as the services ask it in-band. Answers are fields of a reply."""

    async def findings_of(self, service: str, limit: int) -> dict[str, Any]:
        """The findings of a service that are neither quiet nor resolved, the most frequent first. Raises
        ValueError."""

    async def readiness_of(self, service: str, modes: Mapping[str, str]) -> dict[str, Any]:
        """Which rules, with these modes, can be enforced for a service. Raises ValueError."""


class WorkerFailed(Exception):
    """A worker did not do what it was asked to do; the message is one line for the operator."""


class Backend(Protocol):
    """The processes that serve clients, seen from the one that controls them."""

    @property
    def bound(self) -> Sequence[tuple[str, str]]:
        """(address, service) of each listener."""

    @property
    def is_open(self) -> bool:
        """Whether clients are served."""

    async def open(self) -> None:
        """Serve clients. Raises StartError."""

    def log_to(self, decision_log: str) -> None:
        """Write the decision log to this file from now on. Raises OSError, and changes nothing then."""

    def reopen_log(self) -> None:
        """Open the file of the decision log again, after it was moved."""

    async def take(self, packed: Packed, loaded_at: float) -> None:
        """Put a policy and its configuration in force; returns once all processes have them. `loaded_at` is
        in Unix seconds."""

    async def set_candidate(self, candidate: PackedCandidate | None) -> None:
        """Compare this policy with the one in force, or (None) no policy any more; returns once all processes
        have it."""

    async def comparison(self) -> Comparison:
        """What the candidate would change, of all processes, up to date."""

    def compared(self) -> SoFar:
        """The same as far as this process knows it."""

    async def set_glass(self, glass: Sequence[BreakGlass]) -> None:
        """Put these break-glasses in force; returns once all processes have them."""

    async def shut(self, why: str) -> None:
        """Refuse all clients for this reason, and close those there are, or ("") serve them again; returns
        once all processes do."""

    async def counters(self) -> Counters:
        """The counters of all processes, up to date."""

    async def tally(self) -> Tally:
        """The tally of all processes, for reading only."""

    def listing(self) -> list[dict[str, Any]]:
        """One row for each process, for `GET /workers`."""

    async def tick(self) -> None:
        """Called each second."""

    async def restart(self) -> int:
        """A rolling restart; returns the number of replaced workers. Raises WorkerFailed."""

    async def drain(self, seconds: float, at_once: asyncio.Event) -> None:
        """Let the clients finish within `seconds`, or until `at_once` is set; then end."""
