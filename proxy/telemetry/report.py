"""The report: who breaks which rule how often, as a table for people.

Rule: nothing is lost in the showing. Rows come from the tally of a running proxy or from the lines of a
decision log, counting what was merged; a line that can't be read is told of by its number and skipped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.telemetry.clients import MAX_CLIENTS, Client, from_fields, text_of
from proxy.telemetry.tally import Row, Tally

_HEADINGS = (
    "service",
    "rule",
    "command",
    "entry or key shape",
    "count",
    "first seen",
    "last seen",
    "example",
    "clients",
    "hint",
)
_ACTIONS = frozenset({"observed", "refused", "waived", "late"})


def rows_from_snapshot(values: Iterable[Any]) -> list[Row]:
    """The rows of `GET /report`. Raises ValueError where a value isn't one."""
    tally = Tally()
    for value in values:
        tally.add(_row(value))
    return tally.snapshot()


def rows_from_log(lines: Iterable[str | bytes], complain: Callable[[str], None]) -> tuple[list[Row], int]:
    """The rows of a decision log's lines, and how many decisions the log has dropped. `complain` is given a
    sentence for each line that can't be read."""
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
    return tally.snapshot(), dropped


def render(rows: Iterable[Row], file: IO[str] | None = None, width: int | None = None) -> None:
    """Write the table, the most frequent row first. On a terminal long cells are folded into its width;
    elsewhere each row is one line, as wide as it needs to be, without colour."""
    file = file if file is not None else sys.stdout
    ordered = sorted(rows, key=lambda row: -row["count"])
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    plain = not console.is_terminal
    if not ordered:
        console.print("No violations.")
        return
    table = _table(ordered, fold=not plain)
    if plain and width is None:
        console = Console(
            file=file,
            width=_natural_width(ordered),
            highlight=False,
            markup=False,
            emoji=False,
            no_color=True,
        )
    console.print(table)
    decisions = sum(row["count"] for row in ordered)
    plural = "" if decisions == 1 else "s"
    console.print(f"{decisions} violation{plural} in {len(ordered)} row{'' if len(ordered) == 1 else 's'}")


def _table(rows: list[Row], *, fold: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        table.add_column(
            heading,
            justify="right" if heading == "count" else "left",
            overflow="fold",
            no_wrap=not fold or heading == "count",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def _natural_width(rows: list[Row]) -> int:
    console = Console(width=100_000, color_system=None)
    return max(100, console.measure(_table(rows, fold=False)).maximum)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        _clean(row["service"]),
        _clean(row["rule"] + (" (should)" if row["severity"] == "should" else "")),
        _clean(row["command"]),
        _clean(row["shape"] or row["entry"] or "–"),
        str(row["count"]),
        _clock(row["first"]),
        _clock(row["last"]),
        _clean(row["example"]),
        _clean(text_of(row.get("clients", []))),
        _clean(row["hint"]),
    )


def _clean(text: str) -> str:
    """A cell is one line, and moves no cursor, whatever the file held."""
    return "".join(char if char.isprintable() else "�" for char in text)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


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
    if action not in _ACTIONS:
        raise ValueError(f"unknown action {action[:32]!r}")
    times = 1 + _number(record, "merged")
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
        clients=[from_fields(record, "client")],
        example=_text(record, "key", "") or _text(record, "script_line", ""),
        hint=_text(record, "hint", ""),
    )
    return row, _number(record, "dropped")


def _row(value: object) -> Row:
    if not isinstance(value, dict):
        raise ValueError("a row of the report isn't a JSON object")
    actions = value.get("actions")
    if not isinstance(actions, dict) or not all(isinstance(number, int) for number in actions.values()):
        raise ValueError('a row of the report has no "actions"')
    return Row(
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


def _clients(values: Any) -> list[Client]:
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise ValueError('"clients" isn\'t a list of objects')
    return [from_fields(one, "address") for one in values[:MAX_CLIENTS]]


def _text(record: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = record.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f'"{name}" is missing or not a text')
    return value


def _number(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f'"{name}" isn\'t a number of decisions')
    return value


def _time(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    if not isinstance(value, int | float) or not 0 <= value < 253_402_300_800:  # the year 10000
        raise ValueError(f'"{name}" isn\'t a time in Unix seconds')
    return float(value)


def _seconds(time: str) -> float:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        raise ValueError(f'"time" isn\'t RFC 3339: {time[:32]!r}') from None
    return moment.timestamp() if moment.tzinfo is not None else moment.replace(tzinfo=UTC).timestamp()
