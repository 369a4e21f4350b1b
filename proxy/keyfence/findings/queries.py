"""Reads the findings store.

Rule: reading never changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, or_, select

from .database import Database
from .filter import EVERYTHING, Filter
from .finding import ACTIONS, HOUR, Event, Finding, State
from .spans import Span, union, without
from .tables import events, findings, hours, meta, policies, spans, use_hours, uses

LOOKING, PASSTHROUGH, OPAQUE = "looking", "passthrough", "opaque"  # kinds of spans


class Asked(NamedTuple):
    """How often a rule was asked of a service, or a right used, and when last."""

    times: int
    last: float  # Unix seconds


class Reader:
    """Questions to a findings store."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def findings(self, which: Filter = EVERYTHING) -> list[Finding]:
        """The findings that a filter matches, those with the most violations first."""
        with self.database.reading() as connection:
            chosen = _ordered(_matching(select(findings), which)).limit(which.limit).offset(which.offset)
            rows = connection.execute(chosen).mappings().all()
        return [_finding(row) for row in rows]

    def count(self, which: Filter) -> int:
        """How many findings a filter matches, limit and offset aside."""
        with self.database.reading() as connection:
            chosen = _matching(select(func.count()).select_from(findings), which)
            return int(connection.execute(chosen).scalar_one())

    def finding(self, one: str) -> Finding | None:
        """The finding with this id, or whose id begins so; None if there is none, or several."""
        with self.database.reading() as connection:
            chosen = select(findings).where(findings.c.id.startswith(one, autoescape=True)).limit(2)
            rows = connection.execute(chosen).mappings().all()
        return _finding(rows[0]) if len(rows) == 1 else None

    def history(self, one: str) -> list[Event]:
        """The changes of a finding's state, the oldest first."""
        with self.database.reading() as connection:
            chosen = select(events).where(events.c.finding == one).order_by(events.c.at, events.c.number)
            rows = connection.execute(chosen).all()
        return [Event(row.finding, row.at, State(row.state), row.why) for row in rows]

    def changes(self, since: float) -> list[Event]:
        """All changes of state after a time, the oldest first."""
        with self.database.reading() as connection:
            chosen = select(events).where(events.c.at > since).order_by(events.c.at, events.c.number)
            rows = connection.execute(chosen).all()
        return [Event(row.finding, row.at, State(row.state), row.why) for row in rows]

    def hours(self, one: str, since: float = 0.0) -> dict[int, dict[str, int]]:
        """The violations of a finding by hour (Unix seconds of its begin) and action."""
        with self.database.reading() as connection:
            chosen = (
                select(hours)
                .join(findings, findings.c.number == hours.c.finding)
                .where(findings.c.id == one, hours.c.hour >= int(since // HOUR))
                .order_by(hours.c.hour)
            )
            rows = connection.execute(chosen).mappings().all()
        return {row["hour"] * HOUR: {action: row[action] for action in ACTIONS} for row in rows}

    def violations_since(self, since: float) -> dict[str, dict[str, int]]:
        """By finding's id: the violations since the hour of a time, by action."""
        with self.database.reading() as connection:
            sums = [func.sum(hours.c[action]).label(action) for action in ACTIONS]
            chosen = (
                select(findings.c.id, *sums)
                .join(hours, findings.c.number == hours.c.finding)
                .where(hours.c.hour >= int(since // HOUR))
                .group_by(findings.c.id)
            )
            rows = connection.execute(chosen).mappings().all()
        return {row["id"]: {action: int(row[action]) for action in ACTIONS} for row in rows}

    def asked(self, since: float) -> dict[tuple[str, str, str], Asked]:
        """By service, kind and name: the positive evidence since the hour of a time."""
        with self.database.reading() as connection:
            chosen = (
                select(uses, func.sum(use_hours.c.times).label("times"))
                .join(use_hours, uses.c.number == use_hours.c.use)
                .where(use_hours.c.hour >= int(since // HOUR))
                .group_by(*uses.c)
            )
            rows = connection.execute(chosen).all()
        return {(row.service, row.kind, row.name): Asked(int(row.times), row.last) for row in rows}

    def coverage(self, service: str) -> list[Span]:
        """When keyfence was looking at a service's commands."""
        with self.database.reading() as connection:
            return coverage_of(connection, service)

    def began(self) -> float:
        """When the store was made, in Unix seconds."""
        with self.database.reading() as connection:
            return float(connection.execute(select(meta.c.began)).scalar_one())

    def policies(self) -> list[tuple[float, str, str]]:
        """When which policy was put in force, with its revision; the oldest first."""
        with self.database.reading() as connection:
            rows = connection.execute(select(policies).order_by(policies.c.at)).all()
        return [(row.at, row.policy, row.revision) for row in rows]


def coverage_of(connection: Connection, service: str) -> list[Span]:
    """When keyfence was looking at a service's commands: at least one instance was, and none passed them
    unread."""
    rows = connection.execute(select(spans).where(spans.c.service.in_(("", service)))).all()
    looking = [Span(row.begin, row.end) for row in rows if row.kind == LOOKING]
    return without(union(looking), [Span(row.begin, row.end) for row in rows if row.kind != LOOKING])


def _matching(chosen: Select[Any], which: Filter) -> Select[Any]:
    table = findings.c
    for column, value in ((table.service, which.service), (table.rule, which.rule)):
        if value:
            chosen = chosen.where(column == value)
    if which.owner:
        chosen = chosen.where(table.owner == which.owner)
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


def _ordered(chosen: Select[Any]) -> Select[Any]:
    total = sum((findings.c[action] for action in ACTIONS[1:]), findings.c[ACTIONS[0]])
    return chosen.order_by(total.desc(), findings.c.id)


def _finding(row: Mapping[Any, Any]) -> Finding:
    values = {name: row[name] for name in Finding.__dataclass_fields__ if name in row}
    return Finding(
        **values
        | {
            "state": State(row["state"]),
            "counts": {action: row[action] for action in ACTIONS if row[action]},
            "clients": json.loads(row["clients"]),
            "examples": json.loads(row["examples"]),
        }
    )
