"""What the picture of a fleet says of its candidate: sums, and who does not compare it and why."""

from __future__ import annotations

import json
from typing import Any

from keyfence.findings.fleet import SILENT_SECONDS, Known
from keyfence.findings.fleet_diff import candidates_of, whole_picture
from keyfence.findings.instances import Comparison, Found, Instance, bounded
from tests.findings.rows import NOON
from tests.findings.test_fleet import an_instance
from tests.findings.test_instances import a_comparison, changed


def a_store(*said: tuple[Instance | None, Comparison | None, list[dict[str, Any]]]) -> Known:
    """What a store has of instances (None: it has ended), their comparisons and rows."""
    instances = [one for one, _, _ in said if one is not None]
    return Known(instances, {}, [Found(one, bounded(rows)) for _, one, rows in said if one is not None])


def comparing(
    name: str, *rows: dict[str, Any], **more: Any
) -> tuple[Instance, Comparison, list[dict[str, Any]]]:
    environment = more.get("environment", "prod")
    return an_instance(name, environment), a_comparison(name, **more), list(rows)


def of(*stores: Known) -> dict[str, Any]:
    (found,) = candidates_of(stores, NOON)
    return found


def texts(found: dict[str, Any]) -> list[str]:
    return [one["text"] for one in found["lines"]]


def test_what_instances_have_found_is_added_up() -> None:
    found = of(
        a_store(
            comparing("a", changed(times=2), changed("gone", 3), changed("same", 9, "observed")),
            comparing("b", changed(times=5), changed(times=1, rule="ttl.required", action="observed")),
        )
    )
    assert found["commands"] == {"shop": 200}
    assert (found["comparing"], found["ended"], found["lines"]) == (2, 0, [])
    assert [(one["change"], one["rule"], one["count"]) for one in found["by_rule"]] == [
        ("new", "scope.write", 7),
        ("new", "ttl.required", 1),
        ("gone", "scope.write", 3),
    ]
    assert found["totals"] == {
        "new": 8,
        "stricter": 0,
        "milder": 0,
        "gone": 3,
        "same": 9,
        "newly_refused": 7,
        "newly_allowed": 3,
    }
    assert found["candidate"]["sequence"] == 3


def test_stricter_and_milder_are_refused_by_one_of_the_two() -> None:
    found = of(a_store(comparing("a", changed("stricter", 4), changed("milder", 6, "observed"))))
    assert (found["totals"]["newly_refused"], found["totals"]["newly_allowed"]) == (4, 6)


def test_several_stores_are_one_sum_and_a_store_that_is_named_twice_counts_once() -> None:
    one, other = a_store(comparing("a", changed(times=2))), a_store(comparing("b", changed(times=5)))
    assert of(one, other, one)["totals"]["new"] == 7


def test_what_an_instance_has_counted_before_its_restart_counts() -> None:
    ended = (None, a_comparison("a"), [changed(times=2)])
    found = of(a_store(ended, comparing("b", changed(times=5))))
    assert (found["totals"]["new"], found["comparing"], found["ended"]) == (7, 1, 1)
    before = (None, a_comparison("a", revision="before"), [changed(times=2)])
    assert of(a_store(before, comparing("b", changed(times=5))))["totals"]["new"] == 5


def test_who_does_not_compare_it_is_named_with_the_reason() -> None:
    silent = an_instance("silent", last=NOON - SILENT_SECONDS - 1)
    refused = a_comparison("refusing", state="refused", reason="unsigned: there is none", digest="")
    found = of(
        a_store(
            comparing("a"),
            (an_instance("refusing"), refused, []),
            (an_instance("elsewhere"), None, []),
            (silent, a_comparison("silent"), [changed(times=4)]),
            comparing("late", digest="d2", signed={"sequence": 2}),
            (an_instance("busy"), a_comparison("busy", state="busy", digest=""), []),
            (an_instance("other", policy="billing"), None, []),
        )
    )
    assert sorted(texts(found)) == [
        "busy (prod) compares a candidate of its own, which an operator has loaded there",
        "elsewhere (prod) does not compare it: it takes its policy from elsewhere, or has not reported it "
        "yet",
        "late (prod) still compares candidate 2",
        "refusing (prod) refuses it: unsigned: there is none",
        "silent (prod) is silent",
    ]
    assert all(one["is_wrong"] for one in found["lines"])
    assert found["comparing"] == 1
    assert found["totals"]["new"] == 4, "what it has counted before counts"


def test_a_candidate_that_everybody_refuses_is_one_without_a_name() -> None:
    refused = a_comparison("a", state="refused", reason="untrusted key: x", digest="", commands="{}")
    found = of(a_store((an_instance("a"), refused, [])))
    assert (found["candidate"], found["comparing"], found["commands"]) == ({}, 0, {})
    assert texts(found) == ["a (prod) refuses it: untrusted key: x"]


def test_a_candidate_that_was_overtaken_says_so() -> None:
    found = of(a_store(comparing("a", sequence=13), comparing("b", sequence=13)))
    assert texts(found) == [
        "the candidate is based on version 12, and 13 is in force: it is compared with that, and would undo "
        "what that has changed; push the candidate again"
    ]


def test_environments_with_different_policies_in_force_are_told_apart() -> None:
    found = of(a_store(comparing("a"), comparing("b", environment="staging", revision="def")))
    assert texts(found) == [
        "1 instance compares it with abc (prod), 1 instance compares it with def (staging)"
    ]


def test_environments_with_candidates_of_their_own_have_one_each() -> None:
    one = a_store(comparing("a", changed(times=2)))
    other = a_store(
        comparing("b", changed(times=5), environment="staging", digest="d9", signed={"sequence": 9})
    )
    found = candidates_of([one, other], NOON)
    assert [(each["candidate"]["sequence"], each["totals"]["new"]) for each in found] == [(3, 2), (9, 5)]


def test_without_a_candidate_there_is_none() -> None:
    assert candidates_of([a_store((an_instance("a"), None, []))], NOON) == []


def test_it_is_a_part_of_the_picture_of_the_fleet() -> None:
    found = whole_picture([a_store(comparing("a"))], NOON)
    assert found["healthy"]
    assert [one["candidate"]["sequence"] for one in found["candidates"]] == [3]
    json.dumps(found)
