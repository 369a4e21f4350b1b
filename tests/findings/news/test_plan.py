from __future__ import annotations

import datetime

import pytest

from keyfence.findings.news.plan import DAY, Plan, Target, merged


def plan(weekday: int | None = None, zone: str = "UTC", hour: int = 8) -> Plan:
    return Plan(weekday, hour, 0, zone, (), None, "", False)


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("now", "name", "due"),
    [
        ("2026-11-30T07:59:59+00:00", "day 2026-11-29", "2026-11-29T08:00:00+00:00"),
        ("2026-11-30T08:00:00+00:00", "day 2026-11-30", "2026-11-30T08:00:00+00:00"),
        ("2026-12-01T00:00:00+00:00", "day 2026-11-30", "2026-11-30T08:00:00+00:00"),
    ],
)
def test_a_daily_digest_is_due_at_its_time(now: str, name: str, due: str) -> None:
    period = plan().last_due(at(now))
    assert (period.name, period.due, period.length) == (name, at(due), DAY)


@pytest.mark.parametrize(
    ("now", "name"),
    [
        ("2026-11-30T07:00:00+00:00", "week 2026-11-23"),  # a Monday
        ("2026-11-30T08:00:00+00:00", "week 2026-11-30"),
        ("2026-12-06T23:00:00+00:00", "week 2026-11-30"),
    ],
)
def test_a_weekly_digest_is_due_on_its_day(now: str, name: str) -> None:
    period = plan(weekday=0).last_due(at(now))
    assert (period.name, period.length) == (name, 7 * DAY)


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-03-28T12:00:00+01:00", "2026-03-28T07:00:00+00:00"),
        ("2026-03-29T12:00:00+02:00", "2026-03-29T06:00:00+00:00"),  # the clocks were put forward
        ("2026-10-25T12:00:00+01:00", "2026-10-25T07:00:00+00:00"),  # and back
    ],
)
def test_the_time_of_day_is_that_of_the_zone(now: str, due: str) -> None:
    assert plan(zone="Europe/Berlin").last_due(at(now)).due == at(due)


def test_a_time_that_a_day_does_not_have_is_due_once() -> None:
    night = plan(zone="Europe/Berlin", hour=2)
    names = {night.last_due(at("2026-03-29T00:00:00+00:00") + 600 * step).name for step in range(24)}
    assert names == {"day 2026-03-28", "day 2026-03-29"}


def test_a_place_that_is_named_twice_gets_one_message() -> None:
    hook = Target("https://hooks.example/x", "slack")
    (one,) = merged(
        [
            hook._replace(gets_rest=True),
            hook._replace(owners=frozenset({"a"})),
            hook._replace(owners=frozenset({"b"})),
        ]
    )
    assert (one.gets_rest, one.owners) == (True, {"a", "b"})


def test_the_name_of_a_target_is_the_same_everywhere_and_no_secret() -> None:
    one = Target("https://hooks.example/secret", owners=frozenset({"a"}))
    assert one.name == one._replace(owners=frozenset(), gets_rest=True).name
    assert one.name != Target("https://hooks.example/secret", "slack").name
    assert "secret" not in one.name
