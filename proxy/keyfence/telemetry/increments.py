"""Increments: what a process has counted since the last time. Workers send them to their parent, and the
findings store is made from them.

Rule: the sum of all increments is what the process has counted. So a parent keeps one sum, and nothing is
subtracted when a worker ends. A row without new counts costs a comparison and is left out.

They come in parts, because a client can make thousands of new rows in a second, and clients wait while one is
made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .counters import COUNTED, SCALARS, parts_of
from .tally import Key, Row, Tally
from .telemetry import Telemetry
from .usage import Usage

PART_ROWS = 100  # new rows in one part, each of which takes some 10 µs here and as much where it goes
PART_LOOKED_AT = 1_000  # rows that one part has looked at
# By row: its count, actions and the times of its examples when it was last taken.
Sent = dict[Key, tuple[int, dict[str, int], list[int]]]


class Increments:
    """Takes increments from a process's telemetry, as values that JSON can carry."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._plain: dict[str, Any] = dict.fromkeys(SCALARS, 0)
        self._tables: dict[str, dict[Any, float]] = {name: {} for name in COUNTED}
        self._rows: Sent = {}

    def parts(self) -> Iterator[dict[str, Any]]:
        """Everything counted before this call. Take all parts, even at the end: what the first one has begun
        is not counted again. Each has one or more of these:

        "counters" for `Counters.absorb(…, live=False)`, "gauges" for `Counters.absorb_gauges`, "tally" for
        `Tally.absorb`, "asked": [[service, kind, name, times, basis], …] of `Usage.parts`, "candidate" for
        `Comparisons.absorb`, "shown" of `Telemetry.take_shown`, beside "counters".
        """
        usage, beside = self._telemetry.sink(Usage), self._telemetry.beside
        # Evidence must not precede the violations of the same commands: it would seem that there are none.
        rows = new_rows(self._telemetry.tally, self._rows)
        uses = usage.parts() if usage is not None else iter(())
        yield {
            "counters": self._counted(),
            "gauges": self._telemetry.counters.gauges(),
            "shown": self._telemetry.take_shown(),
        }
        for some in rows:
            yield {"tally": some}
        for asked in uses:
            yield {"asked": asked}
        for part in beside.parts() if beside is not None else ():
            yield {"candidate": part}

    def take(self) -> dict[str, Any]:
        """All parts as one."""
        whole: dict[str, Any] = {"tally": [], "asked": [], "candidate": None}
        for part in self.parts():
            whole["tally"] += part.pop("tally", [])
            whole["asked"] += part.pop("asked", [])
            candidate = part.pop("candidate", None)
            if whole["candidate"] is None:
                whole["candidate"] = candidate
            elif candidate is not None:
                whole["candidate"]["rows"] += candidate["rows"]
                whole["candidate"]["rehearsed"] += candidate["rehearsed"]
            whole |= part
        return whole

    def _counted(self) -> dict[str, Any]:
        counters = self._telemetry.counters
        new: dict[str, Any] = {}
        for name in SCALARS:
            value = getattr(counters, name)
            new[name], self._plain[name] = value - self._plain[name], value
        for name in COUNTED:
            table, before = getattr(counters, name), self._tables[name]
            new[name] = [
                [*parts_of(key), number - before.get(key, 0)]
                for key, number in table.items()
                if number != before.get(key)
            ]
            if new[name]:
                self._tables[name] = dict(table)
        return new


def new_rows(tally: Tally, sent: Sent) -> Iterator[list[Row]]:
    """The rows that a tally has now, as far as they have new counts, and only these counts, in parts. `sent`
    remembers them."""
    return _new_rows(tally, list(tally.rows()), sent)


def _new_rows(tally: Tally, rows: list[tuple[Key, Row]], sent: Sent) -> Iterator[list[Row]]:
    new: list[Row] = []
    for number, (key, row) in enumerate(rows, 1):
        if len(new) >= PART_ROWS or number % PART_LOOKED_AT == 0:
            yield new
            new = []
        count, actions, shown = sent.get(key, (0, {}, []))
        if row["count"] != count or row["actions"] != actions:
            more = {name: n - actions.get(name, 0) for name, n in row["actions"].items()}
            change: Row = {**row, "count": row["count"] - count, "actions": more}
            change["examples"] = tally.hand_over(row, shown)
            new.append(change)
            times = [one.get("times", 1) for one in row.get("examples", ())]
            sent[key] = row["count"], dict(row["actions"]), times
    if new:
        yield new
