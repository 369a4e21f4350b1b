from __future__ import annotations

import json
from typing import Any

import pytest

from keyfence.policy.verdict import Peer
from keyfence.telemetry import tally as module
from keyfence.telemetry.sink import Group, Occurrence
from keyfence.telemetry.tally import Row, Tally
from tests.telemetry.violations import violation


def row(**given: Any) -> Row:
    fields: dict[str, Any] = {
        "service": "CubeProxy",
        "rule": "scope.write",
        "severity": "must",
        "command": "HSET",
        "entry": "route",
        "shape": "",
        "count": 1,
        "actions": {"observed": 1},
        "first": 100.0,
        "last": 100.0,
        "example": "cube:a",
        "hint": "its writers: CubeMaster",
        "clients": [],
    }
    return Row(**(fields | given))


def test_rows_alike_add_up_and_keep_the_first_example_and_the_widest_time() -> None:
    tally = Tally()
    tally.add(row())
    tally.add(row(count=4, actions={"refused": 3, "observed": 1}, first=50.0, last=200.0, example="cube:b"))
    assert tally.snapshot() == [
        row(count=5, actions={"observed": 2, "refused": 3}, first=50.0, last=200.0, example="cube:a")
    ]


def test_a_row_with_one_must_is_a_must() -> None:
    for first, second in (("must", "should"), ("should", "must")):
        tally = Tally()
        tally.add(row(severity=first))
        tally.add(row(severity=second))
        assert [one["severity"] for one in tally.snapshot()] == ["must"]


def test_rows_of_different_shapes_stay_apart() -> None:
    tally = Tally()
    for shape in ("a:<int>", "b:<int>", "a:<int>"):
        tally.add(row(entry="", shape=shape))
    assert [(one["shape"], one["count"]) for one in tally.snapshot()] == [("a:<int>", 2), ("b:<int>", 1)]


def test_an_existing_row_can_be_counted_up() -> None:
    tally = Tally()
    tally.add(row())
    found = tally.find(("CubeProxy", "scope.write", "HSET", "route", ""))
    assert found is not None
    tally.count(found, "refused", 300.0, 2)
    (one,) = tally.snapshot()
    assert (one["count"], one["actions"], one["last"]) == (3, {"observed": 1, "refused": 2}, 300.0)


def test_rows_are_bounded_and_the_sum_stays_right() -> None:
    tally = Tally()
    for number in range(module.MAX_ROWS + 500):
        tally.add(row(entry=f"entry-{number}"))
    rows = tally.snapshot()
    assert len(rows) == module.MAX_ROWS + 1
    assert rows[0]["shape"] == "other"
    assert rows[0]["count"] == 500
    assert rows[0]["example"] == ""


def test_rows_are_bounded_whatever_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 50)
    monkeypatch.setattr(module, "MAX_COARSE", 10)
    tally = Tally()
    for number in range(500):
        tally.add(row(service=f"service-{number}"))
    assert len(tally.snapshot()) <= 61
    assert sum(one["count"] for one in tally.snapshot()) == 500


def test_a_snapshot_is_a_copy_and_survives_json() -> None:
    tally = Tally()
    tally.add(row())
    shot = tally.snapshot()
    shot[0]["actions"]["observed"] = 99
    assert tally.snapshot()[0]["actions"] == {"observed": 1}
    other = Tally()
    other.absorb(json.loads(json.dumps(tally.snapshot())))
    other.absorb(tally.snapshot())
    assert other.snapshot()[0]["count"] == 2


def exemplified(tally: Tally, entry: str, *, argument: str = "") -> Row:
    """The row of a finding that came with its command."""
    argv = [entry, argument] if argument else [entry]
    found = Occurrence(violation(entry=entry), Peer("h"), "r", 1, 0.0, 0.0, "d", lambda: {"argv": argv})
    tally.record(Group("A", "scope.write", "SET", entry, "", "observed", "SET"), found)
    row = tally.find(("A", "scope.write", "SET", entry, ""))
    assert row is not None
    return row


def test_an_example_that_was_handed_over_keeps_its_key_and_not_its_command() -> None:
    tally = Tally()
    row = exemplified(tally, "e")
    (given,) = tally.hand_over(row, [])
    assert (given["command"], given["times"]) == ({"argv": ["e"]}, 1)
    (kept,) = row["examples"]
    assert (kept["key"], kept["command"], kept["times"]) == (violation().shown, {}, 1)
    assert tally.hand_over(row, [1]) == []


def test_only_the_new_times_of_an_example_are_handed_over() -> None:
    tally = Tally()
    row = exemplified(tally, "e")
    tally.hand_over(row, [])
    exemplified(tally, "e")
    exemplified(tally, "e")
    assert [(one["times"], one["command"]) for one in tally.hand_over(row, [1])] == [(2, {})]
    assert [(one["times"], one["command"]) for one in row["examples"]] == [(3, {})]
    assert tally.hand_over(row, [3]) == []


def test_another_command_with_the_key_of_an_example_does_not_count_as_the_example() -> None:
    tally = Tally()
    row = exemplified(tally, "e")
    tally.hand_over(row, [])
    exemplified(tally, "e", argument="other")
    assert tally.hand_over(row, [1]) == []


def test_examples_with_commands_are_bounded_until_they_are_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_COMMANDS", 3)
    tally = Tally()
    rows = [exemplified(tally, f"e{number}") for number in range(5)]
    assert [bool(one["examples"][0]["command"]) for one in rows] == [True] * 3 + [False] * 2
    tally.hand_over(rows[0], [])
    assert exemplified(tally, "e5")["examples"][0]["command"]


def test_findings_without_a_row_of_their_own_take_no_examples_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 1)
    monkeypatch.setattr(module, "MAX_COMMANDS", 3)
    tally = Tally()
    row = exemplified(tally, "e")
    tally.hand_over(row, [])
    for number in range(5):
        found = Occurrence(violation(), Peer("h"), "r", 1, 0.0, 0.0, "d", lambda: {"argv": ["SET"]})
        tally.record(Group("A", "scope.write", "SET", f"more{number}", "", "observed", "SET"), found)
    found = Occurrence(violation(b"new"), Peer("h"), "r", 1, 0.0, 0.0, "d", lambda: {"argv": ["SET"]})
    tally.record(Group("A", "scope.write", "SET", "e", "", "observed", "SET"), found)
    assert row["examples"][-1]["command"] == {"argv": ["SET"]}


def test_the_sum_of_other_tallies_keeps_no_commands() -> None:
    one, total = Tally(), Tally()
    total.absorb([exemplified(one, "e")])
    ((_, row),) = total.rows()
    assert [(example["key"], example["command"]) for example in row["examples"]] == [(violation().shown, {})]
