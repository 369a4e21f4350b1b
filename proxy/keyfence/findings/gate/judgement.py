"""The gate of a pipeline: which findings are new, and whether there was any traffic to find them in.

Rule: silence is not success. A source in which no command was evaluated gets an outcome of its own, and so
does one in which the policy has changed since commands were seen. Only a finding that enforcing its rule
would refuse, and that nobody knew of, fails the gate.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from keyfence.findings.finding import ACTIVE, AT_REST, Finding, State
from keyfence.telemetry.tally import KEY

from .baseline import Known
from .sources import Evidence


class Outcome(enum.StrEnum):
    """What the gate says; the value is for programs."""

    CLEAN = "clean"
    NEW = "new findings"
    SILENT = "no traffic"  # no command was evaluated
    UNKNOWN = "not known"  # the policy has changed since commands were evaluated, or a log is not whole

    @property
    def exit_code(self) -> int:
        return {"clean": 0, "new findings": 1}.get(self, 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """The gate's answer."""

    outcome: Outcome
    new: tuple[Finding, ...]  # these fail the gate
    advice: tuple[Finding, ...]  # new too, but a `should` is never refused
    known: int  # findings that somebody must fix, and that are not new
    closed: Mapping[str, int]  # waived, quiet and resolved findings, by state
    unseen: tuple[Known, ...]  # known by the baseline, and not in the source
    evidence: Evidence
    since: float | None  # Unix seconds
    baseline: str  # the name of the file; "" is none

    def cases(self) -> dict[tuple[str, str], list[Finding]]:
        """By service and rule: the new findings, also where there are none."""
        unknown = {(one.service, one.rule) for one in self.evidence.unjudged}
        pairs = sorted(unknown | set(self.evidence.asked))
        found: dict[tuple[str, str], list[Finding]] = {pair: [] for pair in pairs}
        for one in self.new:
            found.setdefault((one.service, one.rule), []).append(one)
        return found


def judge(
    evidence: Evidence,
    *,
    since: float | None = None,
    baseline: Sequence[Known] = (),
    baseline_name: str = "",
) -> Judgement:
    """Judge what a source has. New is what was first seen, or seen again, since a time; what a baseline does
    not list, if one is named; or everything."""
    known = {one.id for one in baseline}
    active = [one for one in evidence.findings if one.state in ACTIVE and one.service != AT_REST]
    fresh = [one for one in active if _is_new(one, evidence, since, known)]
    new = tuple(sorted((one for one in fresh if one.severity == "must"), key=_order))
    advice = tuple(sorted((one for one in fresh if one.severity != "must"), key=_order))
    closed = [one.state for one in evidence.findings if one.state not in ACTIVE]
    seen = {one.id for one in evidence.findings}
    return Judgement(
        _outcome(new, evidence),
        new,
        advice,
        len(active) - len(fresh),
        {str(state): closed.count(state) for state in (State.WAIVED, State.QUIET, State.RESOLVED)},
        tuple(one for one in baseline if one.id not in seen),
        evidence,
        since,
        baseline_name,
    )


def _outcome(new: Sequence[Finding], evidence: Evidence) -> Outcome:
    if new:
        return Outcome.NEW
    if evidence.is_silent:
        return Outcome.SILENT
    return Outcome.UNKNOWN if evidence.unjudged or evidence.dropped else Outcome.CLEAN


def _is_new(finding: Finding, evidence: Evidence, since: float | None, known: Collection[str]) -> bool:
    if since is None:
        return finding.id not in known
    return max(finding.first, evidence.reopened.get(finding.id, 0.0)) >= since


def _order(finding: Finding) -> tuple[Any, ...]:
    return finding.rule, finding.service, -finding.total, finding.id


def blocking(findings: Iterable[Finding]) -> list[Known]:
    """The findings that fail a gate which knows none, as a baseline lists them."""
    return [Known(id=one.id, **dict(zip(KEY, one.key, strict=True))) for one in findings if one.blocks]
