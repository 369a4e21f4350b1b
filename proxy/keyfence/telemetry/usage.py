"""The sink that adds up positive evidence: against which rules whose commands were checked, who used which
rights, and which parts of the policy decided.

Rule: its table is bounded by services, rules and targets of the policy. `parts` empties it. For evidence that
finds no room, it says that anything may have decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keyfence.policy.engine.command_evidence import ANYTHING, Evidence

from .sink import Sink

MAX_KINDS = 20_000  # kinds of evidence between two calls of `parts`; beyond, the counts are lost
PART_KINDS = 200  # that one part adds up, each of which takes some 10 µs

# service, kind (RULE, PART, or a kind of right), name, times, and the basis ("" for rights)
Use = tuple[str, str, str, int, str]
Kind = tuple[tuple[str, Evidence], int]  # service, evidence, times
RULE = "rule"
PART = "part"  # of the policy, which decided about a command


class Usage(Sink):
    """The evidence of one process since it was last taken."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, Evidence], int] = {}

    def asked(self, service: str, evidence: Evidence, times: int) -> None:
        key = (service, evidence)
        if key not in self._times and len(self._times) >= MAX_KINDS:
            key, times = (service, Evidence((), (), (ANYTHING,), evidence.basis)), 0
        self._times[key] = self._times.get(key, 0) + times

    def take(self) -> list[Use]:
        """The evidence so far, by service, kind, name and basis; it begins anew."""
        return _added_up(self._begin_anew())

    def parts(self) -> Iterator[list[Use]]:
        """The same, in parts that may have uses in common."""
        kinds = self._begin_anew()
        return (_added_up(kinds[at : at + PART_KINDS]) for at in range(0, len(kinds), PART_KINDS))

    def _begin_anew(self) -> list[Kind]:
        kinds = list(self._times.items())
        self._times.clear()
        return kinds


def _added_up(kinds: Iterable[Kind]) -> list[Use]:
    totals: dict[tuple[str, str, str, str], int] = {}
    for (service, evidence), times in kinds:
        keys = [(service, RULE, rule, evidence.basis) for rule in evidence.rules]
        keys += [(service, PART, part, evidence.basis) for part in evidence.parts]
        keys += [(service, kind, name, "") for kind, name in evidence.rights]
        for key in keys:
            totals[key] = totals.get(key, 0) + times
    return [(*key[:3], times, key[3]) for key, times in totals.items()]
