"""What waits to be written: increments of all processes, added up.

Rule: nothing is counted twice or lost. While the database is away a batch grows only with new kinds of
findings, rules, rights and hours, and each of these is bounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keyfence.telemetry.clients import meet
from keyfence.telemetry.tally import Key, Row, add_examples, key_of

from .finding import ACTIONS, HOUR
from .instances import Compared, Instance
from .spans import LOOKING, SAME_SPAN_SECONDS, Span

MAX_COMMANDS = 1_000  # examples with their commands; more wait without
MAX_SPANS = 1_000  # in which keyfence was looking; beyond, it is not known to have looked
MAX_CELLS = 500_000  # hours of findings and uses; beyond, counts go to the last hour that a row has
Cells = dict[int, int]
# What was used: service, kind, name, and the basis of the evidence, as of `telemetry.usage`.
UseKey = tuple[str, str, str, str]
ENFORCEABLE = ("observed", "refused")  # actions on what enforcing refuses


@dataclasses.dataclass(slots=True)
class Seen:
    """New violations of one finding."""

    row: Row  # the newest one, without counts
    first: float
    last: float
    refusable: float = 0.0  # the last one that enforcing its rule refuses; 0.0: none of them
    hours: dict[int, dict[str, int]] = dataclasses.field(default_factory=dict)  # by hour and action

    def totals(self) -> dict[str, int]:
        return {action: sum(one.get(action, 0) for one in self.hours.values()) for action in ACTIONS}


class Batch:
    """Increments that wait."""

    def __init__(self) -> None:
        self.seen: dict[Key, Seen] = {}
        self.uses: dict[UseKey, Cells] = {}  # times by hour
        self.used: dict[UseKey, float] = {}  # and when last, in Unix seconds
        # When this instance was looking, and when it was not although it ran: by kind and service.
        self.spans: dict[tuple[str, str], list[Span]] = {}
        self.instance: Instance | None = None  # what this instance says of itself …
        self.compared: Compared | None = None  # … and of the fleet's candidate; None: there is none
        self._cells = 0
        self._commands = 0

    def add_rows(self, rows: Iterable[Row], now: float) -> None:
        """Add rows of `Increments`, counted until `now` (Unix seconds)."""
        hour = int(now // HOUR)
        for row in rows:
            key = key_of(row)
            row = self._bounded(row)
            seen = self.seen.get(key)
            if seen is None:
                seen = self.seen[key] = Seen(row, row["first"], row["last"])
            else:
                seen.row = _newer(seen.row, row)
                seen.first = min(seen.first, row["first"])
                seen.last = max(seen.last, row["last"])
            if any(row["actions"].get(action, 0) > 0 for action in ENFORCEABLE):
                seen.refusable = max(seen.refusable, row["last"])
            cell = seen.hours.get(self._hour(seen.hours, hour))
            if cell is None:
                cell = seen.hours[hour] = {}
                self._cells += 1
            for action, number in row["actions"].items():
                cell[action] = cell.get(action, 0) + number

    def _bounded(self, row: Row) -> Row:
        """The row, without the commands of its examples if too many wait already."""
        examples = row.get("examples", [])
        if self._commands < MAX_COMMANDS:
            self._commands += sum(bool(one["command"]) for one in examples)
            return row
        return {**row, "examples": [{**one, "command": {}} for one in examples]}

    def add_uses(self, uses: Iterable[Sequence[Any]], now: float) -> None:
        """Add what `Usage.take` returned at `now`. A use without a basis holds under any."""
        hour = int(now // HOUR)
        for service, kind, name, times, *basis in uses:
            use = (service, kind, name, basis[0] if basis else "")
            cells = self.uses.setdefault(use, {})
            self.used[use] = max(now, self.used.get(use, 0.0))
            at = self._hour(cells, hour)
            self._cells += at not in cells
            cells[at] = cells.get(at, 0) + times

    def add_span(self, kind: str, service: str, span: Span) -> None:
        """Add a span that follows the earlier ones of its kind and service. A pause is kept in looking only:
        the others are gaps, which may be longer but not shorter than they were."""
        spans = self.spans.setdefault((kind, service), [])
        follows = bool(spans) and 0 <= span.begin - spans[-1].end <= SAME_SPAN_SECONDS
        if spans and (follows or kind != LOOKING):
            # The clock may have been set back meanwhile.
            spans[-1] = Span(min(spans[-1].begin, span.begin), max(spans[-1].end, span.end))
        elif len(spans) < MAX_SPANS:
            spans.append(span)

    def _hour(self, cells: Mapping[int, object], hour: int) -> int:
        return max(cells) if cells and hour not in cells and self._cells >= MAX_CELLS else hour

    def add_seen(self, seen: Seen, row: Row) -> None:
        """Add the violations of a finding, of all their hours, as those that a row without counts names."""
        row = {**row, "first": seen.first, "last": seen.last}
        for hour, counts in seen.hours.items():
            self.add_rows([{**row, "actions": counts}], hour * HOUR)
            row = {**row, "examples": []}  # their times are those of all hours

    def add_batch(self, later: Batch) -> None:
        """Add a later batch, after this one could not be written."""
        for key, seen in later.seen.items():
            self.add_seen(seen, seen.row)
            if not seen.hours:
                self.seen.setdefault(key, seen)
        for use, cells in later.uses.items():
            for hour, times in cells.items():
                self.add_uses([(*use[:3], times, use[3])], hour * HOUR)
            self.used[use] = later.used[use]
        for (kind, service), spans in later.spans.items():
            for span in spans:
                self.add_span(kind, service, span)


def _newer(before: Row, row: Row) -> Row:
    """The later row, with the clients and examples of both."""
    merged: Row = {**row, "clients": list(before.get("clients", ()))}
    for client in row.get("clients", ()):
        meet(merged["clients"], client)
    merged["examples"] = []
    for one in (before, row):
        add_examples(merged["examples"], one.get("examples", ()))
    merged["hint"] = row["hint"] or before["hint"]
    if before["severity"] == "must":
        merged["severity"] = "must"
    return merged
