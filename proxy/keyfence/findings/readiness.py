"""Readiness: which rules can be enforced for which services, and what is left to do for the others.

Rule: a rule is ready only on positive evidence that holds under the policy in force: commands of the service
were asked of it, keyfence was looking for the whole quiet time, and none broke it. Time in which it was not
looking counts for nothing, nor does what was seen before a part of the policy changed that decided about it.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keyfence.policy.enforcement.modes import BYPASS, keeps_in
from keyfence.policy.rules import RULES
from keyfence.policy.units import clock_text, counted

from .finding import AT_REST, HOUR, Finding, State
from .proof.basis import InForce
from .proof.worth import Began, Worth
from .queries import Blocking, Reader
from .spans import Span, seconds, span_text

NOTHING_IN_FORCE = InForce()


class Readiness(enum.StrEnum):
    """The standing of a rule for a service."""

    ENFORCED = "enforced"
    READY = "ready"
    NOT_READY = "not ready"  # violations that enforcing would refuse
    NO_TRAFFIC = "no traffic"  # no command was checked against the rule
    GAP = "gap"  # keyfence has not been looking for long enough, or could not see everything
    DISABLED = "disabled"


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Whether a rule can be enforced for a service, and why."""

    service: str
    rule: str
    readiness: Readiness
    asked: int  # commands that were checked against the rule within the quiet time
    findings: tuple[str, ...]  # ids of those that are left
    owners: tuple[str, ...]  # of these
    last: float | None  # the last violation that enforcing would refuse, in Unix seconds
    wait: float  # seconds for which keyfence must still look, if nothing happens
    began: Began | None = None  # when the evidence began again, if it did so within the quiet time
    bypassed: bool = False  # the service was told addresses of Redis, so it may go past keyfence

    @property
    def why(self) -> str:
        """What is left to do, in a few words."""
        if self.readiness is Readiness.NOT_READY:
            number = len(self.findings)
            owners = f" ({', '.join(self.owners)})" if self.owners else ""
            return f"{counted(number, 'finding')}{owners}"
        if self.readiness is Readiness.GAP and self.bypassed:
            what = "the service knows addresses of Redis, where keyfence sees nothing"
            return f"{what}; enforce {BYPASS} without a waiver"
        if self.readiness is Readiness.GAP:
            return f"observe for another {span_text(self.wait)}{self._began_again}"
        return ""

    @property
    def _began_again(self) -> str:
        if self.began is None:
            return ""
        return f": its window began again at {clock_text(self.began.at)} because {self.began.why}"

    def as_object(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "began"}
        since = self.began.at if self.began is not None else None
        return {**values, "readiness": str(self.readiness), "why": self.why, "began": since}


def standings(
    reader: Reader,
    modes: Mapping[str, Mapping[str, str]],
    quiet: float,
    now: float,
    in_force: InForce = NOTHING_IN_FORCE,
) -> list[Standing]:
    """The standing of each rule for each service of a matrix of modes (`Modes.matrix`), in its order. `quiet`
    is for how many seconds keyfence must have looked without a violation."""
    services = list(next(iter(modes.values()), {}))
    looking = {service: reader.coverage(service) for service in services}
    begins = {service: window(looking[service], quiet, now) for service in services}
    earliest = min((begin for begin in begins.values() if begin is not None), default=now)
    told = reader.last_passed(BYPASS)
    waiving = {one for one in told if in_force.modes is not None and in_force.modes.may_waive(one, BYPASS)}
    of_bypass = modes.get(BYPASS, {})
    leaving = {one for one in told if not keeps_in(of_bypass.get(one), is_waived=one in waiving)}
    knew = {one: at for one, at in told.items() if one not in leaving}
    # Uses are counted by hour. All evidence of the first one is weighed, because all its uses count.
    drawn = reader.drawn(earliest // HOUR * HOUR - 1.0)
    worth = Worth(in_force.basis, drawn, reader.bases, knew)
    asked = _asked(reader, earliest, worth)
    limits = {service: quiet_since(looking[service], quiet, now) for service in services}
    left: dict[tuple[str, str], list[Blocking]] = {}
    for one in sorted(reader.blocking(frozenset(State), min(limits.values(), default=0.0))):
        is_left = not is_resolved(one, in_force) and not is_waived(one, in_force)
        if is_left and one.last > limits.get(one.service, 0.0):
            left.setdefault((one.service, one.rule), []).append(one)
    found = []
    for rule, by_service in modes.items():
        for service, mode in by_service.items():
            times = asked.get((service, rule), 0)
            began = worth.began(service, rule)
            since = max(began.at if began is not None else 0.0, begins[service] or 0.0)
            missing = max(0.0, quiet - seconds(looking[service], since, math.inf))
            missing = missing if missing > ROUNDING else 0.0
            began = began if missing else None
            standing = _standing(service, rule, mode, times, left.get((service, rule), []), missing, began)
            bypassed = service in leaving and rule != BYPASS
            if bypassed and standing.readiness in (Readiness.READY, Readiness.GAP):
                standing = dataclasses.replace(standing, readiness=Readiness.GAP, bypassed=True)
            found.append(standing)
    return found


ROUNDING = 1e-3  # seconds


def _asked(reader: Reader, since: float, worth: Worth) -> dict[tuple[str, str], int]:
    """By service and rule: how many commands that count as evidence were checked against the rule."""
    found: dict[tuple[str, str], int] = {}
    for service, rule, basis, times in reader.asked_of_rules(since):
        if worth.counts(service, rule, basis) and worth.asked_after(service, rule):
            found[service, rule] = found.get((service, rule), 0) + times
    return found


def _standing(
    service: str,
    rule: str,
    mode: str,
    asked: int,
    left: Sequence[Blocking],
    missing: float,
    began: Began | None,
) -> Standing:
    readiness = Readiness.READY
    if mode == "disabled":
        readiness = Readiness.DISABLED
    elif mode == "enforce":
        readiness = Readiness.ENFORCED
    elif left:
        readiness = Readiness.NOT_READY
    elif not asked and began is None:
        readiness = Readiness.NO_TRAFFIC
    elif missing:
        readiness = Readiness.GAP
    ids = tuple(one.id for one in left)
    owners = tuple(sorted({one.owner for one in left if one.owner}))
    last = max((one.last for one in left), default=None)
    return Standing(service, rule, readiness, asked, ids, owners, last, missing, began)


def is_resolved(finding: Finding | Blocking, in_force: InForce) -> bool:
    """Whether the policy in force allows a finding as a whole. Another policy may have resolved it."""
    policy = in_force.policy
    is_current = policy is None or finding.service == AT_REST or finding.resolved_by == policy.revision
    return finding.state == State.RESOLVED and is_current


def is_waived(finding: Finding | Blocking, in_force: InForce) -> bool:
    """Whether a waiver in force covers all of a finding."""
    return in_force.waives_all(finding.service, finding.rule, finding.entry, finding.command, finding.shape)


def may_be_refused(finding: Finding, in_force: InForce = NOTHING_IN_FORCE) -> bool:
    """Whether commands of a finding would be refused if its rule were enforced."""
    return (
        finding.severity == "must"
        and finding.service != AT_REST
        and not is_resolved(finding, in_force)
        and not is_waived(finding, in_force)
    )


def window(looking: Sequence[Span], quiet: float, now: float) -> float | None:
    """When the last `quiet` seconds of looking began; None if keyfence has not been looking."""
    begin = None
    left = quiet
    for span in reversed(looking):
        begin = max(span.begin, min(span.end, now) - left)
        left -= max(0.0, min(span.end, now) - span.begin)
        if left <= 0:
            break
    return begin


def quiet_since(looking: Sequence[Span], quiet: float, now: float) -> float:
    """A violation after this time was within the last `quiet` seconds of looking."""
    begin = window(looking, quiet, now)
    return 0.0 if begin is None or seconds(looking, begin, now) < quiet else begin


def is_ready(found: Iterable[Standing]) -> bool:
    """Whether every rule against which commands were checked is ready or enforced, and there is one."""
    asked = [one for one in found if one.readiness not in (Readiness.NO_TRAFFIC, Readiness.DISABLED)]
    return bool(asked) and all(one.readiness in (Readiness.READY, Readiness.ENFORCED) for one in asked)


def mode_lines(found: Sequence[Standing]) -> list[dict[str, str]]:
    """The lines of `modes:` that would enforce what is ready, in the order of the rules."""
    lines = []
    for rule in RULES:
        of_rule = [one for one in found if one.rule == rule]
        ready = [one for one in of_rule if one.readiness is Readiness.READY]
        if ready and all(one.readiness in (Readiness.READY, Readiness.ENFORCED) for one in of_rule):
            lines.append({"rule": rule, "mode": "enforce"})
        else:
            lines += [{"rule": rule, "service": one.service, "mode": "enforce"} for one in ready]
    return lines
