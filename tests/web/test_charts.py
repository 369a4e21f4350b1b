from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyfence.web.charts import DAY, HOUR, SERIES, WIDTH, bars, sparkline

NOON = 1_700_000_000 // DAY * DAY + DAY // 2


def at(hour: int, **counts: int) -> dict[str, Any]:
    return {"hour": NOON + hour * HOUR, **dict.fromkeys(SERIES, 0), **counts}


def rectangles(chart: str) -> list[dict[str, str]]:
    return [dict(one.attrib) for one in ET.fromstring(chart).iter("rect")]


def titles(chart: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(chart).iter("title")]


def test_each_hour_is_a_bar_with_its_numbers_as_title() -> None:
    rows = [at(-2, observed=3, refused=1), at(-1), at(0, waived=2)]
    chart = bars(rows, NOON - 3 * HOUR, NOON, "violations")
    assert titles(chart) == ["2023-11-14 10:00: 1 refused, 3 observed", "2023-11-14 12:00: 2 waived"]
    assert [one["class"] for one in rectangles(chart)] == ["refused", "observed", "waived"]
    assert 'aria-label="violations: 1 refused, 3 observed, 2 waived"' in chart
    assert "at most 4 per hour" in chart


def test_longer_times_are_shown_by_six_hours_and_by_day() -> None:
    rows = [at(-30, observed=1), at(-29, observed=1), at(0, observed=5)]
    by_six_hours = bars(rows, NOON - 7 * DAY, NOON, "violations")
    assert "at most 5 per 6 hours" in by_six_hours
    by_day = bars(rows, NOON - 30 * DAY, NOON, "violations")
    assert "at most 5 per day" in by_day
    assert titles(by_day) == ["2023-11-13: 2 observed", "2023-11-14: 5 observed"]
    assert "<span>2023-10-15</span>" in by_day


def test_hours_outside_the_time_are_left_out() -> None:
    chart = bars([at(-100, observed=1), at(1, observed=1), at(0, late=1)], NOON - HOUR, NOON, "violations")
    assert len(rectangles(chart)) == 1
    assert 'aria-label="violations: 1 late"' in chart


def test_a_chart_of_nothing_is_a_sentence() -> None:
    text = bars([at(-100, observed=1)], NOON - HOUR, NOON, "violations")
    assert text == '<p class="about">Violations: none.</p>'


def test_a_small_number_beside_a_large_one_can_still_be_seen() -> None:
    chart = bars([at(-1, observed=1), at(0, observed=1_000_000)], NOON - HOUR, NOON, "violations")
    assert float(rectangles(chart)[0]["height"]) >= 1


def test_violations_that_moved_to_another_finding_leave_no_bar() -> None:
    chart = bars([at(-1, observed=2), at(0, observed=-2, refused=1)], NOON - HOUR, NOON, "violations")
    assert titles(chart) == ["2023-11-14 11:00: 2 observed", "2023-11-14 12:00: 1 refused"]
    assert all(float(one["height"]) > 0 for one in rectangles(chart))


def test_a_time_that_ends_before_it_begins_is_an_empty_chart() -> None:
    assert rectangles(bars([at(0, observed=1)], NOON + DAY, NOON, "violations")) == []


@given(st.lists(st.builds(at, st.integers(-800, 800), observed=st.integers(0, 10**12)), max_size=20))
def test_every_bar_lies_within_the_chart(rows: list[dict[str, Any]]) -> None:
    for days in (1, 7, 30):
        for one in rectangles(bars(rows, NOON - days * DAY, NOON, "violations")):
            assert 0 <= float(one["x"]) <= WIDTH
            assert float(one["x"]) + float(one["width"]) <= WIDTH + 1
            assert float(one["y"]) >= 0


def test_a_label_is_escaped() -> None:
    chart = bars([], NOON, NOON, '"><script>')
    assert "<script>" not in chart
    ET.fromstring(chart)
    assert "<script>" not in sparkline([1, 2], '"><script>')


def test_a_sparkline_goes_from_bottom_to_top() -> None:
    line = ET.fromstring(sparkline([0, 5, 10], "commands"))
    (polyline,) = line
    assert polyline.attrib["points"] == "0.0,19.0 48.0,10.0 96.0,1.0"
    assert line.attrib["aria-label"] == "commands"


def test_a_sparkline_of_nothing_is_flat() -> None:
    assert 'points="0.0,19.0 96.0,19.0"' in sparkline([0, 0], "commands")
    assert 'points=""' in sparkline([], "commands")
