"""The findings of a keyfence without a findings store: those of the report in memory.

Rule: it answers what the rows of the report show, in the form of the store's answers. Every other question
is a ValueError, so that nobody takes what is not known for nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection

from keyfence.findings.database import Database
from keyfence.findings.filter import EVERYTHING, Filter
from keyfence.findings.finding import ACTIVE, Event, Finding, State, after_time, after_violations, finding_id
from keyfence.findings.queries import Reader
from keyfence.telemetry.tally import Key, Row

from .serving.backend import NOTHING_KEPT


class _NoDatabase(Database):
    def __init__(self) -> None:
        pass

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        raise ValueError(NOTHING_KEPT)
        yield


class ReportReader(Reader):
    """The findings that are made of the rows of a report."""

    knows_uses = False

    def __init__(self, rows: Iterable[tuple[Key, Row]], now: float) -> None:
        super().__init__(_NoDatabase())
        self._findings = [_finding(key, row, now) for key, row in rows if row["count"]]

    def findings(self, which: Filter = EVERYTHING) -> list[Finding]:
        found = sorted(self._matching(which), key=lambda one: one.id)
        if which.sort in ("last", "first", "since"):
            found.sort(key=lambda one: -getattr(one, which.sort))
        elif which.sort in ("cause", "violations"):
            found.sort(key=lambda one: -one.total)
        else:
            found.sort(key=lambda one: str(getattr(one, which.sort)))
        return found[which.offset : which.offset + which.limit]

    def count(self, which: Filter) -> int:
        return len(self._matching(which))

    def state_counts(self) -> dict[State, int]:
        return _counts(one.state for one in self._findings)

    def entry_counts(self) -> dict[str, int]:
        return _counts(one.entry for one in self._findings if one.state in ACTIVE)

    def owners(self) -> list[str]:
        return sorted({one.owner for one in self._findings if one.owner})

    def finding(self, one: str) -> Finding | None:
        found = [each for each in self._findings if each.id.startswith(one)]
        return found[0] if len(found) == 1 else None

    def history(self, one: str) -> list[Event]:
        found = self.finding(one)
        return [] if found is None else [Event(one, found.first, found.state, "seen since keyfence began")]

    def hours(self, one: str, since: float = 0.0) -> dict[int, dict[str, int]]:  # noqa: ARG002
        return {}  # not known

    def _matching(self, which: Filter) -> list[Finding]:
        return [one for one in self._findings if _matches(one, which)]


def _finding(key: Key, row: Row, now: float) -> Finding:
    service, rule, command, entry, shape = key
    first, last, counts = row["first"], row["last"], dict(row["actions"])
    state, _ = after_time(after_violations(None, counts)[0], first, now - last, now)
    return Finding(
        id=finding_id(key),
        service=service,
        rule=rule,
        command=command,
        entry=entry,
        shape=shape,
        severity="must" if row["severity"] == "must" else "should",
        state=state,
        since=first,
        first=first,
        last=last,
        counts=counts,
        owner=row.get("contact", ""),
        hint=row["hint"],
        revision=row.get("revision", ""),
        clients=list(row.get("clients", ())),
        examples=list(row.get("examples", ())),
    )


def _matches(one: Finding, which: Filter) -> bool:
    fields = ((one.service, which.service), (one.rule, which.rule), (one.owner, which.owner))
    if any(wanted and value != wanted for value, wanted in fields):
        return False
    if which.entry and which.entry not in (one.entry, one.shape):
        return False
    if (which.state and one.state not in which.state) or one.last < which.since:
        return False
    texts = (one.id, *one.key, one.hint, json.dumps(one.examples))
    return any(which.text.casefold() in text.casefold() for text in texts)


def _counts(values: Iterable[Any]) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
