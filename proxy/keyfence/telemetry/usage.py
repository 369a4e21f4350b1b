"""The sink that adds up positive evidence: which rules were asked of whose commands, who used which rights,
and which parts of the policy decided.

Rule: its table is bounded by services, rules and targets of the policy. `take` empties it. For evidence that
finds no room, it says that anything may have decided.
"""

from __future__ import annotations

from keyfence.policy.engine.evidence import ANYTHING, Evidence

from .sink import Group, Occurrence, Sink

MAX_KINDS = 20_000  # kinds of evidence between two calls of `take`; beyond, the counts are lost

# service, kind (RULE, PART, or a kind of right), name, times, and the basis ("" for rights)
Use = tuple[str, str, str, int, str]
RULE = "rule"
PART = "part"  # of the policy, which decided about a command


class Usage(Sink):
    """The evidence of one process since it was last taken."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, Evidence], int] = {}

    def record(self, _group: Group, _found: Occurrence) -> str:
        return ""

    def repeat(self, _group: Group, _times: int, _now: float, _at: float) -> None:
        pass

    def asked(self, service: str, evidence: Evidence, times: int) -> None:
        key = (service, evidence)
        if key not in self._times and len(self._times) >= MAX_KINDS:
            key, times = (service, Evidence((), (), (ANYTHING,), evidence.basis)), 0
        self._times[key] = self._times.get(key, 0) + times

    def take(self) -> list[Use]:
        """The evidence so far, by service, kind, name and basis; it begins anew."""
        totals: dict[tuple[str, str, str, str], int] = {}
        for (service, evidence), times in self._times.items():
            keys = [(service, RULE, rule, evidence.basis) for rule in evidence.rules]
            keys += [(service, PART, part, evidence.basis) for part in evidence.parts]
            keys += [(service, kind, name, "") for kind, name in evidence.rights]
            for key in keys:
                totals[key] = totals.get(key, 0) + times
        self._times.clear()
        return [(*key[:3], times, key[3]) for key, times in totals.items()]
