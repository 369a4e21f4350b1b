"""The report: which service breaks which rule, and how often, as a table for people.

Rule: the table shows every row. Rows come from the tally of a running keyfence, or from the lines of a
decision log with their merged decisions. A line that cannot be read is skipped and reported with its number.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted
from keyfence.telemetry.clients import MAX_CLIENTS, Client, from_fields, text_of
from keyfence.telemetry.tally import Example, Row, Tally

COLUMNS = ("refused", "observed", "waived", "late")  # what was done about violations
_HEADINGS = (
    "service",
    "rule",
    "command",
    "entry or key shape",
    *COLUMNS,
    "first seen",
    "last seen",
    "example",
    "clients",
    "hint",
)
_INDENT = "    "


def rows_from_snapshot(values: Iterable[Any]) -> list[Row]:
    """The rows of `GET /report`. Raises ValueError if a value is not a row."""
    tally = Tally()
    for value in values:
        tally.add(_row(value))
    return tally.snapshot()


def tally_of_log(lines: Iterable[str | bytes], complain: Callable[[str], None]) -> tuple[Tally, int]:
    """The rows of a decision log's lines with their examples, and the number of decisions that the log has
    dropped. `complain` gets a sentence for each line that cannot be read."""
    tally = Tally()
    dropped = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            row, lost = _row_of_line(record)
        except (ValueError, RecursionError) as fault:
            complain(f"line {number} is skipped: {_reason(fault)}")
            continue
        tally.add(row)
        dropped += lost
    return tally, dropped


def render(rows: Iterable[Row], file: IO[str] | None = None, width: int | None = None) -> None:
    """Write the table, the most frequent row first. Each row is one line, as wide as necessary; on a terminal
    that is too narrow, each row takes several lines instead."""
    file = file if file is not None else sys.stdout
    ordered = sorted(rows, key=lambda row: -row["count"])
    if not ordered:
        file.write("No violations.\n")
        return
    headings = without_late(_HEADINGS, (row["actions"] for row in ordered))
    table = _table(ordered, headings)
    console, natural = console_for(file, width), natural_width(table)
    if not console.is_terminal:
        natural = natural if width is None else width
        console = console_for(file, natural, no_color=True)
    if natural <= console.width:
        console.print(table)
    else:
        file.write(_as_blocks(ordered, [one for one in headings if one in COLUMNS], console.width))
    decisions = sum(row["count"] for row in ordered)
    file.write(f"{counted(decisions, 'violation')} in {counted(len(ordered), 'row')}\n")


def without_late(names: Sequence[str], actions: Iterable[Mapping[str, int]]) -> list[str]:
    """The names of columns, `late` only if something was found late."""
    is_late = any(one.get("late") for one in actions)
    return [one for one in names if one != "late" or is_late]


def console_for(file: IO[str], width: int | None, *, no_color: bool = False) -> Console:
    return Console(
        file=file, width=width, highlight=False, markup=False, emoji=False, no_color=no_color or None
    )


def natural_width(table: Table) -> int:
    return Console(width=100_000, color_system=None).measure(table).maximum


def plain_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _table(rows: list[Row], headings: list[str]) -> Table:
    table = plain_table()
    for heading in headings:
        table.add_column(heading, justify="right" if heading in COLUMNS else "left", no_wrap=True)
    for row in rows:
        cells = _cells(row)
        table.add_row(*(Text(cells[heading]) for heading in headings))
    return table


def _as_blocks(rows: list[Row], counts: list[str], width: int) -> str:
    """The rows for a narrow terminal: the counts in columns, the rest in lines that break between words. A
    key is never broken, so that it can be copied."""
    lines = ["  ".join(counts)]
    for row in rows:
        cells = _cells(row)
        numbers = "  ".join(f"{cells[one]:>{len(one)}}" for one in counts) + "  "
        lines += _wrapped("  ".join(cells[one] for one in _HEADINGS[:4] if cells[one]), width, numbers)
        lines.append(f"{_INDENT}{cells['first seen']} to {cells['last seen']}")
        for text in (cells["example"], cells["clients"], cells["hint"]):
            lines += _wrapped(text, width, _INDENT) if text else []
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int, before: str) -> list[str]:
    """A text in lines, broken between words only; `before` stands before the first one."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cells(row: Row) -> dict[str, str]:
    """heading → the text below it."""
    return {
        "service": one_line(row["service"]),
        "rule": one_line(row["rule"] + (" (should)" if row["severity"] == "should" else "")),
        "command": one_line(row["command"]),
        "entry or key shape": one_line(row["shape"] or row["entry"] or "–"),
        **{action: str(row["actions"].get(action, 0)) for action in COLUMNS},
        "first seen": clock_text(row["first"]),
        "last seen": clock_text(row["last"]),
        "example": one_line(row["example"]),
        "clients": one_line(text_of(row.get("clients", []))),
        "hint": one_line(row["hint"]),
    }


def _reason(fault: Exception) -> str:
    if isinstance(fault, json.JSONDecodeError):
        return f"not JSON ({fault.msg} at column {fault.colno})"
    if isinstance(fault, UnicodeDecodeError):
        return "not UTF-8"
    return str(fault) or type(fault).__name__


def _row_of_line(record: object) -> tuple[Row, int]:
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    at = _seconds(_text(record, "time"))
    action = _text(record, "action")
    if action not in COLUMNS:
        raise ValueError(f"unknown action {action[:32]!r}")
    times = 1 + _number(record, "merged")
    client = from_fields(record, "client")
    key = _text(record, "key", "") or _text(record, "script_line", "")
    row = Row(
        service=_text(record, "service"),
        rule=_text(record, "rule"),
        severity=_text(record, "severity", "must"),
        command=_text(record, "command"),
        entry=_text(record, "entry", ""),
        shape=_text(record, "shape", "") or _text(record, "script", ""),
        count=times,
        actions={action: times},
        first=at,
        last=at,
        clients=[client],
        example=key,
        hint=_text(record, "hint", ""),
        examples=[Example(at=at, decision=_text(record, "decision", ""), key=key, client=client, command={})],
    )
    return row, _number(record, "dropped")


def _row(value: object) -> Row:
    if not isinstance(value, dict):
        raise ValueError("a row of the report is not a JSON object")
    actions = value.get("actions")
    if not isinstance(actions, dict) or not all(isinstance(number, int) for number in actions.values()):
        raise ValueError('a row of the report has no "actions"')
    row = Row(
        service=_text(value, "service"),
        rule=_text(value, "rule"),
        severity=_text(value, "severity", "must"),
        command=_text(value, "command"),
        entry=_text(value, "entry", ""),
        shape=_text(value, "shape", ""),
        count=_number(value, "count"),
        actions={str(action): number for action, number in actions.items()},
        first=_time(value, "first"),
        last=_time(value, "last"),
        clients=_clients(value.get("clients", [])),
        example=_text(value, "example", ""),
        hint=_text(value, "hint", ""),
    )
    if value.get("registered") is True:
        row["registered"] = True
    return row


def _clients(values: Any) -> list[Client]:
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise ValueError('"clients" is not a list of objects')
    return [from_fields(one, "address") for one in values[:MAX_CLIENTS]]


def _text(record: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = record.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f'"{name}" is missing or not a text')
    return value


def _number(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f'"{name}" is not a number of decisions')
    return value


def _time(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    if not isinstance(value, int | float) or not 0 <= value < 253_402_300_800:  # the year 10000
        raise ValueError(f'"{name}" is not a time in Unix seconds')
    return float(value)


def _seconds(time: str) -> float:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        raise ValueError(f'"time" is not RFC 3339: {time[:32]!r}') from None
    return moment.timestamp() if moment.tzinfo is not None else moment.replace(tzinfo=UTC).timestamp()
