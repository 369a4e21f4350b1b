"""Counts of what a candidate policy would change."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.verdict import CHANGES, Change, Changed, Finding, Peer
from keyfence.telemetry.candidate import changes, rows
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.candidate.rows import Comparisons, rows_of
from keyfence.telemetry.counters import MAX_SERIES, Counters
from keyfence.telemetry.telemetry import RETIRED, Telemetry
from tests.telemetry.violations import violation

PEER = Peer("10.0.0.7:50000", library="redis-py")


def changed(
    change: Change, action: Literal["observed", "refused"] = "observed", rule: str = "scope.write"
) -> Changed:
    return Changed(change, Finding(violation(rule=rule), action))


def comparison() -> Changes:
    return Changes(1, Counters(), clock=lambda: 0.0, wall=lambda: 1000.0)


def test_each_change_has_rows_of_its_own() -> None:
    one = comparison()
    one.changes("A", PEER, "SET", [changed("new", "refused"), changed("same", rule="key.legacy")])
    one.changes("A", PEER, "SET", [changed("gone")])
    one.changes("A", PEER, "SET", [changed("new", "refused")])
    rows = [(row["change"], row["rule"], row["count"], row["actions"]) for row in rows_of(one.tallies())]
    assert rows == [
        ("new", "scope.write", 2, {"refused": 2}),
        ("same", "key.legacy", 1, {"observed": 1}),
        ("gone", "scope.write", 1, {"observed": 1}),
    ]


def test_a_violation_that_only_one_policy_refuses_is_the_same_in_the_metric() -> None:
    counters = Counters()
    one = Changes(1, counters)
    for change in CHANGES:
        one.changes("A", PEER, "SET", [changed(change)])
    assert counters.candidate_violations == {
        ("A", "scope.write", "new"): 1,
        ("A", "scope.write", "same"): 3,
        ("A", "scope.write", "gone"): 1,
    }


def test_admitted_commands_are_gathered_once() -> None:
    one, admitted = comparison(), Admitted("GET")
    admitted.times = 7
    one.gather_from("A", admitted)
    one.command("A")
    one.gather()
    one.gather()
    assert one.commands == {"A": 8}
    assert (admitted.times, admitted.is_gathered) == (0, False)


def test_alike_commands_are_counted_while_every_counter_of_them_is_live() -> None:
    one = comparison()
    found = [changed("new"), changed("gone", rule="key.legacy")]
    kind = ViolationCounter(None)
    for _ in range(3):  # a group recurs from its second finding on
        one.changes("A", PEER, "SET", found)
        one.count_alike(kind, None, "A", "SET", found)
    counters = one.counters(kind, None)
    assert counters is not None
    assert len(counters) == 2
    for counter in counters:
        counter.times += 10
    assert [row["count"] for row in rows_of(one.tallies())] == [13, 13]
    assert one.counters(None, kind) is None
    assert RETIRED > 1
    one.flush()
    assert one.counters(kind, None) is None


def test_the_kinds_that_are_only_counted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_KINDS", 3)
    one = comparison()
    found = [changed("new")]
    one.changes("A", PEER, "SET", found)
    one.changes("A", PEER, "SET", found)
    for _ in range(10):
        one.count_alike(ViolationCounter(None), None, "A", "SET", found)
        assert len(one._kinds) <= 3


def test_services_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_SERVICES", 2)
    one = comparison()
    for service in ("A", "B", "C", "D", "A"):
        one.command(service)
    assert one.commands == {"A": 2, "B": 1, "other": 2}


def test_telemetry_gathers_and_flushes_a_comparison_with_itself() -> None:
    telemetry = Telemetry()
    one = Changes(1, telemetry.counters)
    telemetry.beside = one
    admitted = Admitted("GET")
    admitted.times = 3
    one.gather_from("A", admitted)
    assert telemetry.counters.candidate_commands == {"A": 3}
    telemetry.mask(True)
    one.changes("A", PEER, "SET", [changed("new")])
    assert rows_of(one.tallies())[0]["example"].startswith("sha256:")


def test_series_of_new_findings_begin_with_zero() -> None:
    counters = Counters()
    counters.begin_comparison(["A", "B"], ["scope.read", "scope.write"])
    assert set(counters.candidate_violations.values()) == {0}
    assert len(counters.candidate_violations) == 4
    many = Counters()
    many.begin_comparison([str(number) for number in range(MAX_SERIES)], ["scope.read"])
    assert many.candidate_violations == {}


def test_the_sum_of_workers_leaves_out_what_belongs_to_another_comparison() -> None:
    total, one = Comparisons(2), comparison()
    one.changes("A", PEER, "SET", [changed("new")])
    rows = [[change, tally.snapshot()] for change, tally in one.tallies().items()]
    sent = json.loads(json.dumps({"number": 2, "commands": [["A", 5]], "rows": rows, "rehearsed": []}))
    total.absorb(sent)
    total.absorb(sent | {"number": 1})
    total.absorb(sent)
    assert total.commands == {"A": 10}
    assert [(row["change"], row["count"]) for row in rows_of(total.tallies())] == [("new", 2)]
