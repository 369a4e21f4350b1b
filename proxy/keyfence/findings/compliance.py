"""What a quarter was like: for each service and rule when it was enforced, and what was found and refused.

Rule: it only adds up what the history and the counts of violations say.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import NamedTuple

from keyfence.policy.rules import RULES

from .enforced import Enforcement, Status, totals
from .finding import ACTIONS

_QUARTER = re.compile(r"(\d{4})-Q([1-4])", re.ASCII)


class Violations(NamedTuple):
    """The violations of a time, by service and rule: `findings`, and the counts of each action."""

    counts: Mapping[tuple[str, str], Mapping[str, int]]
    since: float  # from when on they are known, in Unix seconds; older ones are deleted


class Line(NamedTuple):
    """One rule for one service."""

    service: str
    rule: str
    times: Mapping[Status, int]  # ms
    gaps: int  # how many
    counts: Mapping[str, int]

    @property
    def is_always_enforced(self) -> bool:
        return not any(ms for status, ms in self.times.items() if status != "enforced")


def quarter(text: str) -> tuple[int, int]:
    """The begin and the end of a quarter, as 2026-Q3, in Unix seconds. Raises ValueError."""
    found = _QUARTER.fullmatch(text)
    if found is None or not "1970" <= found[1] < "9999":
        raise ValueError(f"{text!r} is not a quarter; write it as 2026-Q3")
    year, first = int(found[1]), 3 * int(found[2]) - 2
    begins = datetime.datetime(year, first, 1, tzinfo=datetime.UTC)
    ends = begins + datetime.timedelta(days=93)
    return int(begins.timestamp()), int(ends.replace(day=1).timestamp())


def lines(enforcement: Enforcement, violations: Violations) -> list[Line]:
    """All services and rules of the time."""
    found = []
    for service in enforcement.services():
        for rule in RULES:
            said = enforcement.of(rule, service)
            counts = violations.counts.get((service, rule), {})
            names = ("findings", *ACTIONS)
            gaps = sum(one.status == "gap" for one in said)
            of_names = {name: counts.get(name, 0) for name in names}
            found.append(Line(service, rule, totals(said), gaps, of_names))
    return found
