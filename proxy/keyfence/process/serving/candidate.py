"""The candidate policy beside the one in force, as the parent hands it to the processes that serve clients.

Rule: a candidate is loaded as a reload loads a policy, in a separate process, and checked against the
configuration. It is in force nowhere. A restart of keyfence forgets it, unless `keyfence run --candidate`
names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keyfence.policy.compiled.for_cluster import for_cluster
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.telemetry.candidate.rows import ChangedRow

from .packing import Packed, unpack, unpack_beside
from .runtime import Runtime

CLUSTER = "cluster"  # the purpose of a rehearsal
REHEARSED = "the policy in force, with cluster: true"  # in place of a file


class PackedCandidate(NamedTuple):
    """A candidate in a form for another process."""

    number: int  # tells this comparison from earlier ones
    file: str
    since: float  # the beginning of the comparison, in Unix seconds
    packed: Packed
    purpose: str = ""  # CLUSTER: it is the policy in force, to rehearse a cluster
    published: Mapping[str, Any] | None = (
        None  # what was signed of the fleet's; None: it is an operator's own
    )

    def described(self) -> dict[str, Any]:
        """What operators see of it."""
        return {
            "file": self.file,
            "for": self.purpose,
            "policy": self.packed.name,
            "revision": self.packed.revision,
            "since": self.since,
            **({} if self.published is None else {"published": self.published}),
        }


class Comparison(NamedTuple):
    """What a candidate would change."""

    commands: dict[str, int]  # that both policies have evaluated, by service
    rows: list[ChangedRow]
    rehearsed: list[dict[str, Any]]  # the rows of a rehearsal (`telemetry.candidate.rehearsal`)


NOTHING = Comparison({}, [], [])


class SoFar(NamedTuple):
    """The same as far as one process knows it."""

    commands: dict[str, int]
    rows: Callable[[], list[ChangedRow]]  # makes them; any thread may call it


async def take_candidate(runtime: Runtime, candidate: PackedCandidate | None) -> None:
    """Compare this candidate with the policy in force from now on, or (None) end the comparison."""
    if candidate is None:
        runtime.take_candidate(None, 0)
    else:
        _take(runtime, candidate, await unpack_beside(candidate.packed))


def take_at_start(runtime: Runtime, candidate: PackedCandidate) -> None:
    """The same in a process that has no clients yet."""
    _take(runtime, candidate, unpack(candidate.packed))


def _take(runtime: Runtime, candidate: PackedCandidate, policy: CompiledPolicy | None) -> None:
    rehearses = candidate.purpose == CLUSTER
    made = for_cluster(policy) if rehearses and policy is not None else policy
    runtime.take_candidate(made, candidate.number, rehearses=rehearses)
