"""A change is loaded once, and only when the files have stopped changing."""

from __future__ import annotations

from keyfence.fleet.settling import RETRY_SECONDS, SETTLE_SECONDS, Settling

LATER = SETTLE_SECONDS + 0.1


def test_files_that_are_as_they_were_loaded_are_never_due() -> None:
    files = Settling("old")
    assert not any(files.is_due("old", float(second)) for second in range(100))


def test_a_change_is_due_once_it_has_lasted() -> None:
    files = Settling("old")
    assert not files.is_due("new", 10.0)
    assert not files.is_due("new", 10.0 + SETTLE_SECONDS / 2)
    assert files.is_due("new", 10.0 + LATER)


def test_each_further_change_begins_the_wait_again() -> None:
    files = Settling("old")
    assert not any(files.is_due(f"half of it {step}", step * SETTLE_SECONDS / 2) for step in range(100))
    assert not files.is_due("whole", 200.0)
    assert files.is_due("whole", 200.0 + LATER)


def test_a_change_that_is_taken_back_is_not_due() -> None:
    files = Settling("old")
    assert not files.is_due("new", 10.0)
    assert not files.is_due("old", 11.0)
    assert not files.is_due("new", 10.0 + LATER)


def test_what_was_refused_is_not_loaded_again_until_it_changes() -> None:
    files = Settling("old")
    files.took("faulty")
    assert not any(files.is_due("faulty", float(second)) for second in range(100))
    assert not files.is_due("old", 100.0)
    assert files.is_due("old", 100.0 + LATER), "what was in force is a change of what was refused"


def test_a_load_that_failed_for_another_reason_is_tried_again_later() -> None:
    files = Settling("old")
    files.failed(10.0)
    assert not files.is_due("new", 10.0)
    assert not files.is_due("new", 10.0 + LATER)
    assert files.is_due("new", 10.0 + RETRY_SECONDS)
