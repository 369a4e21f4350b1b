"""What the instances that share a store say of themselves, and of the fleet's candidate: one row for each
keyfence, workers included, and one for each kind of change by the candidate.

Rule: values only. An instance's rows are few, and it alone changes them; `store` writes them, `queries` reads
them. What it has counted of a candidate outlasts it, so a restart loses no evidence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from keyfence.telemetry.counters import OTHER

from .finding import DAY

Source = Literal["fresh", "copy", "stale", "refused"]
REPORT_SECONDS = 4.0  # between two reports in which nothing has changed; less than two writes of evidence
KEEP_SECONDS = 7 * DAY  # for which the row of an instance that is not heard of stays
EVERY_OTHER = "*"  # in modes: the services that a rule names no mode of their own for
MAX_REASON = 500  # characters

# What the candidate changes.
MAX_ROWS = 300  # of one instance, beside those that are left out
MAX_EXAMPLE = 200  # characters
KEY = ("change", "service", "rule", "command", "entry", "shape")
COUNTS = ("count", "observed", "refused", "waived")
SAME = "same"
Row = dict[str, Any]  # KEY, COUNTS, first, last, example, hint


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """One keyfence. Times are Unix seconds."""

    id: str  # of this run of it
    name: str  # its host, and the port of its admin listener
    admin: str  # the URL of the admin listener; "": there is none
    environment: str
    policy: str  # "": it passes commands unread
    revision: str
    sequence: int  # of the signed policy; 0: it is not signed
    source: Source
    reason: str  # why the source is not fresh
    loaded: float  # when the policy was put in force
    confirmed: float  # when its server has confirmed it last; 0.0: it comes from files
    version: str  # of keyfence
    started: float
    modes: str  # as `process.reporting` describes them, JSON
    clients: int
    last: float = 0.0  # when it was heard of last

    def says_the_same(self, other: Instance) -> bool:
        """Whether only what changes all the time has changed."""
        return self == dataclasses.replace(
            other, clients=self.clients, confirmed=self.confirmed, last=self.last
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What one instance says of the fleet's candidate. Times are Unix seconds."""

    id: str  # of the instance
    name: str
    environment: str
    policy: str  # in force
    revision: str  # of the policy in force
    sequence: int  # of the policy in force
    state: str  # as `process.fleet_candidate` has it
    reason: str  # why the candidate is refused; "": it is not
    digest: str  # of the candidate that is compared; "": none is
    candidate: str  # what was signed of it, and its revision: JSON
    since: float
    commands: str  # that were compared, by service: JSON
    last: float  # when this was said


class Compared(NamedTuple):
    """The same with what was found. `rows` makes them when they are written."""

    comparison: Comparison
    rows: Callable[[], Iterable[Mapping[str, Any]]]  # of `telemetry.candidate.rows`


class Found(NamedTuple):
    """The same as a store has it."""

    comparison: Comparison
    rows: Sequence[Row]


def bounded(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The rows to be stored, with different keys: the most frequent ones, and of the others a row for each
    service and rule. What both policies find is only counted."""
    found: dict[tuple[str, ...], Row] = {}
    ordered = sorted(rows, key=lambda one: (one["change"] == SAME, -one["count"]))
    for number, one in enumerate(ordered):
        row = _row(one)
        if number >= MAX_ROWS or row["change"] == SAME:
            row |= {"command": OTHER, "entry": "", "shape": OTHER, "hint": ""}
        add_row(found, row)
    return list(found.values())


def _row(one: Mapping[str, Any]) -> Row:
    actions = one["actions"]
    return {
        **{name: one[name] for name in KEY},
        "count": one["count"],
        **{name: actions.get(name, 0) for name in COUNTS[1:]},
        "first": one["first"],
        "last": one["last"],
        "example": one["example"][:MAX_EXAMPLE],
        "hint": one["hint"],
    }


def add_row(rows: dict[tuple[str, ...], Row], row: Mapping[str, Any], names: Sequence[str] = KEY) -> None:
    """Add a row to those with the same `names`."""
    at = tuple(row[name] for name in names)
    known = rows.get(at)
    if known is None:
        rows[at] = dict(row)
        return
    for name in COUNTS:
        known[name] += row[name]
    known["first"], known["last"] = min(known["first"], row["first"]), max(known["last"], row["last"])
    for name in ("example", "hint"):
        known[name] = known[name] or row[name]
