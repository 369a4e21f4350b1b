"""The candidate policy beside the one in force, as the parent hands it to the processes that serve clients.

Rule: a candidate is loaded as a reload loads a policy, in a separate process, and checked against the
configuration. It is in force nowhere. A restart of keyfence forgets it, unless `keyfence run --candidate`
names it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keyfence.telemetry.candidate.rows import ChangedRow

from .packing import Packed, unpack_beside
from .runtime import Runtime


class PackedCandidate(NamedTuple):
    """A candidate in a form for another process."""

    number: int  # tells this comparison from earlier ones
    file: str
    since: float  # the beginning of the comparison, in Unix seconds
    packed: Packed

    def described(self) -> dict[str, Any]:
        """What operators see of it."""
        return {
            "file": self.file,
            "policy": self.packed.name,
            "revision": self.packed.revision,
            "since": self.since,
        }


class Comparison(NamedTuple):
    """What a candidate would change."""

    commands: dict[str, int]  # that both policies have evaluated, by service
    rows: list[ChangedRow]


NOTHING = Comparison({}, [])


async def take_candidate(runtime: Runtime, candidate: PackedCandidate | None) -> None:
    """Compare this candidate with the policy in force from now on, or (None) end the comparison."""
    policy = None if candidate is None else await unpack_beside(candidate.packed)
    runtime.take_candidate(policy, 0 if candidate is None else candidate.number)
