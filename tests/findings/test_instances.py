"""What instances say of the fleet's candidate is kept as long as it counts, and no longer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from keyfence.findings.batch import Batch
from keyfence.findings.instances import KEEP_SECONDS, MAX_ROWS, Compared, Comparison, Found, bounded
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from tests.findings.rows import NOON, row
from tests.findings.test_fleet import an_instance


def changed(change: str = "new", times: int = 1, action: str = "refused", **fields: Any) -> dict[str, Any]:
    """A row of a comparison, as telemetry counts it."""
    return {**row(times, action=action, **fields), "change": change}


def a_comparison(name: str, **more: Any) -> Comparison:
    """What the instance of this name says of candidate 3, by default that it compares it."""
    one = an_instance(name)
    signed = {"name": "shop", "sequence": 3, "base": 12, "author": "ada", "message": "", "revision": "new"}
    given: dict[str, Any] = {
        "id": one.id,
        "name": name,
        "environment": one.environment,
        "policy": one.policy,
        "revision": one.revision,
        "sequence": 12,
        "state": "comparing",
        "reason": "",
        "digest": "d3",
        "candidate": json.dumps(signed | more.pop("signed", {})),
        "since": NOON - 600,
        "commands": json.dumps({"shop": 100}),
        "last": NOON,
    }
    return Comparison(**given | more)


def say(store: Store, one: Comparison | None, *rows: dict[str, Any], name: str = "") -> None:
    """An instance reports."""
    made = Batch()
    made.instance = an_instance(name or (one.name if one is not None else ""))
    made.compared = None if one is None else Compared(one, lambda: rows)
    store.write(made)


def kept(store: Store) -> list[Found]:
    return Reader(store.database).comparisons()


def counts(found: Iterable[Found]) -> dict[str, list[int]]:
    return {one.comparison.name: [row["count"] for row in one.rows] for one in found}


def test_an_instance_replaces_what_it_has_said_and_touches_no_other(store: Store) -> None:
    say(store, a_comparison("a"), changed(times=2), changed("gone", 1))
    say(store, a_comparison("b"), changed(times=7))
    say(store, a_comparison("a"), changed(times=5), changed("gone", 3))
    assert counts(kept(store)) == {"a": [5, 3], "b": [7]}
    (first, _) = kept(store)[0].rows
    assert (first["change"], first["refused"], first["observed"], first["example"]) == (
        "new",
        5,
        0,
        "order:7",
    )
    assert kept(store)[0].comparison == a_comparison("a")
    say(store, None, name="a")
    assert counts(kept(store)) == {"b": [7]}


def test_what_was_counted_outlasts_the_instance_while_the_candidate_stays(store: Store) -> None:
    say(store, a_comparison("a"), changed(times=2))
    store.leave("a:1")
    say(store, a_comparison("b"), changed(times=7))
    assert counts(kept(store)) == {"a": [2], "b": [7]}


def test_what_has_ended_goes_with_another_candidate_or_policy(store: Store) -> None:
    for other in ({"digest": "d4"}, {"revision": "later"}):
        say(store, a_comparison("a"), changed(times=2))
        store.leave("a:1")
        say(store, a_comparison("b", **other), changed(times=7))
        assert counts(kept(store)) == {"b": [7]}


def test_what_others_say_that_still_run_stays_until_they_say_otherwise(store: Store) -> None:
    say(store, a_comparison("a"), changed(times=2))
    say(store, a_comparison("b", digest="d4"), changed(times=7))
    assert counts(kept(store)) == {"a": [2], "b": [7]}


def test_another_policy_in_the_same_store_is_left_alone(store: Store) -> None:
    say(store, a_comparison("a"), changed(times=2))
    store.leave("a:1")
    made = Batch()
    made.instance = an_instance("b", policy="billing")
    made.compared = Compared(a_comparison("b", policy="billing", digest="d9"), list)
    store.write(made)
    assert counts(kept(store)) == {"a": [2], "b": []}


def test_after_days_it_is_forgotten(store: Store) -> None:
    say(store, a_comparison("a"), changed(times=2))
    store.prune(90 * 86_400, NOON + KEEP_SECONDS + 1)
    assert kept(store) == []


def test_rows_beyond_the_limit_are_added_up_by_service_and_rule() -> None:
    many = [changed(times=number + 1, entry=f"e{number}") for number in range(MAX_ROWS + 50)]
    found = bounded([*many, changed("same", 9, entry="x"), changed("same", 1, entry="y")])
    assert len(found) == MAX_ROWS + 2
    assert sum(one["count"] for one in found) == sum(one["count"] for one in many) + 10
    assert found[0]["entry"] == f"e{MAX_ROWS + 49}"
    (rest,) = [one for one in found if one["change"] == "new" and not one["entry"]]
    assert (rest["count"], rest["command"]) == (sum(range(1, 51)), "other")
    (same,) = [one for one in found if one["change"] == "same"]
    assert same["count"] == 10


def test_a_long_example_is_cut() -> None:
    (one,) = bounded([changed(key="k" * 5_000)])
    assert len(one["example"]) == 200


def test_a_comparison_is_a_row_of_the_table(store: Store) -> None:
    one = dataclasses.replace(
        a_comparison("a"), state="refused", reason="unsigned: …", digest="", commands="{}"
    )
    say(store, one)
    assert [each.comparison for each in kept(store)] == [one]
