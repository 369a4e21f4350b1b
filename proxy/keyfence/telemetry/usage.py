"""The sink that adds up positive evidence: which rules were asked of whose commands, and who used which
rights.

Rule: its table is bounded by services, rules and rights of the policy. `take` empties it.
"""

from __future__ import annotations

from keyfence.policy.engine.evidence import Evidence

from .sink import Group, Occurrence, Sink

MAX_KINDS = 20_000  # kinds of evidence between two calls of `take`; beyond, the counts are lost

# service, kind (rule, or a kind of right), name, times
Use = tuple[str, str, str, int]


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
        if key in self._times or len(self._times) < MAX_KINDS:
            self._times[key] = self._times.get(key, 0) + times

    def take(self) -> list[Use]:
        """The evidence so far, by service, kind and name; it begins anew."""
        totals: dict[tuple[str, str, str], int] = {}
        for (service, evidence), times in self._times.items():
            for rule in evidence.rules:
                key = (service, "rule", rule)
                totals[key] = totals.get(key, 0) + times
            for kind, name in evidence.rights:
                key = (service, kind, name)
                totals[key] = totals.get(key, 0) + times
        self._times.clear()
        return [(*key, times) for key, times in totals.items()]
