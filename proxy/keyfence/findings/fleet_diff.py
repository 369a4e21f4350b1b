"""The fleet's candidate as one picture: who compares it, on how many commands, and what it would change.

Rule: no I/O. What several instances have found is added up, and nothing is added twice. An instance that does
not compare the candidate is named with the reason, because its traffic proves nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keyfence.policy.units import counted, named, plural

from .fleet import Known, Line, environment_name, fleet_of, is_silent, short_time
from .instances import COUNTS, SAME, Comparison, Found, Instance, add_row

STRICTER, MILDER = ("new", "stricter"), ("milder", "gone")
ORDER = (*STRICTER, *MILDER, SAME)
MAX_ROWS = 1_000  # in the picture
_BY_RULE = ("change", "service", "rule")
_WHY = {
    "refused": "refuses it",
    "busy": "compares a candidate of its own, which an operator has loaded there",
    "dropped": "does not compare it: an operator has ended it there",
    "loading": "has not loaded it yet",
}


class _Group(NamedTuple):
    """One candidate, and what concerns it."""

    candidate: Mapping[str, Any]  # what was signed of it
    found: Sequence[Found]  # what is added up
    alive: Sequence[Comparison]  # those that compare it now
    others: Sequence[tuple[Instance, str]]  # those that should and do not, with the reason


def whole_picture(stores: Iterable[Known], now: float) -> dict[str, Any]:
    """The picture of the fleet, with its candidates."""
    stores = list(stores)
    return fleet_of(stores, now) | {"candidates": candidates_of(stores, now)}


def candidates_of(stores: Iterable[Known], now: float) -> list[dict[str, Any]]:
    """Each candidate that instances of some stores compare, or refuse, as plain values for JSON."""
    stores = list(stores)
    instances = {one.id: one for store in stores for one in store.instances}  # a store may be named twice
    found = {one.comparison.id: one for store in stores for one in store.comparisons}
    return [_shown(group, now) for group in _groups(instances.values(), found, now)]


def _groups(instances: Iterable[Instance], found: Mapping[str, Found], now: float) -> Iterator[_Group]:
    """A group for each policy and candidate. Within an environment the newest candidate counts."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    of_environment: dict[tuple[str, str], list[Instance]] = {}
    for one in instances:
        of_environment.setdefault((one.policy, one.environment), []).append(one)
    for (policy, _), some in sorted(of_environment.items()):
        said = [found[one.id].comparison for one in some if one.id in found and not is_silent(one, now)]
        comparing = [one for one in said if one.state == "comparing"]
        newest = max(comparing, key=lambda one: (_signed(one)["sequence"], one.since), default=None)
        if said:
            groups.setdefault((policy, newest.digest if newest is not None else ""), []).extend(some)
    for (policy, digest), some in groups.items():
        if not digest and len([one for one in groups if one[0] == policy]) > 1:
            continue  # told beside the candidate that other environments compare
        refusing = groups.get((policy, ""), []) if digest else []
        yield _group([*some, *refusing], digest, found, now)


def _group(instances: Sequence[Instance], digest: str, found: Mapping[str, Found], now: float) -> _Group:
    here = [
        found[one.id].comparison
        for one in instances
        if digest
        and one.id in found
        and found[one.id].comparison.digest == digest
        and not is_silent(one, now)
    ]
    in_force = {one.revision for one in here}
    added = [
        one
        for one in found.values()
        if digest and one.comparison.digest == digest and one.comparison.revision in in_force
    ]
    others = [(one, _why(one, found.get(one.id), now)) for one in instances if one.id not in _ids(here)]
    return _Group(_signed(here[0]) if here else {}, added, here, others)


def _ids(found: Iterable[Comparison]) -> set[str]:
    return {one.id for one in found}


def _signed(one: Comparison) -> Mapping[str, Any]:
    """What was signed of the candidate that an instance compares."""
    return {"sequence": 0, **json.loads(one.candidate)}


def _why(one: Instance, found: Found | None, now: float) -> str:
    """Why an instance does not compare the candidate."""
    if is_silent(one, now):
        return "is silent"
    if found is None:
        return "does not compare it: it takes its policy from elsewhere, or has not reported it yet"
    said = found.comparison
    if said.state == "comparing":
        return f"still compares candidate {_signed(said)['sequence']}"
    return f"{_WHY.get(said.state, said.state)}{f': {said.reason}' if said.reason else ''}"


# -- as plain values


def _shown(group: _Group, now: float) -> dict[str, Any]:
    commands: Counter[str] = Counter()
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in group.found:
        commands.update(json.loads(one.comparison.commands))
        for row in one.rows:
            add_row(rows, row)
    ordered = sorted(rows.values(), key=lambda row: (ORDER.index(row["change"]), -row["count"]))
    found = [one.comparison for one in group.found]
    return {
        "candidate": dict(group.candidate),
        "since": min((one.since for one in found), default=None),
        "commands": dict(sorted(commands.items())),
        "comparing": len(group.alive),
        "ended": len(_ids(found) - _ids(group.alive)),
        "instances": [*map(_comparing, group.alive), *(_other(one, why) for one, why in group.others)],
        "totals": _totals(ordered),
        "by_rule": _by_rule(ordered),
        "rows": [row for row in ordered if row["change"] != SAME][:MAX_ROWS],
        "lines": [one._asdict() for one in _lines(group, now)],
    }


def _comparing(one: Comparison) -> dict[str, Any]:
    return {
        "name": one.name,
        "environment": one.environment,
        "state": one.state,
        "why": "",
        "revision": one.revision,
        "sequence": one.sequence,
        "since": one.since,
        "commands": sum(json.loads(one.commands).values()),
    }


def _other(one: Instance, why: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "environment": one.environment,
        "state": "not comparing",
        "why": why,
        "revision": one.revision,
        "sequence": one.sequence,
        "since": None,
        "commands": 0,
    }


def _totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many violations each change has, and how many would be refused that are not, or the reverse."""
    found = dict.fromkeys((*ORDER, "newly_refused", "newly_allowed"), 0)
    for row in rows:
        found[row["change"]] += row["count"]
        found["newly_refused"] += newly_refused(row)
        found["newly_allowed"] += newly_allowed(row)
    return found


def newly_refused(row: Mapping[str, Any]) -> int:
    """The candidate would refuse for these, and the policy in force does not."""
    return int(row["refused"]) if row["change"] in STRICTER else 0


def newly_allowed(row: Mapping[str, Any]) -> int:
    """The policy in force refuses for these, and the candidate would not. Actions are the candidate's unless
    the finding is gone."""
    if row["change"] == "gone":
        return int(row["refused"])
    return int(row["count"]) if row["change"] == "milder" else 0


def _by_rule(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows added up by change, service and rule, with an example."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        if row["change"] != SAME:
            add_row(found, row, _BY_RULE)
    names = (*_BY_RULE, *COUNTS, "first", "last", "example", "hint")
    return [
        {name: row[name] for name in names}
        | {"newly_refused": newly_refused(row), "newly_allowed": newly_allowed(row)}
        for row in found.values()
    ]


# -- in sentences


def _lines(group: _Group, now: float) -> Iterator[Line]:
    for one, why in group.others:
        where = f" ({one.environment})" if one.environment else ""
        yield Line(f"{one.name}{where} {why}", is_wrong=True)
    base = group.candidate.get("base")
    newer = sorted({one.sequence for one in group.alive if base is not None and one.sequence > base})
    if newer:
        yield Line(
            f"the candidate is based on version {base}, and {newer[-1]} is in force: it is compared with "
            "that, and would undo what that has changed; push the candidate again",
            is_wrong=True,
        )
    revisions: dict[str, list[Comparison]] = {}
    for said in group.alive:
        revisions.setdefault(said.revision, []).append(said)
    if len(revisions) > 1:
        parts = [
            f"{counted(len(some), 'instance')} {plural(len(some), 'compares', 'compare')} it with {revision}"
            f"{_where(some)}"
            for revision, some in revisions.items()
        ]
        yield Line(", ".join(parts))
    if group.alive:
        latest = max(one.since for one in group.alive)
        first = min(one.since for one in group.alive)
        if latest - first > 60:
            late = [one.name for one in group.alive if one.since - first > 60]
            yield Line(f"{named(late)} began later, the last one at {short_time(latest, now)}")


def _where(some: Iterable[Comparison]) -> str:
    names = sorted({one.environment for one in some})
    return f" ({named([environment_name(one) for one in names])})" if names != [""] else ""
