"""The sources of the gate: the findings of a store, of a running keyfence, or of a decision log.

Rule: a source says whether commands were evaluated, apart from what was found in them. A decision log holds
violations only, so an empty one is silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyfence.findings.filter import Filter
from keyfence.findings.finding import Finding, State, Unjudged, after_violations, finding_id, of_row
from keyfence.telemetry.tally import Row

if TYPE_CHECKING:  # SQLAlchemy takes a fifth of a second to import
    from keyfence.findings.queries import Reader

MANY = 1_000_000  # more than a store holds
_FIELDS = frozenset(one.name for one in dataclasses.fields(Finding))


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What a source has: findings, and the traffic that they were found in."""

    findings: Sequence[Finding]
    # By service and rule: how many commands were checked against the rule; of a decision log, how many broke
    # it.
    asked: Mapping[tuple[str, str], int]
    commands: int | None  # that were evaluated; None: the source does not count them
    is_silent: bool
    reopened: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unjudged: Sequence[Unjudged] = ()  # of a decision log, this is not known
    dropped: int = 0  # violations that a decision log leaves out


def of_store(reader: Reader, since: float) -> Evidence:
    """What a store has, of all that wrote to it. `since` 0 is everything. The policy in force is the one that
    was put in force last."""
    from keyfence.findings.views import Views

    findings = reader.findings(Filter(limit=MANY))
    return _evidence(findings, Views(reader).evidence(since), since)


def of_answers(findings: Iterable[Mapping[str, Any]], answer: Mapping[str, Any], since: float) -> Evidence:
    """What a running keyfence answers: its findings, and `GET /evidence`. Raises KeyError, TypeError or
    ValueError for anything else."""
    by_id = {one.id: one for one in map(_from_object, findings)}
    return _evidence(list(by_id.values()), answer, since)


def _evidence(findings: Sequence[Finding], answer: Mapping[str, Any], since: float) -> Evidence:
    last = answer["last"]
    return Evidence(
        findings,
        asked={(str(one["service"]), str(one["rule"])): int(one["commands"]) for one in answer["asked"]},
        commands=int(answer["commands"]),
        is_silent=last is None or float(last) < since,
        reopened={str(one): float(at) for one, at in answer["reopened"].items()},
        unjudged=tuple(
            Unjudged(str(one["service"]), str(one["rule"]), float(one["last"]), str(one["why"]))
            for one in answer["unjudged"]
        ),
    )


def of_rows(rows: Iterable[Row], since: float, dropped: int = 0) -> Evidence:
    """What a decision log has, by the rows of `telemetry.reports.by_command`. `dropped`: violations that it
    leaves out."""
    findings = [of_row(row, after_violations(None, row["actions"])[0]) for row in rows]
    seen = [one for one in findings if one.last >= since]
    asked: dict[tuple[str, str], int] = {}
    for one in seen:
        asked[one.service, one.rule] = asked.get((one.service, one.rule), 0) + one.total
    return Evidence(findings, asked, None, not seen, dropped=dropped)


def _from_object(value: Mapping[str, Any]) -> Finding:
    found = Finding(**{name: value[name] for name in _FIELDS} | {"state": State(value["state"])})
    if found.id != finding_id(found.key):
        raise ValueError(f"the finding {found.id!r} has another id than its names give")
    return found
