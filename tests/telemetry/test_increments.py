from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.engine.command_evidence import Evidence, Right
from keyfence.policy.verdict import Changed, Finding, Peer
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.candidate.rows import Comparisons, rows_of
from keyfence.telemetry.counters import MAX_SERIES, Counters
from keyfence.telemetry.increments import PART_LOOKED_AT, PART_ROWS, Increments
from keyfence.telemetry.tally import Tally
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import PART_KINDS, Usage
from tests.telemetry.violations import violation


def told(telemetry: Telemetry, service: str = "A", times: int = 1) -> None:
    telemetry.violations(service, "1.2.3.4:5", "GET", [Finding(violation(), "observed")], "rev", times=times)


class Parent:
    """Adds up increments as the channel carries them."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.tally = Tally()

    def take(self, deltas: Increments) -> None:
        new = json.loads(json.dumps(deltas.take()))
        self.counters.absorb(new["counters"], live=False)
        self.tally.absorb(new["tally"])


Step = st.tuples(st.sampled_from(["violation", "command", "bytes", "decision", "tell"]), st.integers(1, 5))


@given(st.lists(Step, max_size=40))
def test_the_sum_of_all_increments_equals_the_counts(steps: list[tuple[str, int]]) -> None:
    telemetry = Telemetry()
    deltas, parent = Increments(telemetry), Parent()
    for what, number in steps:
        if what == "violation":
            told(telemetry, f"service{number}", number)
        elif what == "command":
            telemetry.command("A", "GET", "forwarded")
        elif what == "bytes":
            telemetry.counters.meter(f"service{number}").client_in += number
        elif what == "decision":
            telemetry.authorized("A", number / 1e6)
        else:
            parent.take(deltas)
    parent.take(deltas)
    assert parent.counters.violations == telemetry.counters.violations
    assert parent.counters.commands == telemetry.counters.commands
    assert parent.counters.rule_violations == telemetry.counters.rule_violations
    assert parent.counters.traffic == telemetry.counters.traffic
    assert parent.counters.timed == telemetry.counters.timed
    assert parent.counters.timed_seconds == pytest.approx(telemetry.counters.timed_seconds)
    assert parent.tally.snapshot() == telemetry.tally.snapshot()


def test_a_row_without_new_counts_is_not_sent() -> None:
    telemetry = Telemetry()
    deltas = Increments(telemetry)
    told(telemetry)
    assert len(deltas.take()["tally"]) == 1
    again = deltas.take()
    assert (again["tally"], again["counters"]["violations"]) == ([], [])
    told(telemetry, times=3)
    (row,) = deltas.take()["tally"]
    assert (row["count"], row["actions"]) == (3, {"observed": 3})


def test_the_sum_of_several_workers_keeps_the_limit_on_series() -> None:
    parent = Parent()
    for worker in range(3):
        telemetry = Telemetry()
        for number in range(MAX_SERIES // 2):
            telemetry.counters.violation("A", "scope.read", "GET", f"entry{worker}-{number}", "observed")
        parent.take(Increments(telemetry))
    assert len(parent.counters.violations) <= MAX_SERIES + 1
    assert sum(parent.counters.violations.values()) == 3 * (MAX_SERIES // 2)


def test_gauges_show_the_present() -> None:
    telemetry = Telemetry()
    deltas = Increments(telemetry)
    telemetry.counters.connection_opened("A", "l")
    assert deltas.take()["gauges"]["connections_open"] == [["A", "l", 1]]
    assert deltas.take()["gauges"]["connections_open"] == [["A", "l", 1]]


def test_increments_of_a_comparison_begin_again_with_the_next_one() -> None:
    telemetry = Telemetry()
    deltas = Increments(telemetry)
    assert deltas.take()["candidate"] is None
    total = Comparisons(1)
    for number in (1, 2):
        one = telemetry.beside = Changes(number, telemetry.counters)
        total = Comparisons(number)
        for _ in range(3):
            one.command("A")
            finding = Finding(violation(), "observed")
            one.changes("A", Peer("1.2.3.4:5"), "SET", [Changed("new", finding)])
            total.absorb(json.loads(json.dumps(deltas.take()["candidate"])))
        assert deltas.take()["candidate"] == {"number": number, "commands": [], "rows": [], "rehearsed": []}
        assert total.commands == {"A": 3}
        assert [(row["change"], row["count"]) for row in rows_of(total.tallies())] == [("new", 3)]


def many(telemetry: Telemetry, count: int) -> None:
    """Violations of so many rows."""
    for number in range(count):
        one = violation()._replace(entry=f"entry{number}", shape=f"entry{number}")
        telemetry.violations("A", "1.2.3.4:5", "GET", [Finding(one, "observed")], "rev")


def test_each_part_has_a_few_rows_and_nothing_is_lost_or_counted_twice() -> None:
    usage, total = Usage(), Tally()
    telemetry = Telemetry(sinks=[usage])
    deltas = Increments(telemetry)
    many(telemetry, 1_050)
    sizes = []
    for number, part in enumerate(deltas.parts()):
        assert set(part) <= {"counters", "gauges", "tally", "asked", "candidate", "shown"}
        sizes.append(len(part.get("tally", ())))
        total.absorb(part.get("tally", ()))
        if number == 3:
            many(telemetry, 1_060)  # clients go on meanwhile
    assert max(sizes) == PART_ROWS
    assert sum(sizes) == 1_050, "what is new meanwhile waits for the next time"
    total.absorb(deltas.take()["tally"])
    assert total.snapshot() == telemetry.tally.snapshot()


def test_rows_that_have_not_changed_are_looked_at_in_parts() -> None:
    telemetry = Telemetry()
    deltas = Increments(telemetry)
    many(telemetry, 2 * PART_LOOKED_AT)
    deltas.take()
    assert [part["tally"] for part in deltas.parts() if "tally" in part] == [[], []]


def test_evidence_comes_after_the_violations_of_its_commands() -> None:
    """Else it would seem for a moment that commands break nothing."""
    usage = Usage()
    telemetry = Telemetry(sinks=[usage])
    deltas = Increments(telemetry)
    many(telemetry, 300)
    telemetry.asked("A", Evidence(("scope.read",), ()))
    parts = deltas.parts()
    next(parts)
    told(telemetry)
    telemetry.asked("A", Evidence(("key.format",), ()))
    order = [part for part in parts if part.get("tally") or part.get("asked")]
    assert ["tally" in one for one in order] == [True, True, True, False]
    assert order[-1]["asked"] == [("A", "rule", "scope.read", 1, "")], "the other one was asked later"
    assert deltas.take()["asked"] == [("A", "rule", "key.format", 1, "")]


def test_evidence_of_many_kinds_comes_in_parts() -> None:
    usage = Usage()
    for number in range(3 * PART_KINDS):
        usage.asked("A", Evidence(("scope.read",), (Right("read", f"entry{number}"),)), 2)
    parts = list(usage.parts())
    assert max(map(len, parts)) <= PART_KINDS + 1
    assert sum(times for part in parts for _, kind, _, times, _ in part if kind == "rule") == 6 * PART_KINDS
    assert not list(usage.parts())
