"""The table of a rehearsal: what it counts, how it travels from workers to their parent, and its bounds."""

from __future__ import annotations

import json

import pytest

from keyfence.policy.compiled.hash_tags import Place
from keyfence.policy.compiled.obstacles import Seen
from keyfence.policy.engine.command_evidence import Evidence
from keyfence.policy.engine.counts import Admitted
from keyfence.shapes.shapes import Shapes
from keyfence.telemetry.candidate import rehearsal
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.candidate.rehearsal import Rehearsal, as_rows
from keyfence.telemetry.candidate.rows import Comparisons
from keyfence.telemetry.counters import Counters

CART = Place("cart", b"a:cart:ann", (("user", b"ann"),))
ORDER = Place("order", b"a:order:ann:7", (("user", b"ann"), ("id", b"7")))
CROSSES = Seen("slots.command", "MGET", CART, ORDER)


def changes() -> Changes:
    return Changes(7, Counters(), rehearses=True)


def test_what_was_seen_is_counted_by_service_command_and_kinds_of_keys() -> None:
    one = Rehearsal()
    for _ in range(2):
        one.seen("web", CROSSES, Shapes())
    one.seen("web", Seen("slots.command", "MGET", works=True), Shapes())
    crossing, working = as_rows(one.rows)
    assert crossing == {
        "service": "web",
        "obstacle": "slots.command",
        "command": "MGET",
        "keys": [{"name": "cart", "is_entry": True}, {"name": "order", "is_entry": True}],
        "script": "",
        "times": 2,
        "works": 0,
        "links": [{"first": "user", "second": "user", "times": 2, "values": 1}],
    }
    assert (working["keys"], working["times"], working["works"]) == ([], 0, 1)


def test_keys_of_no_entry_are_named_by_their_shape() -> None:
    one = Rehearsal()
    one.seen("web", Seen("slots.command", "MGET", Place("", b"u:42:a"), Place("", b"u:42:b")), Shapes())
    (row,) = as_rows(one.rows)
    assert [key["name"] for key in row["keys"]] == ["u:<int>:<*>", "u:<int>:<*>"] or all(
        "42" not in key["name"] for key in row["keys"]
    )
    assert {"first": "2", "second": "2", "times": 1, "values": 1} in row["links"]


def test_admitted_commands_count_by_their_name_and_by_their_evidence() -> None:
    one, several = changes(), Evidence(("slot.cross", "scope.read"), ())
    for admitted in (Admitted("KEYS"), Admitted("MGET", several), Admitted("GET")):
        admitted.times = 3
        one.gather_from("web", admitted)
    one.gather()
    assert one.rehearsal is not None
    assert [(row["obstacle"], row["times"], row["works"]) for row in as_rows(one.rehearsal.rows)] == [
        ("one.node", 3, 0),
        ("slots.command", 0, 3),
    ]


def test_scripts_are_told_apart_until_there_are_too_many() -> None:
    one = Rehearsal()
    names = [f"{number:040x}" for number in range(rehearsal.MAX_SCRIPTS + 2)]
    for name in [*names, names[0], names[-1]]:
        one.seen("web", Seen("slots.script", "EVALSHA", CART, ORDER, script=name), Shapes())
    found = {row["script"]: row["times"] for row in as_rows(one.rows)}
    assert found == {names[0]: 2, **dict.fromkeys(names[1:-2], 1), "": 3}


def test_a_parent_adds_up_what_its_workers_have_seen() -> None:
    parent, worker = Comparisons(7), changes()
    for seen in (CROSSES, CROSSES, CROSSES._replace(script="f" * 40)):
        worker.rehearsed("web", seen)
        for part in worker.parts():
            parent.absorb(json.loads(json.dumps(part)))
    assert worker.rehearsal is not None
    assert as_rows(parent.rehearsal.rows) == as_rows(worker.rehearsal.rows)
    assert list(worker.rehearsal.parts()) == []


def test_another_rehearsal_is_left_out() -> None:
    parent, worker = Comparisons(8), changes()
    worker.rehearsed("web", CROSSES)
    for part in worker.parts():
        parent.absorb(part)
    assert as_rows(parent.rehearsal.rows) == []


def test_the_table_is_bounded_and_counts_what_is_beyond_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MAX_ROWS", 2)
    one = Rehearsal()
    for number in range(5):
        one.seen("web", CROSSES._replace(first=Place(f"e{number}", b"x")), Shapes())
    rows = as_rows(one.rows)
    assert len(rows) == 3
    assert sum(row["times"] for row in rows) == 5
    assert rows[-1]["keys"] == []


def test_a_candidate_that_is_a_policy_has_no_table() -> None:
    one = Changes(1, Counters())
    one.rehearsed("web", CROSSES)
    assert one.rehearsal is None
