"""The increments that a worker sends to its parent: what it has counted since the last time.

Rule: the sum of all increments is what the worker has counted. So the parent keeps one sum, and nothing is
subtracted when a worker ends. A row without new counts costs a comparison and is not sent.
"""

from __future__ import annotations

from typing import Any

from keyfence.telemetry.candidate import Changes
from keyfence.telemetry.counters import COUNTED, GAUGES, SCALARS
from keyfence.telemetry.tally import Key, Row, Tally
from keyfence.telemetry.telemetry import Telemetry

Sent = dict[Key, tuple[int, dict[str, int]]]  # of each row, the counts that were sent


class Increments:
    """Takes increments from a worker's telemetry, as values that JSON can carry."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._plain: dict[str, Any] = dict.fromkeys(SCALARS, 0)
        self._tables: dict[str, dict[Any, int]] = {name: {} for name in COUNTED}
        self._buckets: list[int] = [0] * len(telemetry.counters.decision_buckets)
        self._rows: Sent = {}
        self._candidate = CandidateIncrements(telemetry)

    def take(self) -> dict[str, Any]:
        """{"counters": for `Counters.absorb(…, live=False)`, "gauges": for `Counters.absorb_gauges`,
        "tally": for `Tally.absorb`, "candidate": for `Comparisons.absorb`, or None}."""
        return {
            "counters": self._counted(),
            "gauges": self._gauges(),
            "tally": new_rows(self._telemetry.tally, self._rows),
            "candidate": self._candidate.take(),
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
        buckets = list(counters.decision_buckets)
        new["decision_buckets"] = [now - then for now, then in zip(buckets, self._buckets, strict=True)]
        self._buckets = buckets
        return new

    def _gauges(self) -> dict[str, Any]:
        shot = self._telemetry.counters.gauges()
        return {name: shot[name] for name in GAUGES}


class CandidateIncrements:
    """The same of what a candidate policy would change."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._number = 0  # of the comparison that the rest is about
        self._commands: dict[str, int] = {}
        self._rows: dict[str, Sent] = {}

    def take(self) -> dict[str, Any] | None:
        """None while nothing is compared."""
        changes = self._telemetry.beside
        if not isinstance(changes, Changes):
            return None
        if changes.number != self._number:
            self._number, self._commands, self._rows = changes.number, {}, {}
        rows = [
            [change, new_rows(tally, self._rows.setdefault(change, {}))]
            for change, tally in changes.tallies().items()
        ]
        before, self._commands = self._commands, dict(changes.commands)
        commands = [
            [name, n - before.get(name, 0)] for name, n in self._commands.items() if n != before.get(name)
        ]
        return {"number": self._number, "commands": commands, "rows": rows}


def new_rows(tally: Tally, sent: Sent) -> list[Row]:
    """The rows of a tally with new counts, and only these counts. `sent` remembers them."""
    new: list[Row] = []
    for key, row in tally.rows():
        count, actions = sent.get(key, (0, {}))
        if row["count"] != count or row["actions"] != actions:
            more = {name: n - actions.get(name, 0) for name, n in row["actions"].items()}
            new.append({**row, "count": row["count"] - count, "actions": more})
            sent[key] = row["count"], dict(row["actions"])
    return new
