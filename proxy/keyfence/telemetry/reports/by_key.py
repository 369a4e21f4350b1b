"""The report by key: one row for each kind of key and each service, with its commands and rules.

Rule: it shows the same violations as the report by command, and the sums are equal.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.table import Table
from rich.text import Text

from keyfence.policy.show import one_line
from keyfence.policy.units import counted
from keyfence.telemetry.tally import Row

from .by_command import COLUMNS, console_for, natural_width, plain_table, without_late


@dataclasses.dataclass
class KeyRow:
    """The violations of one service on keys of one entry or shape."""

    key: str  # the entry, or the shape of keys that no entry covers; "" for rules about no key
    service: str
    count: int = 0
    actions: dict[str, int] = dataclasses.field(default_factory=dict)
    # How often each, the most frequent first.
    commands: dict[str, int] = dataclasses.field(default_factory=dict)
    rules: dict[str, int] = dataclasses.field(default_factory=dict)
    first: float = 0.0
    last: float = 0.0
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, row: Row) -> None:
        self.first = min(self.first, row["first"]) if self.count else row["first"]
        self.last = max(self.last, row["last"])
        self.count += row["count"]
        for counts, more in (
            (self.actions, row["actions"]),
            (self.commands, {row["command"]: row["count"]}),
            (self.rules, {row["rule"]: row["count"]}),
        ):
            for name, number in more.items():
                counts[name] = counts.get(name, 0) + number
        if row["example"] and row["example"] not in self.examples:
            self.examples.append(row["example"])


def by_key(rows: Iterable[Row]) -> list[KeyRow]:
    """The rows of a report by key; the keys with the most violations first."""
    found: dict[tuple[str, str], KeyRow] = {}
    totals: dict[str, int] = {}
    for row in rows:
        key = row["shape"] or row["entry"]
        found.setdefault((key, row["service"]), KeyRow(key, row["service"])).add(row)
        totals[key] = totals.get(key, 0) + row["count"]
    for one in found.values():
        one.commands, one.rules = _ordered(one.commands), _ordered(one.rules)
    return sorted(found.values(), key=lambda one: (-totals[one.key], one.key, -one.count, one.service))


def as_objects(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The report by key, as JSON values."""
    return [dataclasses.asdict(one) for one in by_key(rows)]


def render_by_key(rows: Iterable[Row], file: IO[str] | None = None, width: int | None = None) -> None:
    """Write the report by key as a table. Outside a terminal, each row is one line."""
    file = file if file is not None else sys.stdout
    found = by_key(rows)
    if not found:
        file.write("No violations.\n")
        return
    actions = without_late(COLUMNS, (row.actions for row in found))
    console = console_for(file, width)
    table = _table(found, actions, fold=console.is_terminal)
    if not console.is_terminal and width is None:
        console = console_for(file, max(100, natural_width(table)), no_color=True)
    console.print(table)
    number, kinds = sum(one.count for one in found), len({one.key for one in found})
    console.print(f"{counted(number, 'violation')} on {counted(kinds, 'kind')} of keys")


def _table(found: list[KeyRow], actions: list[str], *, fold: bool) -> Table:
    table = plain_table()
    for heading in ("entry or key shape", "service", *actions, "commands", "rules", "example"):
        is_number = heading in COLUMNS
        table.add_column(
            heading, justify="right" if is_number else "left", no_wrap=is_number or not fold, overflow="fold"
        )
    for one in found:
        numbers = [str(one.actions.get(action, 0)) for action in actions]
        example = one.examples[0] if one.examples else ""
        cells = [one.key or "–", one.service, *numbers, _counts(one.commands), ", ".join(one.rules), example]
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table


def _ordered(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items())
