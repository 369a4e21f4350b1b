"""Rows as telemetry counts them, and batches of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from keyfence.findings.batch import Batch
from keyfence.findings.database import Database
from keyfence.findings.finding import ACTIONS, DAY
from keyfence.findings.spans import Span
from keyfence.findings.store import Store
from keyfence.findings.tables import findings, hours, rule_hours
from keyfence.telemetry.tally import Row

NOON = 1_700_000_000.0 // DAY * DAY + DAY / 2  # Unix seconds


def row(
    times: int = 1, at: float = NOON, action: str = "observed", key: str = "order:7", **fields: Any
) -> Row:
    """A row of increments: `times` violations at a time."""
    example = {"at": at, "decision": "d-1", "key": key, "client": {"address": "10.0.0.7"}, "command": {}}
    values = {
        "service": "shop",
        "rule": "scope.write",
        "severity": "must",
        "command": "SET",
        "entry": "order",
        "shape": "",
        "count": times,
        "actions": {action: times},
        "first": at,
        "last": at,
        "clients": [{"address": "10.0.0.7"}],
        "example": key,
        "hint": "its writers: billing",
        "revision": "r1",
        "contact": "billing@x",
        "examples": [example],
    }
    return Row(**(values | fields))  # type: ignore[typeddict-item]


def batch(*rows: Row, at: float = NOON, asked: int = 0, service: str = "shop") -> Batch:
    """A batch of rows that were counted at a time, when `asked` commands were evaluated."""
    made = Batch()
    made.add_rows(rows, at)
    if asked:
        rules = ("internal.error", "scope.write")
        made.add_uses([(service, "rule", rule, asked, "r1") for rule in rules], at)
    return made


def look(store: Store, begin: float, end: float, kind: str = "looking", service: str = "") -> None:
    """Have the store's instance look from one time to another."""
    made = Batch()
    made.add_span(kind, service, Span(begin, end))
    store.write(made)


def rule_sums(database: Database) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The violations by hour, service and rule: as `keyfence_rule_hours` has them, and added up of the hours
    of all findings. Cells with nothing in them are left out."""
    sums = [func.sum(hours.c[action]) for action in ACTIONS]
    names = (hours.c.hour, findings.c.service, findings.c.rule)
    added = select(*names, *sums).join(findings, findings.c.number == hours.c.finding).group_by(*names)
    kept = select(rule_hours)
    with database.reading() as connection:
        cells = [
            {tuple(row[:3]): tuple(map(int, row[3:])) for row in connection.execute(chosen).all()}
            for chosen in (kept, added)
        ]
    kept_cells, added_cells = ({key: row for key, row in one.items() if any(row)} for one in cells)
    return kept_cells, added_cells
