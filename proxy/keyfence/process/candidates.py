"""The candidate policy of one keyfence: which one it is, and what it would change.

Rule: there is one candidate at a time. Nothing here puts a policy in force: a candidate is promoted by a
reload, and only if the policy's own files have become the candidate. So a restart keeps what was promoted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from keyfence.admin.beside import answers
from keyfence.findings.history.book import CANDIDATE
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.services import UNKNOWN
from keyfence.telemetry.candidate.standing import Asked, standing_of

from .history import Note
from .serving.backend import Backend
from .serving.candidate import CLUSTER, PackedCandidate
from .serving.packing import Packed


class Candidates:
    """Hands candidates to the backend."""

    def __init__(self, backend: Backend, note: Note) -> None:
        """`note` takes what goes into the history."""
        self.current: PackedCandidate | None = None
        self._backend = backend
        self._note = note
        self._number = 0  # of the last comparison

    async def begin(
        self, file: str, packed: Packed, purpose: str = "", published: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Compare a policy with the one in force from now on, in place of an earlier candidate. A rehearsal
        (`purpose`) takes no other's place, nor another its own: ValueError. `published` is what was signed of
        the fleet's candidate."""
        if self.current is not None and self.current.purpose != purpose:
            raise ValueError(self._taken(self.current))
        self._number += 1
        self.current = PackedCandidate(self._number, file, time.time(), packed, purpose, published)
        await self._backend.set_candidate(self.current)
        self._note(CANDIDATE, {"change": "compared", **self.current.described()})
        return self.current.described()

    @staticmethod
    def _taken(current: PackedCandidate) -> str:
        """Why another candidate cannot begin."""
        if current.purpose:
            return (
                "a cluster is rehearsed, which takes the candidate's place; "
                "end the rehearsal first: keyfence candidate drop"
            )
        return f"the candidate {current.file} is compared; drop or promote it first: keyfence candidate drop"

    async def begin_again(self, in_force: Packed) -> None:
        """Another policy is in force, so the comparison begins again. A rehearsal takes that policy."""
        if self.current is not None:
            one = self.current
            packed = in_force if one.purpose else one.packed
            await self.begin(one.file, packed, one.purpose, one.published)

    async def drop(self, change: str = "dropped") -> dict[str, Any] | None:
        """End the comparison. Returns the candidate; None if there was none. `change` is for the history."""
        dropped = self.described()
        self.current = None
        await self._backend.set_candidate(None)
        if dropped is not None:
            self._note(CANDIDATE, {"change": change, **dropped})
        return dropped

    async def show(self, in_force: CompiledPolicy) -> dict[str, Any]:
        """The candidate, how many commands were compared, and the findings that it would change."""
        if self.current is None:
            return {"candidate": None, "in_force": in_force.revision, "commands": {}, "rows": []}
        found = await self._backend.comparison()
        commands = {service: 0 for service in in_force.services if service != UNKNOWN}
        return {
            "candidate": self.described(),
            "in_force": in_force.revision,
            "commands": commands | found.commands,
            "rows": found.rows,
        }

    async def standing(self, in_force: CompiledPolicy) -> dict[str, Any]:
        """What the rehearsal of a cluster has shown of each service. `rehearsal` is None if there is none."""
        if self.current is None or self.current.purpose != CLUSTER:
            return {"rehearsal": None, "in_force": in_force.revision, "services": [], "rows": []}
        found = await self._backend.comparison()
        commands = {service: 0 for service in in_force.services if service != UNKNOWN} | found.commands
        asked = Asked(commands, in_force.written_forms(), time.time() - self.current.since)
        return {
            "rehearsal": {"for": CLUSTER, "since": self.current.since},
            "in_force": in_force.revision,
            **await answers.do(standing_of, found.rehearsed, asked),
        }

    def described(self) -> dict[str, Any] | None:
        """What operators see of the candidate; None if there is none."""
        return None if self.current is None else self.current.described()

    def told(self) -> str:
        """A line for operators about the candidate, which is loaded."""
        assert self.current is not None
        packed = self.current.packed
        if self.current.purpose:
            return f"a cluster is rehearsed with the policy {packed.name}, revision {packed.revision}"
        name = f"policy {packed.name}, revision {packed.revision}"
        return f"the candidate {self.current.file} ({name}) is compared with the policy in force"


def check_promoted(candidate: PackedCandidate, loaded: Packed) -> None:
    """Raise ValueError if the policy's own files are not the candidate."""
    if candidate.purpose:
        raise ValueError(
            "the candidate is the policy in force, to rehearse a cluster; "
            "to put that in force, write cluster: true into the policy and reload"
        )
    if candidate.published is not None and loaded.revision != candidate.packed.revision:
        number = candidate.published["sequence"]
        raise ValueError(
            f"the candidate is the fleet's; keyfence promote {number} makes it the policy of every instance"
        )
    if loaded.revision != candidate.packed.revision:
        file = loaded.settings.policy_shown
        revisions = f"{file} has the revision {loaded.revision}, the candidate {candidate.packed.revision}"
        remedy = f"write the candidate ({candidate.file}) to {file} first, so that a restart keeps it"
        raise ValueError(f"{revisions}: {remedy}")
