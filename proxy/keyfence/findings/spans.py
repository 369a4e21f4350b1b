"""Spans of time: when keyfence was looking, and the gaps in between.

Rule: a span is (begin, end) in Unix seconds with begin <= end. A list of spans is sorted and disjoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

LOOKING, PASSTHROUGH, OPAQUE = "looking", "passthrough", "opaque"  # kinds of spans
SAME_SPAN_SECONDS = 5.0  # a shorter pause between two spans of an instance is none


class Span(NamedTuple):
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def union(spans: Iterable[Span]) -> list[Span]:
    """The time that any of the spans covers."""
    merged: list[Span] = []
    for one in sorted(spans):
        if merged and one.begin <= merged[-1].end:
            merged[-1] = Span(merged[-1].begin, max(merged[-1].end, one.end))
        else:
            merged.append(one)
    return merged


def without(spans: Iterable[Span], gaps: Iterable[Span]) -> list[Span]:
    """The time of `spans` that none of `gaps` covers."""
    left: list[Span] = []
    holes = union(gaps)
    for one in union(spans):
        begin = one.begin
        for hole in holes:
            if hole.end <= begin or hole.begin >= one.end:
                continue
            if hole.begin > begin:
                left.append(Span(begin, hole.begin))
            begin = hole.end
        if begin < one.end:
            left.append(Span(begin, one.end))
    return left


def clipped(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The part of the spans between two times."""
    cut = (Span(max(one.begin, begin), min(one.end, end)) for one in spans)
    return [one for one in cut if one.begin < one.end]


def seconds(spans: Iterable[Span], begin: float, end: float) -> float:
    """How many seconds between two times the spans cover."""
    return sum(one.seconds for one in clipped(spans, begin, end))


def span_text(span: float) -> str:
    """A time span for people, in its two largest units: `6d 21h`, `5m`."""
    rest = max(int(span), 1)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        number, rest = divmod(rest, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))
