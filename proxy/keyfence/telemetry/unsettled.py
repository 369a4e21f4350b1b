"""Findings on keys whose shape may still change: they are counted under the right one once it is learned.

Rule: a report shows a finding under the shape that is known when the report is made. Only counts move between
rows, so their sums stay exact.

The keys themselves are held meanwhile, in memory only, and MAX_HELD of them at most; beyond, a finding stays
where it was counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from keyfence.policy.verdict import Violation
from keyfence.shapes.shapes import MAX_LENGTH, Shapes

from .tally import Row, Tally

MAX_HELD = 1_000


class Place(NamedTuple):
    """Where findings were counted, and on which key."""

    service: str
    rule: str
    command: str
    entry: str
    shape: str
    key: bytes
    action: str


class _Held:
    __slots__ = ("first", "last", "times", "violation")

    def __init__(self, violation: Violation, at: float) -> None:
        self.violation = violation
        self.times = 0
        self.first = self.last = at


class Unsettled:
    """The findings that were counted under a shape that hides a word which may show later."""

    def __init__(self) -> None:
        self._held: dict[Place, _Held] = {}
        self._learned = 0  # of the shapes, as far as findings were moved

    def hold(self, place: Place, violation: Violation, times: int, at: float) -> None:
        """Remember where `times` findings were counted."""
        held = self._held.get(place)
        if held is None:
            if len(self._held) >= MAX_HELD or len(place.key) > MAX_LENGTH:
                return
            held = self._held[place] = _Held(violation, at)
        held.times += times
        held.last = at

    def forget(self) -> None:
        """The shapes begin anew: what was counted stays where it is."""
        self._held.clear()
        self._learned = 0

    def move(
        self, shapes: Shapes, tally: Tally, row_of: Callable[[str, str, Violation, str, float], Row]
    ) -> None:
        """Count each finding under the shape that its key has by now. `row_of` makes a row that counts
        nothing."""
        if self._learned == shapes.learned:
            return
        self._learned = shapes.learned
        for place, held in list(self._held.items()):
            shape = shapes.reshaped(place.key)
            if shape == place.shape:
                continue
            del self._held[place]
            before = tally.find(place.service, place.rule, place.command, place.entry, place.shape)
            if before is None:
                continue  # there was no room for a row of its own
            tally.count(before, place.action, before["last"], -held.times)
            row = tally.find(place.service, place.rule, place.command, place.entry, shape)
            if row is None:
                row = row_of(place.service, place.command, held.violation, shape, held.first)
                row["count"] = row["actions"][place.action] = held.times
                row["last"] = held.last
                tally.add(row)
            else:
                tally.count(row, place.action, max(row["last"], held.last), held.times)
                row["first"] = min(row["first"], held.first)
            if before["example"] == row["example"]:
                before["example"] = ""
            self._held[place._replace(shape=shape)] = held
