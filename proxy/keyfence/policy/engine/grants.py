"""Which grants a service has of a command, and what they cover.

Rule: a grant covers keys of its own file only. What no file claims needs a grant of each file that claims
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyfence.commands.model import Access
from keyfence.policy.compiled.policy import CompiledPolicy, Grant, Target, beginning_of

from .evaluation import Evaluation

MAX_GRANTS_KNOWN = 10_000  # services and commands; clients can invent names of unknown commands


class Grants:
    """Answers what the grants of one policy cover."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self._policy = policy
        self._known: dict[tuple[int, str], list[Grant]] = {}
        # Each of these files must grant an access to a key that no file claims.
        self.unclaimed_by = {number for number, home in enumerate(policy.homes) if not home.claims} or set(
            range(len(policy.homes))
        )

    def forget(self) -> None:
        """Forgets all kept answers, because the command table has changed."""
        self._known.clear()

    def of(self, service: int, name: str) -> list[Grant]:
        """Returns the service's grants of the command of this name; of "", those of every command."""
        known = self._known.get((service, name))
        if known is None:
            known = self._policy.grants_of(service, name)
            if len(self._known) < MAX_GRANTS_KNOWN:
                self._known[service, name] = known
        return known

    def cover(self, evaluation: Evaluation, access: Access, target: Target | None) -> bool:
        """Whether the caller's grants of the command cover a key of this target."""
        grants = self.of(evaluation.service, evaluation.name)
        if not grants:
            return False
        granting = {one.home for one in grants if one.covers(access.key, target)}
        return bool(granting) and (target is not None or granting >= self.unclaimed_by)

    def are_on_all_keys(self, grants: Iterable[Grant], glob: bytes = b"*") -> bool:
        """Whether these grants cover a pattern of keys as it is written, or every key. Each file whose keys
        it can match must grant it."""
        granting = {grant.home for grant in grants if b"*" in grant.texts or glob in grant.texts}
        return bool(granting) and granting >= self._files_of(glob)

    def _files_of(self, glob: bytes) -> set[int]:
        """Returns the files whose keys a pattern can match, by their number."""
        claims = [
            (claim.encode(), number)
            for number, home in enumerate(self._policy.homes)
            for claim in home.claims
        ]
        begun = beginning_of(glob)
        around = max((one for one in claims if begun.startswith(one[0])), default=None)
        if around is None:
            return set(range(len(self._policy.homes)))
        return {around[1]} | {number for claim, number in claims if claim.startswith(begun)}
