from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.news.claims import KEEP_SECONDS, LEASE, PAUSES, Claims, Waiting
from keyfence.findings.news.digest import Covered
from keyfence.findings.news.plan import Period
from tests.findings.news.digests import digest
from tests.findings.rows import NOON

TODAY = Period("day 2023-11-14", NOON, DAY)
SLACK = Waiting(TODAY.name, "slack")


@pytest.fixture
def one(database: Database) -> Claims:
    return Claims(database, "one")


@pytest.fixture
def other(database: Database) -> Claims:
    return Claims(database, "other")


def made(event: int = 7, **lists: object) -> Covered:
    return Covered(digest(**lists), event)


def test_the_first_digest_covers_what_comes_after_the_news_began(one: Claims) -> None:
    assert one.bounds(TODAY) is None
    one.begin(TODAY, 3)
    assert (one.is_made(TODAY.name), one.digest(TODAY.name), one.waiting(NOON)) == (True, None, [])
    bounds = one.bounds(Period("day 2023-11-15", NOON + DAY, DAY))
    assert bounds is not None
    assert (bounds.since, bounds.until, bounds.after) == (NOON, NOON + DAY, 3)


def test_a_digest_goes_on_where_the_last_one_ended(one: Claims, other: Claims) -> None:
    ready = [{"rule": "scope.write", "service": "web", "new": True}]
    one.add(TODAY, made(9, ready=ready), ["slack"])
    bounds = other.bounds(Period("day 2023-11-17", NOON + 3 * DAY, DAY))
    assert bounds is not None
    assert (bounds.since, bounds.after, bounds.ready) == (NOON, 9, {("scope.write", "web")})


def test_the_first_instance_makes_the_digest_that_all_send(one: Claims, other: Claims) -> None:
    one.add(TODAY, made(environment="prod"), ["slack"])
    other.add(TODAY, made(environment="later"), ["slack", "mail"])
    found = other.digest(TODAY.name)
    assert found is not None
    assert found["environment"] == "prod"
    assert [each.target for each in one.waiting(NOON)] == ["mail", "slack"]


def test_one_of_many_instances_may_send(database: Database, one: Claims) -> None:
    one.add(TODAY, made(), ["slack"])
    start = threading.Barrier(8)

    def claim(name: int) -> int:
        its_own = Claims(database, f"instance {name}")
        start.wait()
        return its_own.claim(SLACK, NOON)

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(claim, range(8))) == [0] * 7 + [1]


def test_what_is_sent_is_not_sent_again(one: Claims, other: Claims) -> None:
    one.add(TODAY, made(), ["slack"])
    assert one.claim(SLACK, NOON) == 1
    one.sent(SLACK)
    assert other.waiting(NOON + DAY) == []
    assert other.claim(SLACK, NOON + DAY) == 0
    one.expect(TODAY.name, ["slack"])
    assert other.waiting(NOON + DAY) == []


def test_after_a_crash_another_instance_sends(one: Claims, other: Claims) -> None:
    one.add(TODAY, made(), ["slack"])
    assert one.claim(SLACK, NOON) == 1
    assert other.waiting(NOON + LEASE - 1) == []
    assert other.claim(SLACK, NOON + LEASE - 1) == 0
    assert other.waiting(NOON + LEASE) == [SLACK]
    assert other.claim(SLACK, NOON + LEASE) == 2
    # The first one was only slow. What it says now changes nothing.
    assert one.failed(SLACK, 1, NOON + LEASE) == PAUSES[0]
    one.sent(SLACK)
    assert other.claim(SLACK, NOON + 2 * LEASE) == 3


def test_a_failure_is_tried_again_after_growing_pauses_and_then_given_up(one: Claims) -> None:
    one.add(TODAY, made(), ["slack"])
    now, pauses = NOON, []
    while tries := one.claim(SLACK, now):
        pauses.append(one.failed(SLACK, tries, now))
        assert one.claim(SLACK, now + pauses[-1] - 1) == 0
        now += pauses[-1]
    assert pauses == [*PAUSES, 0.0]
    assert one.waiting(now + DAY) == []
    assert not one.give_up(SLACK, now + DAY)  # it is already


def test_instances_that_die_each_time_do_not_send_for_ever(one: Claims) -> None:
    one.add(TODAY, made(), ["slack"])
    times = [NOON + LEASE * number for number in range(10)]
    assert [one.claim(SLACK, at) for at in times] == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
    assert one.waiting(times[-1]) == [SLACK]
    assert [one.give_up(SLACK, times[-1]) for _ in range(2)] == [True, False]
    assert one.waiting(times[-1]) == []


def test_old_digests_are_deleted_and_the_last_one_stays(one: Claims, database: Database) -> None:
    one.add(TODAY, made(), ["slack"])
    late = Period("day 2024-01-14", NOON + 2 * KEEP_SECONDS, DAY)
    assert one.bounds(late) is not None
    one.add(late, Covered(digest(until=late.due), 8), ["slack"])
    assert not one.is_made(TODAY.name)
    assert [each.period for each in one.waiting(late.due)] == [late.name]
    assert database.shown
