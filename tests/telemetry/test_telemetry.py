from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyfence.policy.verdict import Finding, Peer
from keyfence.telemetry import Counters, Telemetry
from keyfence.telemetry import telemetry as module
from keyfence.telemetry.decision_log import DecisionLog
from keyfence.telemetry.log_file import LogFile
from keyfence.telemetry.sink import Group, Occurrence, Sink
from tests.telemetry.violations import violation


class Bench:
    """A telemetry whose clocks are set by hand and whose ids count up."""

    def __init__(self, path: Path, *, mask_keys: bool = False) -> None:
        self.path = path
        self.now = 1_000.0
        self.ids = 0
        counters = Counters()
        log = DecisionLog(LogFile(str(path), counters), counters, mask_keys=mask_keys, new_id=self._new_id)
        self.telemetry = Telemetry(
            counters=counters,
            log=log,
            mask_keys=mask_keys,
            clock=lambda: self.now,
            wall=lambda: 1_750_000_000.0 + self.now,
        )

    def _new_id(self) -> str:
        self.ids += 1
        return f"d-{self.ids:08x}"

    def tell(self, *findings: Finding, command: str = "HSET", **options: Any) -> str:
        return self.telemetry.violations("CubeProxy", "10.0.0.7:1", command, findings, "r1", **options)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "log")
    yield bench
    bench.telemetry.close()


def test_a_violation_reaches_counters_tally_and_log(bench: Bench) -> None:
    bench.tell(Finding(violation(), "observed"))
    telemetry = bench.telemetry
    assert telemetry.counters.violations == {
        ("CubeProxy", "scope.write", "HSET", "sandbox-route", "observed"): 1
    }
    (row,) = telemetry.tally.snapshot()
    assert (row["entry"], row["count"], row["example"]) == ("sandbox-route", 1, violation().shown)
    assert row["first"] == 1_750_001_000.0
    assert [line["rule"] for line in bench.lines()] == ["scope.write"]


def test_repeated_violations_count_the_same_in_all_three(bench: Bench) -> None:
    for number in range(100):
        bench.now = 1_000.0 + number / 10
        bench.tell(Finding(violation(), "observed"))
        bench.tell(Finding(violation(), "refused"))
    bench.telemetry.close()
    assert sum(bench.telemetry.counters.violations.values()) == 200
    (row,) = bench.telemetry.tally.snapshot()
    assert row["actions"] == {"observed": 100, "refused": 100}
    assert row["last"] == pytest.approx(1_750_001_009.9)
    assert sum(1 + line["merged"] for line in bench.lines()) == 200


def test_the_id_is_the_id_of_the_first_refused_finding(bench: Bench) -> None:
    decision = bench.tell(
        Finding(violation(rule="key.format"), "observed"),
        Finding(violation(rule="scope.write"), "refused"),
        Finding(violation(rule="ttl.required"), "refused"),
    )
    assert [line["rule"] for line in bench.lines() if line["decision"] == decision] == ["scope.write"]


def test_observed_and_waived_findings_give_no_id_for_a_reply(bench: Bench) -> None:
    assert bench.tell(Finding(violation(), "observed")) == ""
    assert bench.tell(Finding(violation(), "waived")) == ""


def test_merged_decisions_get_no_id(bench: Bench) -> None:
    for _ in range(500):
        bench.tell(Finding(violation(), "refused"))
    assert bench.ids == len(bench.lines()) == 20


def test_every_id_that_a_refusal_carried_is_in_the_log(bench: Bench) -> None:
    carried = set()
    for number in range(3_000):
        carried.add(bench.tell(Finding(violation(entry=f"entry-{number % 200}"), "refused")))
        if number % 500 == 0:
            bench.now += 1.0
            bench.telemetry.flush()
    bench.telemetry.close()
    assert carried <= {line["decision"] for line in bench.lines()}


def test_keys_that_no_entry_covers_are_grouped_by_shape_and_never_become_labels(bench: Bench) -> None:
    for number in range(300):
        found = violation(f"user_roles:{number}".encode(), rule="key.unregistered", entry="", shape="")
        bench.tell(Finding(found, "observed"), command="GET")
    bench.telemetry.close()
    rows = {row["shape"]: row["count"] for row in bench.telemetry.tally.snapshot()}
    assert rows == {"user_roles:<int>": 300}
    assert bench.telemetry.counters.violations == {
        ("CubeProxy", "key.unregistered", "GET", "", "observed"): 300
    }
    assert {line["shape"] for line in bench.lines()} == set(rows)


def test_a_key_in_a_scope_that_no_entry_covers_is_counted_for_the_scope_and_grouped_by_shape(
    bench: Bench,
) -> None:
    for number in range(3):
        found = violation(f"cube:v1:master:x:{number}".encode(), entry="master", shape="")
        bench.tell(Finding(found, "observed"))
    assert {key[3] for key in bench.telemetry.counters.violations} == {"master"}
    assert bench.lines()[-1]["shape"] == "cube:v1:master:x:<int>"
    assert bench.lines()[-1]["entry"] == "master"


def test_two_entries_under_one_shape_are_counted_apart(bench: Bench) -> None:
    for entry in ("one", "two", "one", "two"):
        bench.tell(Finding(violation(b"a:1", entry=entry, shape=""), "observed"))
    counted = {key[3]: number for key, number in bench.telemetry.counters.violations.items()}
    assert counted == {"one": 2, "two": 2}


def test_the_log_names_unknown_commands_and_labels_do_not(bench: Bench) -> None:
    for name in ("FT.SEARCH", "JSON.GET", "hunter2:secret", "FT.SEARCH"):
        found = violation(None, rule="command.unknown", entry="", message=f"{name} cannot be evaluated: no")
        bench.tell(Finding(found, "observed"), command="other")
    assert bench.telemetry.counters.violations == {
        ("CubeProxy", "command.unknown", "other", "", "observed"): 4
    }
    assert [line["command"] for line in bench.lines()] == ["FT.SEARCH", "JSON.GET", "other", "FT.SEARCH"]
    assert "hunter2" not in bench.path.read_text()


def test_masked_keys_appear_neither_in_the_log_nor_in_the_report(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "log", mask_keys=True)
    bench.tell(Finding(violation(b"user:4711", hint="not user:4711", message="no user:4711"), "refused"))
    bench.telemetry.close()
    assert "4711" not in bench.path.read_text()
    assert "4711" not in json.dumps(bench.telemetry.tally.snapshot())


def test_several_commands_alike_can_be_reported_at_once(bench: Bench) -> None:
    for _ in range(3):
        bench.tell(Finding(violation(), "observed"), times=1_000)
    assert sum(bench.telemetry.counters.violations.values()) == 3_000
    assert sum(1 + line["merged"] for line in bench.lines()) == 3_000


def test_times_follow_a_step_of_the_wall_clock() -> None:
    walls = iter([5_000.0, 9_000.0])
    telemetry = Telemetry(clock=lambda: 100.0, wall=lambda: next(walls))
    telemetry.flush()
    telemetry.violations("s", "c", "GET", (Finding(violation(), "observed"),), "r")
    assert telemetry.tally.snapshot()[0]["first"] == 9_000.0


def test_without_a_log_a_refusal_still_has_an_id() -> None:
    numbers = count()
    telemetry = Telemetry(new_id=lambda: f"d-{next(numbers)}")
    assert telemetry.violations("s", "c", "GET", (Finding(violation(), "observed"),), "r") == ""
    assert telemetry.violations("s", "c", "GET", (Finding(violation(), "refused"),), "r") == "d-0"
    telemetry.flush()
    telemetry.reopen()
    telemetry.close()


def test_one_call_makes_a_telemetry_with_a_log_file(tmp_path: Path) -> None:
    telemetry = Telemetry.to(str(tmp_path / "log"))
    telemetry.command("s", "GET", "forwarded")
    telemetry.opaque("s", "monitor")
    telemetry.violations("s", "c", "GET", (Finding(violation(), "refused"),), "r")
    telemetry.close()
    assert telemetry.counters.log_lines == 1
    assert telemetry.counters.sessions_opaque == {("s", "monitor"): 1}
    assert set(telemetry.snapshot()) == {"counters", "tally"}


def test_the_groups_that_recur_are_forgotten_before_they_are_too_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RECURRING", 5)
    for _ in range(3):
        for number in range(20):
            bench.tell(Finding(violation(entry=f"entry-{number}"), "observed"))
    assert len(bench.telemetry._recurring) <= 5
    assert sum(bench.telemetry.counters.violations.values()) == 60


def test_violation_counters_count_like_full_records_until_the_next_second(bench: Bench) -> None:
    telemetry, findings = bench.telemetry, (Finding(violation(), "observed"),)
    assert telemetry.repeats("CubeProxy", "HSET", findings) is None  # nothing is known of it yet
    bench.tell(*findings)
    bench.tell(*findings)
    repeat = telemetry.repeats("CubeProxy", "HSET", findings)
    assert repeat is not None
    repeat.times += 500
    assert sum(telemetry.counters.violations.values()) == 502
    repeat.times += 498
    (row,) = telemetry.tally.snapshot()
    assert (row["count"], row["actions"]) == (1000, {"observed": 1000})
    bench.now += 60
    telemetry.flush()
    assert not repeat.live
    assert sum(1 + line["merged"] + line["dropped"] for line in bench.lines()) == 1000


def test_counted_violations_are_in_snapshots_and_in_the_log_at_the_end(bench: Bench) -> None:
    telemetry, findings = bench.telemetry, (Finding(violation(), "observed"),)
    bench.tell(*findings)
    bench.tell(*findings)
    repeat = telemetry.repeats("CubeProxy", "HSET", findings)
    assert repeat is not None
    repeat.times += 8
    shot = telemetry.snapshot()
    assert (shot["counters"]["violations"][0][-1], shot["tally"][0]["count"]) == (10, 10)
    repeat.times += 5
    telemetry.close()
    assert sum(1 + line["merged"] + line["dropped"] for line in bench.lines()) == 15


def test_unlisted_violations_are_counted_together_too(bench: Bench) -> None:
    telemetry = bench.telemetry
    findings = (Finding(violation()._replace(more=9), "observed"),)
    bench.tell(*findings)
    bench.tell(*findings)
    repeat = telemetry.repeats("CubeProxy", "HSET", findings)
    assert repeat is not None
    repeat.times += 8
    assert sum(telemetry.counters.violations.values()) == 100
    telemetry.close()
    assert sum(1 + line["merged"] + line["dropped"] for line in bench.lines()) == 100


def test_keys_that_no_entry_covers_are_counted_together_once_their_shape_is_learned(bench: Bench) -> None:
    telemetry = bench.telemetry
    for number in range(40):
        findings = (
            Finding(
                violation(rule="key.unregistered", key=b"user:%d" % number, entry="", shape=""), "observed"
            ),
        )
        bench.tell(*findings)
        repeat = telemetry.repeats("CubeProxy", "HSET", findings)
        assert (repeat is not None) == (number >= 15), number
    assert repeat is not None
    repeat.times += 60
    row = next(row for row in telemetry.tally.snapshot() if row["shape"] == "user:<int>")
    assert row["count"] == 100


def test_the_number_of_live_violation_counters_is_bounded_and_some_retire_each_second(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPEATS", 5)
    monkeypatch.setattr(module, "RETIRED", 2)
    found = [(Finding(violation(entry=f"entry-{number}"), "observed"),) for number in range(6)]
    for findings in found * 2:
        bench.tell(*findings)
    bench.tell(*findings)
    repeats = [bench.telemetry.repeats("CubeProxy", "HSET", findings) for findings in found]
    assert [one is not None for one in repeats] == [True] * 5 + [False]
    for alive in (3, 1, 0):
        bench.telemetry.flush()
        assert sum(one is not None and one.live for one in repeats) == alive


def test_all_violation_counters_retire_when_a_shape_is_forgotten(bench: Bench) -> None:
    findings = (Finding(violation(), "observed"),)
    bench.tell(*findings)
    bench.tell(*findings)
    repeats = [bench.telemetry.repeats("CubeProxy", "HSET", findings) for _ in range(module.RETIRED + 5)]
    bench.telemetry._shapes.resets += 1
    bench.telemetry.flush()
    assert not any(one is not None and one.live for one in repeats)


class Remembering(Sink):
    """A sink that remembers how often it was given each group."""

    def __init__(self) -> None:
        self.counts: Counter[Group] = Counter()
        self.in_full = 0

    def record(self, group: Group, found: Occurrence) -> str:
        self.counts[group] += found.times
        self.in_full += 1
        return ""

    def repeat(self, group: Group, times: int, _now: float, _at: float) -> None:
        self.counts[group] += times


def test_a_further_sink_is_found_by_its_class_and_is_up_to_date() -> None:
    findings = [Finding(violation(), "observed")]
    telemetry = Telemetry.to(None, sinks=[Remembering()])
    for _ in range(2):
        telemetry.violations("CubeProxy", "10.0.0.7:1", "HSET", findings, "r1")
    repeat = telemetry.repeats("CubeProxy", "HSET", findings)
    assert repeat is not None
    repeat.times += 5
    sink = telemetry.sink(Remembering)
    assert sink is not None
    assert sum(sink.counts.values()) == 7
    assert Telemetry.to(None).sink(Remembering) is None


def test_a_further_sink_gets_every_finding_once_counted_ones_included() -> None:
    sink = Remembering()
    telemetry = Telemetry(sinks=[sink])
    findings = [Finding(violation(), "observed")]
    for _ in range(2):
        telemetry.violations("CubeProxy", "10.0.0.7:1", "HSET", findings, "r1")
    repeat = telemetry.repeats("CubeProxy", "HSET", findings)
    assert repeat is not None
    repeat.times += 5
    telemetry.gather()
    telemetry.gather()
    group = Group("CubeProxy", "scope.write", "HSET", "sandbox-route", "", "observed", "HSET")
    assert (sink.counts, sink.in_full) == (Counter({group: 7}), 2)


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_found_late_has_an_example_without_a_command_unless_keys_are_masked(
    masked: bool, tmp_path: Path
) -> None:
    bench = Bench(tmp_path / "log", mask_keys=masked)
    bench.telemetry.describe = lambda *_: pytest.fail("the command is not known any more")
    bench.tell(Finding(violation(rule="ttl.required"), "late"))
    ((_, row),) = bench.telemetry.tally.rows()
    examples = [(one["key"], one["command"], one["decision"]) for one in row.get("examples", ())]
    assert examples == ([] if masked else [(violation().shown, {}, bench.lines()[0]["decision"])])
    bench.telemetry.close()


def test_findings_of_one_command_share_one_description(bench: Bench) -> None:
    described: list[str] = []
    bench.telemetry.describe = lambda _policy, service, _argv, _touches: (
        described.append(service) or {"service": service}  # type: ignore[func-returns-value]
    )
    findings = [Finding(violation(entry=f"e{number}"), "observed") for number in range(20)]
    sent = SimpleNamespace(policy=None, argv=[b"GET"], touches=None)
    bench.telemetry.violations("CubeProxy", "10.0.0.7:1", "HSET", findings, "r1", sent=sent)
    examples = [one for _, row in bench.telemetry.tally.rows() for one in row.get("examples", ())]
    assert [one["command"] for one in examples] == [{"service": "CubeProxy"}] * 20
    assert described == ["CubeProxy"]


def test_findings_may_be_told_under_services_that_are_known_by_their_clients(bench: Bench) -> None:
    recorded: list[tuple[Any, ...]] = []
    bench.telemetry.name_by(
        module.Named(lambda service, peer: f"{service}-{peer.name}", lambda *one: recorded.append(one))
    )
    sent: Any = SimpleNamespace(policy="policy", argv=[b"HSET"], touches="touches")
    client = Peer("10.0.0.7:1", name="web")
    bench.telemetry.violations("app", client, "HSET", [Finding(violation(), "observed")], "r1", sent=sent)
    bench.telemetry.violations("app", client, "HSET", [Finding(violation(), "observed")], "r1")
    (row,) = bench.telemetry.tally.snapshot()
    assert (row["service"], row["count"]) == ("app-web", 2)
    assert recorded == [("policy", "app-web", [b"HSET"], "touches")]
    assert bench.telemetry.recorder is not None  # so sessions report each command
