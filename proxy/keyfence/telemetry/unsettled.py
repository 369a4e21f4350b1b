"""Findings on keys whose shape may still change: they are counted under the right shape once it is learned.

Rule: a report shows a finding under the shape that is known when the report is made. Only counts move between
rows, so sums stay exact.

Until then the keys are held, in memory only, and MAX_HELD of them at most. Beyond that a finding stays where
it was counted.
"""

from __future__ import annotations

import dataclasses

from keyfence.shapes.shapes import MAX_LENGTH, Shapes

from .sink import Group, Occurrence
from .tally import Tally

MAX_HELD = 1_000


@dataclasses.dataclass(slots=True)
class _Held:
    first: Occurrence
    last: float  # when the last one came, in Unix seconds
    times: int = 0


class Unsettled:
    """The findings that were counted under a shape that may still change."""

    def __init__(self) -> None:
        self._held: dict[tuple[Group, bytes], _Held] = {}
        self._learned = 0  # `Shapes.learned` when findings were last moved

    def hold(self, group: Group, key: bytes, found: Occurrence) -> None:
        """Remember where a finding on a key was counted."""
        held = self._held.get((group, key))
        if held is None:
            if len(self._held) >= MAX_HELD or len(key) > MAX_LENGTH:
                return
            held = self._held[group, key] = _Held(found, found.at)
        held.times += found.times
        held.last = found.at

    def forget(self) -> None:
        """Learning begins again: findings stay where they were counted."""
        self._held.clear()
        self._learned = 0

    def move(self, shapes: Shapes, tally: Tally) -> None:
        """Count each finding under the shape that its key has by now."""
        if self._learned == shapes.learned:
            return
        self._learned = shapes.learned
        for (group, key), held in list(self._held.items()):
            shape = shapes.reshaped(key)
            if shape == group.shape:
                continue
            del self._held[group, key]
            before = tally.find(group[:5])
            if before is None:
                continue  # there was no room for a row of its own
            tally.count(before, group.action, before["last"], -held.times)
            for example in before.get("examples", ()):
                if example["key"] == held.first.violation.shown:
                    example["times"] = 0  # it shows what was moved
            moved = group._replace(shape=shape)
            row = tally.find(moved[:5])
            if row is None:
                row = tally.new_row(moved, held.first._replace(times=held.times))
                row["clients"] = []
                row["last"] = held.last
                tally.add(row)
            else:
                tally.count(row, group.action, max(row["last"], held.last), held.times)
                row["first"] = min(row["first"], held.first.at)
            if before["example"] == row["example"]:
                before["example"] = ""
            self._held[moved, key] = held
