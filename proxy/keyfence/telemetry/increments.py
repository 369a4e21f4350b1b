"""Increments: what a process has counted since the last time. Workers send them to their parent, and the
findings store is made from them.

Rule: the sum of all increments is what the process has counted. So a parent keeps one sum, and nothing is
subtracted when a worker ends. A row without new counts costs a comparison and is left out.
"""

from __future__ import annotations

from typing import Any

from .counters import COUNTED, GAUGES, SCALARS
from .tally import Key, Row, Tally
from .telemetry import Telemetry
from .usage import Usage

# By row: its count, actions and the times of its examples when it was last taken.
Sent = dict[Key, tuple[int, dict[str, int], list[int]]]


class Increments:
    """Takes increments from a process's telemetry, as values that JSON can carry."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._plain: dict[str, Any] = dict.fromkeys(SCALARS, 0)
        self._tables: dict[str, dict[Any, float]] = {name: {} for name in COUNTED}
        self._rows: Sent = {}

    def take(self) -> dict[str, Any]:
        """{"counters": for `Counters.absorb(…, live=False)`, "gauges": for `Counters.absorb_gauges`,
        "tally": for `Tally.absorb`, "asked": [[service, kind, name, times, basis], …] of `Usage.take`,
        "candidate": for `Comparisons.absorb`, or None}."""
        usage, beside = self._telemetry.sink(Usage), self._telemetry.beside
        return {
            "counters": self._counted(),
            "gauges": self._gauges(),
            "tally": new_rows(self._telemetry.tally, self._rows),
            "asked": usage.take() if usage is not None else [],
            "candidate": beside.increments() if beside is not None else None,
        }

    def _counted(self) -> dict[str, Any]:
        counters = self._telemetry.counters
        new: dict[str, Any] = {}
        for name in SCALARS:
            value = getattr(counters, name)
            new[name], self._plain[name] = value - self._plain[name], value
        for name in COUNTED:
            table, before = getattr(counters, name), self._tables[name]
            new[name] = [
                [*(key if isinstance(key, tuple) else (key,)), number - before.get(key, 0)]
                for key, number in table.items()
                if number != before.get(key)
            ]
            if new[name]:
                self._tables[name] = dict(table)
        return new

    def _gauges(self) -> dict[str, Any]:
        shot = self._telemetry.counters.gauges()
        return {name: shot[name] for name in GAUGES}


def new_rows(tally: Tally, sent: Sent) -> list[Row]:
    """The rows of a tally with new counts, and only these counts. `sent` remembers them."""
    new: list[Row] = []
    for key, row in tally.rows():
        count, actions, shown = sent.get(key, (0, {}, []))
        if row["count"] != count or row["actions"] != actions:
            more = {name: n - actions.get(name, 0) for name, n in row["actions"].items()}
            change: Row = {**row, "count": row["count"] - count, "actions": more}
            change["examples"] = tally.hand_over(row, shown)
            new.append(change)
            times = [one.get("times", 1) for one in row.get("examples", ())]
            sent[key] = row["count"], dict(row["actions"]), times
    return new
