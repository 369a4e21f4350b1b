from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.findings.spans import Span, clipped, seconds, span_text, union, without

SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda one: Span(one[0], one[0] + one[1])),
    max_size=8,
)


def times(spans: list[Span]) -> set[int]:
    """The whole seconds that begin within spans."""
    return {at for one in spans for at in range(int(one.begin), int(one.end))}


@given(SPANS)
def test_a_union_covers_what_any_span_covers(spans: list[Span]) -> None:
    merged = union(spans)
    assert times(merged) == times(spans)
    assert all(one.end < other.begin for one, other in pairwise(merged))


@given(SPANS, SPANS)
def test_gaps_are_taken_out(spans: list[Span], gaps: list[Span]) -> None:
    assert times(without(spans, gaps)) == times(spans) - times(gaps)


@given(SPANS, st.integers(0, 40), st.integers(0, 40))
def test_seconds_count_the_time_between_two_times(spans: list[Span], begin: int, end: int) -> None:
    merged = union(spans)
    assert seconds(merged, begin, end) == len(times(merged) & set(range(begin, end)))
    assert times(clipped(merged, begin, end)) == times(merged) & set(range(begin, end))


@pytest.mark.parametrize(
    ("span", "text"),
    [(0, "1s"), (59, "59s"), (60, "1m"), (3_660, "1h 1m"), (604_800, "7d"), (600_000, "6d 22h")],
)
def test_a_span_is_shown_in_its_two_largest_units(span: float, text: str) -> None:
    assert span_text(span) == text
