"""The comparison of one candidate as people and parents see it: added up over workers, and as rows.

Rule: what belongs to another comparison is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyfence.policy.verdict import CHANGES
from keyfence.telemetry.counters import OTHER
from keyfence.telemetry.tally import Row, Tally

from .rehearsal import Rehearsal

MAX_SERVICES = 1_000


class Comparisons:
    """The comparison of one candidate, added up over all workers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.commands: dict[str, int] = {}
        self.rehearsal = Rehearsal()  # empty if the candidate is a policy
        self._tallies: dict[str, Tally] = {}

    def absorb(self, more: Mapping[str, Any]) -> None:
        """Add what a worker sends (`Changes.parts`). What belongs to another comparison is left out."""
        if more["number"] != self.number:
            return
        for service, times in more["commands"]:
            add_commands(self.commands, service, times)
        self.rehearsal.absorb(more["rehearsed"])
        for change, rows in more["rows"]:
            if change in CHANGES:
                self._tallies.setdefault(change, Tally()).absorb(rows)

    def tallies(self) -> dict[str, Tally]:
        return self._tallies


class ChangedRow(Row):
    """A row of the comparison. `actions` are the candidate's; if the finding is gone, those in force."""

    change: str


def rows_of(tallies: Mapping[Any, Tally]) -> list[ChangedRow]:
    """The rows of a comparison, change after change, the most frequent row of each first."""
    return [
        {**row, "change": change}
        for change in CHANGES
        if change in tallies
        for row in tallies[change].snapshot()
    ]


def add_commands(commands: dict[str, int], service: str, times: int) -> None:
    """Add commands of a service. Services beyond MAX_SERVICES are one."""
    name = service if service in commands or len(commands) < MAX_SERVICES else OTHER
    commands[name] = commands.get(name, 0) + times
