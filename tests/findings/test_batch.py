from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.findings import batch as batches
from keyfence.findings.batch import Batch
from keyfence.findings.finding import HOUR
from keyfence.findings.spans import Span
from tests.findings.rows import NOON, row

# Rows: whose, how many violations, in which hour.
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-2, 5), st.integers(0, 3)), min_size=1, max_size=12
)


def filled(rows: list[tuple[str, int, int]]) -> Batch:
    made = Batch()
    for entry, times, hour in rows:
        at = NOON + hour * HOUR
        made.add_rows([row(times, at, entry=entry)], at)
        made.add_uses([("shop", "read", entry, abs(times))], at)
    return made


def totals(made: Batch) -> dict[tuple[str, int], int]:
    return {
        (key[3], hour): counts["observed"]
        for key, seen in made.seen.items()
        for hour, counts in seen.hours.items()
    }


@given(ROWS, st.integers(0, 12))
def test_a_batch_that_failed_and_a_later_one_count_as_one(rows: list[tuple[str, int, int]], cut: int) -> None:
    rows = sorted(rows, key=lambda one: one[2])
    whole, first, later = filled(rows), filled(rows[:cut]), filled(rows[cut:])
    first.add_batch(later)
    assert totals(first) == totals(whole)
    assert first.uses == whole.uses
    assert {key: (one.first, one.last) for key, one in first.seen.items()} == {
        key: (one.first, one.last) for key, one in whole.seen.items()
    }


def test_the_times_of_examples_are_added_once_whatever_the_number_of_hours() -> None:
    command = {"argv": ["SET", "order:7"]}
    one = row()
    example = {**one["examples"][0], "command": command, "times": 1}
    first, later = Batch(), Batch()
    for made, hours in ((first, (0,)), (later, (1, 2, 3))):
        for hour in hours:
            at = NOON + hour * HOUR
            made.add_rows([{**row(1, at), "examples": [{**example}]}], at)  # type: ignore[list-item]
    first.add_batch(later)
    (seen,) = first.seen.values()
    assert [(each["key"], each["times"]) for each in seen.row["examples"]] == [("order:7", 4)]
    assert seen.totals()["observed"] == 4


def test_examples_of_different_keys_are_kept_and_no_more_than_five() -> None:
    made = Batch()
    for number in range(9):
        made.add_rows([row(key=f"order:{number % 7}")], NOON)
    (seen,) = made.seen.values()
    assert [one["key"] for one in seen.row["examples"]] == [f"order:{number}" for number in range(5)]


def test_beyond_its_limit_a_batch_counts_into_the_hours_that_it_has() -> None:
    before, batches.MAX_CELLS = batches.MAX_CELLS, 2
    try:
        made = filled([("a", 1, 0), ("b", 1, 0), ("a", 1, 5), ("a", 1, 6)])
    finally:
        batches.MAX_CELLS = before
    assert totals(made)[("a", int(NOON // HOUR))] == 3


def test_spans_of_a_kind_and_service_are_joined() -> None:
    made = Batch()
    made.add_span("looking", "", Span(1, 2))
    made.add_span("looking", "", Span(2, 3))
    made.add_span("opaque", "shop", Span(2, 3))
    assert made.spans == {("looking", ""): [Span(1, 3)], ("opaque", "shop"): [Span(2, 3)]}


def test_a_pause_in_looking_is_kept_and_one_in_a_gap_is_not() -> None:
    first, later = Batch(), Batch()
    for kind in ("looking", "passthrough"):
        first.add_span(kind, "", Span(1, 2))
        later.add_span(kind, "", Span(100, 101))
        later.add_span(kind, "", Span(104, 105))  # too short for a pause
    first.add_batch(later)
    assert first.spans["looking", ""] == [Span(1, 2), Span(100, 105)]
    assert first.spans["passthrough", ""] == [Span(1, 105)]


def test_the_pauses_that_wait_are_bounded_and_time_beyond_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "MAX_SPANS", 2)
    made = Batch()
    for at in (0, 100, 200):
        made.add_span("looking", "", Span(at, at + 1))
    assert made.spans["looking", ""] == [Span(0, 1), Span(100, 101)]


def test_the_commands_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_COMMANDS", 3)
    made = Batch()
    for number in range(5):
        one = row(entry=f"e{number}")
        made.add_rows([{**one, "examples": [{**one["examples"][0], "command": {"argv": ["SET"]}}]}], NOON)
    kept = [seen.row["examples"][0] for seen in made.seen.values()]
    assert [bool(one["command"]) for one in kept] == [True] * 3 + [False] * 2
    assert [one["key"] for one in kept] == ["order:7"] * 5
