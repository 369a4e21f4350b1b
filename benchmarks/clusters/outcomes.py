"""What changes have shown, and which of it must not be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator

from benchmarks.clusters.work import Seen

ONE_ADDRESS, LISTENERS, CONTROL = "one-address", "listeners", "control"
LOSSLESS = ("reshard", "atomic", "graceful")  # Redis itself loses nothing in these
MOVES = ("reshard", "atomic")
BEYOND_SECONDS = 1.0  # for which service may be away longer than for the control


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one client has seen of one change."""

    library: str
    path: str
    commands: int
    without_service: float  # the longest time in seconds between two confirmed writes of one key
    wrong: list[str]
    falls: int
    errors: dict[str, int]
    nodes_named: int  # error texts that name the address of a node
    is_back: bool  # whether it has written all its keys again

    @classmethod
    def of(cls, library: str, path: str, seen: Seen, nodes_named: int, *, is_back: bool) -> Outcome:
        return cls(
            library=library,
            path=path,
            commands=seen.commands,
            without_service=max(seen.without_service, 0.0 if is_back else seen.waiting),
            wrong=seen.wrong,
            falls=seen.falls,
            errors=seen.errors,
            nodes_named=nodes_named,
            is_back=is_back,
        )


@dataclasses.dataclass(frozen=True)
class Change:
    """One change, as all clients saw it."""

    kind: str
    outcomes: list[Outcome]

    def control_of(self, one: Outcome) -> Outcome:
        """What the same library has seen straight at the nodes."""
        return next(two for two in self.outcomes if (two.library, two.path) == (one.library, CONTROL))

    def beyond(self, one: Outcome) -> float:
        """For how many seconds longer than its control it was without service."""
        return one.without_service - self.control_of(one).without_service

    def faults_of(self, one: Outcome, *, timed: bool = True) -> dict[str, int]:
        """What must not be, and how often this client saw it. `timed`: also if service was away too long."""
        control = self.control_of(one)
        foreign = sum(number for kind, number in one.errors.items() if kind not in control.errors)
        checks = {
            "replies of other requests": len(one.wrong),
            "values that fell": one.falls if self.kind in LOSSLESS else 0,
            "errors that the control has not seen": foreign if self.kind in MOVES else 0,
            "errors that name a node": one.nodes_named,
            "clients that never wrote again": int(control.is_back and not one.is_back),
            "outages too long": int(timed and self.kind not in MOVES and self.beyond(one) > BEYOND_SECONDS),
        }
        return {what: number for what, number in checks.items() if number}

    def faults(self, *, timed: bool = True) -> Iterator[str]:
        """What must not be, of clients of keyfence."""
        for one in self.outcomes:
            if one.path != CONTROL:
                for what, number in self.faults_of(one, timed=timed).items():
                    yield f"{self.kind}, {one.library}, {one.path}: {number} {what}; {self._more(one, what)}"

    def _more(self, one: Outcome, what: str) -> str:
        if "too long" in what:
            return f"{one.without_service:.2f} s, control {self.control_of(one).without_service:.2f} s"
        return f"{one.wrong[:2] if 'replies' in what else one.errors}"


def read(lines: Iterable[str]) -> list[Change]:
    """The changes in the lines that `raw.write` has written."""
    found = [json.loads(line) for line in lines]
    return [Change(one["kind"], [Outcome(**outcome) for outcome in one["outcomes"]]) for one in found]
