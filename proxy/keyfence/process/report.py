"""The findings of a keyfence without a findings store: those of the report in memory.

Rule: it answers what the rows of the report show, in the form of the store's answers. Every other question
is a ValueError, so that nobody takes what is not known for nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator

from sqlalchemy import Connection

from keyfence.findings.database import Database
from keyfence.findings.filter import EVERYTHING, Filter
from keyfence.findings.finding import ACTIVE, Event, Finding, State, after_time, after_violations, of_row
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
        self._findings = [of_row(row, _state(row, now)) for _, row in rows if row["count"]]

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
        return Counter(one.state for one in self._findings)

    def entry_counts(self) -> dict[str, int]:
        return Counter(one.entry for one in self._findings if one.state in ACTIVE)

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


def _state(row: Row, now: float) -> State:
    state, _ = after_violations(None, row["actions"])
    return after_time(state, row["first"], now - row["last"], now)[0]


def _matches(one: Finding, which: Filter) -> bool:
    for name in ("service", "rule", "owner"):
        if getattr(which, name) not in ("", getattr(one, name)):
            return False
    if which.entry and which.entry not in (one.entry, one.shape):
        return False
    if (which.state and one.state not in which.state) or one.last < which.since:
        return False
    texts = (one.id, *one.key, one.hint, json.dumps(one.examples))
    return any(which.text.casefold() in text.casefold() for text in texts)
