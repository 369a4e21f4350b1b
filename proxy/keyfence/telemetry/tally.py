"""Who breaks which rule, how often, since when: the counts behind the report.

Rule: one row per (service, rule, command, entry, key shape), and a bounded number of rows; past it the
finest parts of a row become `other`, so that the sums stay right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NotRequired, TypedDict

from .clients import Client, meet
from .counters import OTHER

MAX_ROWS = 10_000
MAX_COARSE = 1_000  # further rows, of service and rule alone

Key = tuple[str, str, str, str, str]  # service, rule, command, entry, shape


class Row(TypedDict):
    """A row as it goes over the admin listener. Times are Unix seconds."""

    service: str
    rule: str
    severity: str
    command: str
    entry: str  # a name of the policy; "" for none
    shape: str  # the learnt shape, for keys that no entry covers; else ""
    count: int
    actions: dict[str, int]  # observed, refused, waived, late
    first: float
    last: float
    clients: NotRequired[list[Client]]  # who did it: address, user, name, library, version
    example: str  # a key as it may be shown: the first that was seen
    hint: str


class Tally:
    """The rows of one process, or the sum of several."""

    def __init__(self) -> None:
        self._rows: dict[Key, Row] = {}

    def find(self, service: str, rule: str, command: str, entry: str, shape: str) -> Row | None:
        """The row that a violation belongs to, to be counted on with `count`."""
        return self._rows.get((service, rule, command, entry, shape))

    @staticmethod
    def count(row: Row, action: str, at: float, times: int = 1) -> None:
        row["count"] += times
        actions = row["actions"]
        actions[action] = actions.get(action, 0) + times
        row["last"] = at

    def add(self, row: Row) -> None:
        """Add a row, or what it counts to the row that is there already."""
        known = self._rows.get(_key(row))
        if known is None:
            row = self._admit(row)
            known = self._rows.get(_key(row))
        if known is None:
            self._rows[_key(row)] = _copy(row)
            return
        for client in row.get("clients", ()):
            meet(known.setdefault("clients", []), client)
        known["count"] += row["count"]
        if row["severity"] == "must":  # some of a row may be a should
            known["severity"] = "must"
        for action, number in row["actions"].items():
            known["actions"][action] = known["actions"].get(action, 0) + number
        known["first"] = min(known["first"], row["first"])
        known["last"] = max(known["last"], row["last"])
        known["example"] = known["example"] or row["example"]
        known["hint"] = known["hint"] or row["hint"]

    def _admit(self, row: Row) -> Row:
        if len(self._rows) < MAX_ROWS:
            return row
        coarse: Row = {**row, "command": OTHER, "entry": "", "shape": OTHER, "example": "", "hint": ""}
        known = _key(coarse) in self._rows
        if not known and len(self._rows) >= MAX_ROWS + MAX_COARSE:
            coarse |= {"service": OTHER, "rule": OTHER}
        return coarse

    def rows(self) -> Iterable[tuple[Key, Row]]:
        """The rows themselves, to be read only, each with what it is found by."""
        return self._rows.items()

    def snapshot(self) -> list[Row]:
        """Copies of all rows, the most frequent first."""
        rows: list[Row] = [_copy(row) for row in self._rows.values() if row["count"]]
        return sorted(rows, key=lambda row: -row["count"])

    def absorb(self, rows: Iterable[Row]) -> None:
        """Add the rows of another tally: of another worker, or of the log."""
        for row in rows:
            self.add(row)


def _copy(row: Row) -> Row:
    return {**row, "actions": dict(row["actions"]), "clients": list(row.get("clients", ()))}


def _key(row: Row) -> Key:
    return row["service"], row["rule"], row["command"], row["entry"], row["shape"]
