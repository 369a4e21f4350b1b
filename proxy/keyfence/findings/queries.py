"""Reads the findings store.

Rule: reading never changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Float, Row, Select, Table, func, or_, select

from keyfence.telemetry.usage import PART, RULE

from .database import Database
from .filter import EVERYTHING, Filter
from .finding import ACTIONS, ACTIVE, AT_REST, EVERY_COMMAND, HOUR, Event, Finding, State
from .fleet import Known
from .history.book import STATES
from .history.chain import Head
from .history.chain import Row as HistoryRow
from .instances import Comparison, Found, Instance
from .spans import LOOKING, Span, union, without
from .tables import (
    bases,
    compared,
    comparisons,
    events,
    findings,
    findings_columns,
    heads,
    history,
    hours,
    instances,
    meta,
    policies,
    rule_hours,
    spans,
    use_hours,
    uses,
)

_CHUNK = 500  # ids of one statement
_READ_AT_ONCE = 100  # findings as a whole: each may have examples of 256 KB


_VIOLATIONS = sum((findings.c[action] for action in ACTIONS), findings.c.at_rest)
_TOTAL = (findings.c.id, findings.c.state, _VIOLATIONS.label("total"))


class Total(NamedTuple):
    """A finding's state and its violations, which are little to read."""

    id: str
    state: State
    violations: int


class Asked(NamedTuple):
    """How often commands of a service were checked against a rule, or a right used, and when last."""

    times: int
    last: float  # Unix seconds


class Blocking(NamedTuple):
    """The part of a finding that readiness needs."""

    id: str
    service: str
    rule: str
    owner: str
    entry: str
    command: str
    shape: str
    state: str
    resolved_by: str  # the revision of the policy that resolved it
    last: float  # the last violation that enforcing the rule refuses, in Unix seconds


class Drawn(NamedTuple):
    """Evidence of a service about a rule, or about a part of the policy, under one basis."""

    basis: str
    service: str
    kind: str  # RULE or PART of `telemetry.usage`
    name: str
    last: float  # Unix seconds


class Chained(NamedTuple):
    """The history as the store has it."""

    rows: list[HistoryRow]
    heads: list[Head]  # the newest first
    tails: dict[str, str]  # by instance: when it has looked since the last row that says so, as JSON
    written: Mapping[str, int] = MappingProxyType({})  # by instance: when it has written last, in Unix ms


class Reader:
    """Questions to a findings store."""

    knows_uses = True

    def __init__(self, database: Database) -> None:
        self.database = database

    def _rows(self, chosen: Select[Any]) -> Sequence[Any]:
        with self.database.reading() as connection:
            return connection.execute(chosen).all()

    def findings(self, which: Filter = EVERYTHING) -> list[Finding]:
        """The findings that a filter matches, in its order."""
        # The numbers first, because rows are long and only a few of them are wanted.
        numbers = _ordered(_matching(select(findings.c.number), which), which.sort)
        page = findings.c.number.in_(numbers.limit(which.limit).offset(which.offset))
        rows = self._rows(_ordered(select(*findings_columns).where(page), which.sort))
        return [_finding(row._mapping) for row in rows]

    def each(self) -> Iterator[Finding]:
        """All findings. They are read a few at a time, because all of them may take gigabytes."""
        chosen = select(*findings_columns).order_by(findings.c.number).limit(_READ_AT_ONCE)
        last = 0
        while rows := self._rows(chosen.where(findings.c.number > last)):
            yield from (_finding(row._mapping) for row in rows)
            last = rows[-1].number

    def count(self, which: Filter) -> int:
        """How many findings a filter matches, limit and offset aside."""
        ((number,),) = self._rows(_matching(select(func.count()).select_from(findings), which))
        return int(number)

    def blocking(self, states: Collection[State], since: float = 0.0) -> list[Blocking]:
        """The findings in these states with violations after a time that enforcing their rules refuses."""
        columns = [findings.c[name if name != "last" else "refusable"] for name in Blocking._fields]
        wanted = findings.c.state.in_([str(one) for one in states]), findings.c.refusable > since
        rows = self._rows(select(*columns).where(findings.c.severity == "must", *wanted))
        return [Blocking(*row) for row in rows]

    def last_passed(self, rule: str) -> dict[str, float]:
        """By service: when a violation of a rule was last seen that was not refused, in Unix seconds. If
        another one was refused later within the same hour, it is the time of that one."""
        cells = hours.c
        chosen = (
            select(findings.c.service, findings.c.last, func.max(cells.hour).label("hour"))
            .join(hours, findings.c.number == cells.finding)
            .where(findings.c.rule == rule, cells.observed + cells.waived + cells.late > 0)
            .group_by(findings.c.number, findings.c.service, findings.c.last)
        )
        found: dict[str, float] = {}
        for service, last, hour in self._rows(chosen):
            at = min(last, float((hour + 1) * HOUR))
            found[service] = max(at, found.get(service, 0.0))
        return found

    def state_counts(self) -> dict[State, int]:
        """The number of findings in each state that there are any in."""
        rows = self._rows(select(findings.c.state, func.count()).group_by(findings.c.state))
        return {State(state): int(number) for state, number in rows}

    def entry_counts(self) -> dict[str, int]:
        """The number of active findings by entry."""
        active = findings.c.state.in_([str(one) for one in ACTIVE])
        chosen = select(findings.c.entry, func.count()).where(active).group_by(findings.c.entry)
        return {entry: int(number) for entry, number in self._rows(chosen)}

    def owners(self) -> list[str]:
        """Everyone who owns a finding."""
        return sorted(owner for (owner,) in self._rows(select(findings.c.owner).distinct()) if owner)

    def trend(self, since: float, service: str = "") -> dict[int, dict[str, int]]:
        """The violations since the hour of a time, by hour (Unix seconds of its begin) and action. `service`
        "" is all services."""
        cells = rule_hours.c
        chosen = select(cells.hour, *_sums(rule_hours)).where(cells.hour >= int(since // HOUR))
        if service:
            chosen = chosen.where(cells.service == service)
        rows = self._rows(chosen.group_by(cells.hour).order_by(cells.hour))
        return {row.hour * HOUR: _counts(row) for row in rows}

    def commands_by_hour(self, since: float) -> dict[str, dict[int, int]]:
        """By service: the commands since the hour of a time, by hour (Unix seconds of its begin)."""
        chosen = (
            select(uses.c.service, use_hours.c.hour, use_hours.c.times)
            .join(use_hours, uses.c.number == use_hours.c.use)
            .where(uses.c.kind == RULE, uses.c.name == EVERY_COMMAND, use_hours.c.hour >= since // HOUR)
        )
        found: dict[str, dict[int, int]] = {}
        for service, hour, times in self._rows(chosen):
            cells = found.setdefault(service, {})
            cells[hour * HOUR] = cells.get(hour * HOUR, 0) + int(times)
        return found

    def finding(self, one: str) -> Finding | None:
        """The finding with this id, or whose id begins so; None if there is none, or several."""
        begins = findings.c.id.startswith(one, autoescape=True)
        rows = self._rows(select(*findings_columns).where(begins).limit(2))
        return _finding(rows[0]._mapping) if len(rows) == 1 else None

    def history(self, one: str) -> list[Event]:
        """The changes of a finding's state, the oldest first."""
        return self._events(events.c.finding == one)

    def changes(self, since: float) -> list[Event]:
        """All changes of state after a time, the oldest first."""
        return self._events(events.c.at > since)

    def changes_told(self, since: float, until: float, after: int | None) -> tuple[list[Event], int]:
        """The changes of state after a time and until another, the oldest first, and the number of the last
        change of all. With a number, also the changes with a greater one: they were written late."""
        with self.database.reading() as connection:
            last = connection.execute(select(func.max(events.c.number))).scalar_one() or 0
            is_new = (
                events.c.at > since if after is None else or_(events.c.at > since, events.c.number > after)
            )
            chosen = select(events).where(is_new, events.c.at <= until, events.c.number <= last)
            rows = connection.execute(chosen.order_by(events.c.at, events.c.number)).all()
        return [Event(row.finding, row.at, State(row.state), row.why) for row in rows], int(last)

    def totals(self, ids: Sequence[str]) -> list[Total]:
        """The state and the number of violations of the findings with these ids."""
        return [Total(row.id, State(row.state), int(row.total)) for row in self._of_ids(_TOTAL, ids)]

    def of_ids(self, ids: Sequence[str]) -> list[Finding]:
        """The findings with these ids."""
        return [_finding(row._mapping) for row in self._of_ids(findings_columns, ids)]

    def _of_ids(self, columns: Sequence[Any], ids: Sequence[str]) -> Iterator[Any]:
        for at in range(0, len(ids), _CHUNK):
            yield from self._rows(select(*columns).where(findings.c.id.in_(ids[at : at + _CHUNK])))

    def _events(self, which: ColumnElement[bool]) -> list[Event]:
        rows = self._rows(select(events).where(which).order_by(events.c.at, events.c.number))
        return [Event(row.finding, row.at, State(row.state), row.why) for row in rows]

    def hours(self, one: str, since: float = 0.0) -> dict[int, dict[str, int]]:
        """The violations of a finding by hour (Unix seconds of its begin) and action."""
        chosen = (
            select(hours)
            .join(findings, findings.c.number == hours.c.finding)
            .where(findings.c.id == one, hours.c.hour >= int(since // HOUR))
            .order_by(hours.c.hour)
        )
        return {row.hour * HOUR: _counts(row) for row in self._rows(chosen)}

    def violations_since(self, since: float) -> dict[str, dict[str, int]]:
        """By finding's id: the violations since the hour of a time, by action."""
        chosen = (
            select(findings.c.id, *_sums(hours))
            .join(hours, findings.c.number == hours.c.finding)
            .where(hours.c.hour >= int(since // HOUR))
            .group_by(findings.c.id)
        )
        return {row.id: _counts(row) for row in self._rows(chosen)}

    def asked(self, since: float, service: str = "") -> dict[tuple[str, str, str], Asked]:
        """By service, kind and name: the positive evidence since the hour of a time. `service` "" is all."""
        names = (uses.c.service, uses.c.kind, uses.c.name)
        chosen = (
            select(*names, func.sum(use_hours.c.times), func.max(uses.c.last))
            .join(use_hours, uses.c.number == use_hours.c.use)
            .where(use_hours.c.hour >= int(since // HOUR))
            .group_by(*names)
        )
        if service:
            chosen = chosen.where(uses.c.service == service)
        return {(of, kind, name): Asked(int(n), last) for of, kind, name, n, last in self._rows(chosen)}

    def last_uses(self, service: str) -> dict[tuple[str, str], float]:
        """By kind and name: when a service's right was used last, or a rule checked, in Unix seconds."""
        chosen = (
            select(uses.c.kind, uses.c.name, func.max(uses.c.last))
            .where(uses.c.service == service)
            .group_by(uses.c.kind, uses.c.name)
        )
        return {(kind, name): last for kind, name, last in self._rows(chosen)}

    def asked_of_rules(self, since: float) -> list[tuple[str, str, str, int]]:
        """How often commands of each service were checked against each rule since the hour of a time:
        service, rule, basis of the evidence, and times."""
        names = (uses.c.service, uses.c.name, uses.c.basis)
        chosen = (
            select(*names, func.sum(use_hours.c.times))
            .join(use_hours, uses.c.number == use_hours.c.use)
            .where(uses.c.kind == RULE, use_hours.c.hour >= int(since // HOUR))
            .group_by(*names)
        )
        return [(service, rule, basis, int(times)) for service, rule, basis, times in self._rows(chosen)]

    def drawn(self, since: float) -> list[Drawn]:
        """The evidence about rules and parts of policies after a time."""
        columns = [uses.c[name] for name in Drawn._fields]
        chosen = select(*columns).where(uses.c.kind.in_((RULE, PART)), uses.c.last > since)
        return [Drawn(*row) for row in self._rows(chosen)]

    def bases(self, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """By basis: the parts of those of them that the store knows."""
        chosen = select(bases.c.basis, bases.c.parts).where(bases.c.basis.in_(sorted(names)))
        return {basis: json.loads(parts) for basis, parts in self._rows(chosen)}

    def last_basis(self) -> str:
        """The basis that was put in force last, by whichever instance; "" if the store knows none."""
        chosen = select(bases.c.basis).order_by(bases.c.taken.desc(), bases.c.basis).limit(1)
        return next((str(basis) for (basis,) in self._rows(chosen)), "")

    def bases_since(self, since: float) -> tuple[list[str], float]:
        """The bases that were in force after a time, and since when the store knows bases, in Unix
        seconds."""
        with self.database.reading() as connection:
            rows = connection.execute(select(bases.c.basis, bases.c.since)).all()
            used = connection.execute(select(uses.c.basis).where(uses.c.last >= since).distinct()).scalars()
            names = set(used) - {""}
        names |= {row.basis for row in rows if row.since >= since}
        return sorted(names), min((row.since for row in rows), default=float("inf"))

    def coverage(self, service: str) -> list[Span]:
        """When keyfence was looking at a service's commands."""
        with self.database.reading() as connection:
            return coverage_of(connection, service)

    def chained(self, since: float = 0.0) -> Chained:
        """The whole history: a part of it proves nothing. With a time (Unix seconds), what tells what was in
        force after it: the chains that were written to since, without what they looked at before."""
        chosen, last = select(history), select(heads)
        if since:
            begin = int(since * 1000)
            last = last.where(heads.c.at >= begin)
            alive = select(heads.c.instance).where(heads.c.at >= begin)
            chosen = chosen.where(history.c.instance.in_(alive))
            chosen = chosen.where(or_(history.c.kind.in_(STATES), history.c.at >= begin))
        with self.database.reading() as connection:
            rows = connection.execute(chosen.order_by(history.c.at, history.c.number)).all()
            ends = connection.execute(last.order_by(heads.c.at.desc(), heads.c.instance)).all()
        kept = [Head(row.instance, row.rows, row.hash) for row in ends]
        tails = {row.instance: row.tail for row in ends}
        written = {row.instance: row.at for row in ends}
        return Chained([HistoryRow(*row) for row in rows], kept, tails, written)

    def heads(self, limit: int) -> list[Head]:
        """The last rows of the chains that were written to last, the newest first."""
        chosen = select(heads.c.instance, heads.c.rows, heads.c.hash)
        return [Head(*row) for row in self._rows(chosen.order_by(heads.c.at.desc()).limit(limit))]

    def sums_of_rules(self, since: float, until: float) -> dict[tuple[str, str], dict[str, int]]:
        """By service and rule: the violations between two times by action, and the number of `findings`. A
        whole hour counts."""
        cells = rule_hours.c
        chosen = (
            select(cells.service, cells.rule, *_sums(rule_hours))
            .where(cells.hour >= int(since // HOUR), cells.hour < until / HOUR)
            .group_by(cells.service, cells.rule)
        )
        found = {(row.service, row.rule): _counts(row) for row in self._rows(chosen)}
        seen = (
            select(findings.c.service, findings.c.rule, func.count())
            .where(findings.c.last >= since, findings.c.first < until)
            .group_by(findings.c.service, findings.c.rule)
        )
        for service, rule, number in self._rows(seen):
            found.setdefault((service, rule), {})["findings"] = int(number)
        return found

    def counted_since(self) -> float:
        """From when on violations are known: older ones are deleted. In Unix seconds."""
        ((hour,),) = self._rows(select(func.min(rule_hours.c.hour)))
        return self.began() if hour is None else float(hour * HOUR)

    def began(self) -> float:
        """When the store was made, in Unix seconds."""
        ((began,),) = self._rows(select(meta.c.began))
        return float(began)

    def instances(self) -> list[Instance]:
        """What the instances that write to this store said of themselves last."""
        chosen = select(instances).order_by(instances.c.environment, instances.c.name, instances.c.started)
        return [Instance(**row._mapping) for row in self._rows(chosen)]

    def comparisons(self) -> list[Found]:
        """What instances have said of the fleet's candidate, and found by it. They may have ended."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows(select(compared).order_by(compared.c["count"].desc())):
            values = dict(row._mapping)
            rows.setdefault(values.pop("id"), []).append(values)
        chosen = select(comparisons).order_by(comparisons.c.name, comparisons.c.since)
        found = (Comparison(**row._mapping) for row in self._rows(chosen))
        return [Found(one, rows.get(one.id, [])) for one in found]

    def fleet(self) -> Known:
        """What `fleet_of` needs of this store."""
        return Known(self.instances(), self.state_counts(), self.comparisons())

    def policies(self) -> list[tuple[float, str, str]]:
        """When which policy was put in force, with its revision; the oldest first."""
        rows = self._rows(select(policies).order_by(policies.c.at))
        return [(row.at, row.policy, row.revision) for row in rows]


def coverage_of(connection: Connection, service: str) -> list[Span]:
    """When keyfence was looking at a service's commands: at least one instance was, and none passed them
    unread."""
    rows = connection.execute(select(spans).where(spans.c.service.in_(("", service)))).all()
    looking = [Span(row.begin, row.end) for row in rows if row.kind == LOOKING]
    return without(union(looking), [Span(row.begin, row.end) for row in rows if row.kind != LOOKING])


def _sums(table: Table) -> list[ColumnElement[Any]]:
    """The sum of each action's counts, under the action's name."""
    return [func.sum(table.c[action]).label(action) for action in ACTIONS]


def _counts(row: Row[Any]) -> dict[str, int]:
    return {action: int(row._mapping[action]) for action in ACTIONS}


def _matching(chosen: Select[Any], which: Filter) -> Select[Any]:
    table = findings.c
    for name in ("service", "rule", "owner"):
        if value := getattr(which, name):
            chosen = chosen.where(table[name] == value)
    if which.state:
        chosen = chosen.where(table.state.in_([str(one) for one in which.state]))
    if which.entry:
        chosen = chosen.where(or_(table.entry == which.entry, table.shape == which.entry))
    if which.since:
        chosen = chosen.where(table.last >= which.since)
    if which.text:
        columns = (table.id, table.service, table.rule, table.command, table.entry, table.shape)
        wanted = [
            one.icontains(which.text, autoescape=True) for one in (*columns, table.hint, table.examples)
        ]
        chosen = chosen.where(or_(*wanted))
    return chosen


def _ordered(chosen: Select[Any], sort: str) -> Select[Any]:
    if sort in ("cause", "violations"):
        return chosen.order_by(_VIOLATIONS.desc(), findings.c.id)
    column = findings.c[sort]
    is_time = isinstance(column.type, Float)
    return chosen.order_by(column.desc() if is_time else column, findings.c.id)


def _finding(row: Mapping[Any, Any]) -> Finding:
    values = {name: row[name] for name in Finding.__dataclass_fields__ if name in row}
    return Finding(
        **values
        | {
            "state": State(row["state"]),
            "counts": {action: row[action] for action in ACTIONS if row[action]}
            | ({AT_REST: row["at_rest"]} if row["at_rest"] else {}),
            "clients": json.loads(row["clients"]),
            "examples": json.loads(row["examples"]),
        }
    )
