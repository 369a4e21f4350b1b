"""The candidate policy of one keyfence: which one it is, and what it would change.

Rule: there is one candidate at a time. Nothing here puts a policy in force: a candidate is promoted by a
reload, and only if the policy's own files have become the candidate. So a restart keeps what was promoted.
"""

from __future__ import annotations

import time
from typing import Any

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.services import UNKNOWN

from .serving.backend import Backend
from .serving.candidate import PackedCandidate
from .serving.packing import Packed


class Candidates:
    """Hands candidates to the backend."""

    def __init__(self, backend: Backend) -> None:
        self.current: PackedCandidate | None = None
        self._backend = backend
        self._number = 0  # of the last comparison

    async def begin(self, file: str, packed: Packed) -> dict[str, Any]:
        """Compare a policy with the one in force from now on, in place of an earlier candidate."""
        self._number += 1
        self.current = PackedCandidate(self._number, file, time.time(), packed)
        await self._backend.set_candidate(self.current)
        return self.current.described()

    async def begin_again(self) -> None:
        """Another policy is in force, so the comparison begins again."""
        if self.current is not None:
            await self.begin(self.current.file, self.current.packed)

    async def drop(self) -> dict[str, Any] | None:
        """End the comparison. Returns the candidate; None if there was none."""
        dropped = self.described()
        self.current = None
        await self._backend.set_candidate(None)
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

    def described(self) -> dict[str, Any] | None:
        """What operators see of the candidate; None if there is none."""
        return None if self.current is None else self.current.described()

    def told(self) -> str:
        """A line for operators about the candidate, which is loaded."""
        assert self.current is not None
        packed = self.current.packed
        name = f"policy {packed.name}, revision {packed.revision}"
        return f"the candidate {self.current.file} ({name}) is compared with the policy in force"


def check_promoted(candidate: PackedCandidate, loaded: Packed) -> None:
    """Raise ValueError if the policy's own files are not the candidate."""
    if loaded.revision != candidate.packed.revision:
        server = loaded.settings.policy_server
        file = loaded.settings.policy if server is None else server.shown
        revisions = f"{file} has the revision {loaded.revision}, the candidate {candidate.packed.revision}"
        remedy = f"write the candidate ({candidate.file}) to {file} first, so that a restart keeps it"
        raise ValueError(f"{revisions}: {remedy}")
