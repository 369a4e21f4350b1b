from __future__ import annotations

import json

import pytest

from keyfence.telemetry import counters as module
from keyfence.telemetry.counters import BOUNDS, DECISION_BOUNDS, Counters


def test_violations_are_counted_by_their_labels() -> None:
    counters = Counters()
    counters.violation("CubeProxy", "scope.write", "HSET", "route", "refused")
    counters.violation("CubeProxy", "scope.write", "HSET", "route", "refused", times=4)
    assert counters.violations == {("CubeProxy", "scope.write", "HSET", "route", "refused"): 5}


def test_past_the_cap_the_finest_labels_become_other_and_the_sum_stays_right() -> None:
    counters = Counters()
    for number in range(25_000):
        counters.violation("s", "key.format", "GET", f"entry-{number}", "observed")
    assert len(counters.violations) == module.MAX_SERIES + 1
    assert counters.violations["s", "key.format", "other", "other", "observed"] == 15_000
    counters.violation("s", "key.format", "GET", "entry-7", "observed")
    assert counters.violations["s", "key.format", "GET", "entry-7", "observed"] == 2
    assert sum(counters.violations.values()) == 25_001


def test_even_labels_that_should_be_closed_cannot_grow_a_table_without_bound() -> None:
    counters = Counters()
    for number in range(13_000):
        counters.violation(f"service-{number}", "key.format", "GET", "", "observed")
        counters.command(f"service-{number}", "GET", "forwarded")
        counters.closed_for(f"reason-{number}")
        counters.upstream_state(f"upstream-{number}", True)
        counters.policy_loaded(f"policy-{number}", "r", 1.0)
        counters.set_exceptions_lapsed(f"kind-{number}", 1)
    assert len(counters.violations) <= module.MAX_SERIES + module.MAX_COARSE + 1
    assert len(counters.commands) <= module.MAX_SERIES + module.MAX_COARSE + 1
    assert sum(counters.violations.values()) == sum(counters.commands.values()) == 13_000
    assert len(counters.closures) == module.MAX_REASONS + 1
    assert len(counters.upstream_up) == module.MAX_REASONS
    assert len(counters.policies) == len(counters.exceptions_lapsed) == module.MAX_REASONS


def test_open_connections_come_back_to_zero_also_past_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    counters = Counters()
    pairs = [(f"s{number}", "tcp") for number in range(10)]
    for service, listener in pairs:
        counters.connection_opened(service, listener)
    assert counters.connections_open["other", "other"] == 7
    for service, listener in reversed(pairs):
        counters.connection_closed(service, listener)
    assert set(counters.connections_open.values()) == {0}
    assert sum(counters.connections_accepted.values()) == 10


def test_a_connection_that_says_who_it_is_moves_over_without_counting_twice() -> None:
    counters = Counters()
    counters.connection_opened("unknown", "tcp")
    counters.connection_identified("unknown", "CubeProxy", "tcp")
    assert counters.connections_open == {("unknown", "tcp"): 0, ("CubeProxy", "tcp"): 1}
    assert counters.connections_accepted == {("unknown", "tcp"): 1}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (1e-6, 0), (1.1e-6, 1), (1e-2, len(DECISION_BOUNDS) - 1), (3.0, len(DECISION_BOUNDS))],
)
def test_a_decision_falls_into_the_bucket_whose_bound_it_does_not_exceed(seconds: float, bucket: int) -> None:
    counters = Counters()
    for _ in range(2):
        counters.took("decision", "A", seconds)
    assert counters.timed == {("decision", "A", bucket): 2}
    assert counters.timed_seconds == {("decision", "A"): 2 * seconds}


def test_break_glass_counts_each_activation_once() -> None:
    counters = Counters()
    for active in (True, True, False, True):
        counters.set_break_glass(active)
    assert (counters.break_glass, counters.break_glass_started) == (1, 2)


def _worker() -> Counters:
    counters = Counters()
    counters.violation("a", "key.format", "GET", "e", "observed", times=3)
    counters.command("a", "GET", "forwarded", times=5)
    counters.connection_opened("a", "tcp")
    counters.connection_rejected("tcp", "clients")
    counters.upstream_state("redis", True)
    counters.upstream_event("redis", "reconnects")
    counters.upstream_event("redis", "connect_failures")
    counters.session_opaque("a", "protocol")
    counters.internal_error("judge")
    counters.closed_for("output limit")
    counters.policy_loaded("cubesandbox", "r1", 100.0)
    counters.policy_failed("load", "cubesandbox")
    counters.set_exceptions_lapsed("legacy", 2)
    counters.took("decision", "a", 2e-6)
    counters.meter("a").client_in += 10
    return counters


def test_a_snapshot_survives_json_and_gives_the_same_counters_again() -> None:
    shot = json.loads(json.dumps(_worker().snapshot()))
    again = Counters()
    again.absorb(shot)
    assert again.snapshot() == shot


def test_counts_of_workers_add_up_and_their_states_combine() -> None:
    one, two = _worker(), _worker()
    two.upstream_state("redis", False)
    two.policy_loaded("cubesandbox", "r2", 200.0)
    two.set_break_glass(True)
    total = Counters()
    for worker in (one, two):
        total.absorb(worker.snapshot())
    assert total.violations == {("a", "key.format", "GET", "e", "observed"): 6}
    assert total.connections_open == {("a", "tcp"): 2}
    assert total.internal_errors == {"judge": 2}
    assert total.rule_violations == {("a", "key.format", "observed"): 6}
    assert total.traffic["a", "client_in"] == 20
    assert total.timed == {("decision", "a", 1): 2}
    assert total.upstream_up == {"redis": 0}
    assert total.policies == {"cubesandbox": ("r2", 200.0)}
    assert total.exceptions_lapsed == {"legacy": 2}
    assert total.break_glass == 1


def test_only_the_totals_of_an_ended_worker_are_kept() -> None:
    total = Counters()
    total.absorb(_worker().snapshot(), live=False)
    assert total.commands == {("a", "GET", "forwarded"): 5}
    assert total.connections_accepted == {("a", "tcp"): 1}
    assert not total.connections_open
    assert not total.upstream_up
    assert not total.policies


def test_a_counter_that_is_added_is_not_forgotten_in_snapshots() -> None:
    shot = Counters().snapshot()
    assert set(shot) == {name for name in Counters.__slots__ if not name.startswith("_")}


def test_bytes_are_counted_once_for_each_service() -> None:
    counters = Counters()
    for number in (1, 2):
        counters.meter("A").client_in += number
        counters.meter("B").upstream_out += 10
        counters.collect()
    assert {key: number for key, number in counters.traffic.items() if number} == {
        ("A", "client_in"): 3,
        ("B", "upstream_out"): 20,
    }


def test_a_declared_row_is_there_at_zero_and_keeps_its_count() -> None:
    counters = Counters()
    rows = [("A", "scope.read", "observed"), ("A", "scope.read", "refused")]
    counters.declare("rule_violations", rows)
    counters.violation("A", "scope.read", "GET", "entry", "observed")
    counters.declare("rule_violations", rows)
    assert counters.rule_violations == dict(zip(rows, (1, 0), strict=True))
    total = Counters()
    total.absorb(json.loads(json.dumps(counters.snapshot())))
    assert total.rule_violations == counters.rule_violations


def test_a_count_that_finds_no_room_goes_to_other_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    monkeypatch.setattr(module, "MAX_SERVICES", 2)
    counters = Counters()
    for service in ("A", "B", "C", "D"):
        counters.violation(service, "scope.read", "GET", "entry", "observed")
        counters.meter(service).client_in += 1
        for what in BOUNDS:
            counters.took(what, service, 1.0)
    counters.collect()
    assert counters.rule_violations["other", "scope.read", "observed"] == 1
    assert counters.traffic["other", "client_in"] == 2
    assert {service for _, service in counters.timed_seconds} == {"A", "B", "other"}
    assert sum(counters.timed.values()) == 4 * len(BOUNDS)
    assert counters.folded == {
        "violations": 1,
        "rule_violations": 1,
        "traffic": 2,
        **dict.fromkeys(BOUNDS, 2),
    }


def test_a_copy_of_full_tables_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    counters = Counters()
    for number in range(6):
        counters.violation("A", "scope.read", "GET", f"entry{number}", "observed")
        counters.command("A", f"COMMAND{number}", "forwarded")
        counters.login_failed(f"service{number}")
    copy = counters.copy()
    counters.violation("A", "scope.read", "GET", "entry0", "observed")
    assert copy.folded == counters.folded == {"violations": 3, "commands": 3, "login_failures": 3}
    assert copy.snapshot() | {"violations": [], "rule_violations": []} == counters.snapshot() | {
        "violations": [],
        "rule_violations": [],
    }
    assert sum(copy.violations.values()) == 6


def test_rows_that_find_no_room_are_not_declared_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    counters = Counters()
    counters.declare("rule_violations", [(f"S{number}", "scope.read", "observed") for number in range(5)])
    assert len(counters.rule_violations) == 3
    assert counters.folded == {"rule_violations": 2}


def test_the_files_of_a_policy_are_those_of_the_last_load() -> None:
    counters = Counters()
    counters.policy_made_of([("shop", "team-shop", "#shop"), ("pay", "team-pay", "#pay")], "r1")
    counters.policy_made_of([("shop", "team-shop", "#shop")], "r2")
    assert counters.policy_files == {("shop", "team-shop", "#shop", "r2"): 1}


def test_the_role_and_the_last_failover_are_those_of_the_parent() -> None:
    parent = Counters()
    parent.upstream_has_role("redis", "master", True)
    parent.upstream_has_role("redis", "replica", False)
    parent.upstream_failover_took("redis", 2.5)
    total = Counters()
    total.absorb(parent.snapshot())
    total.absorb_gauges(Counters().gauges())
    assert total.upstream_role == {("redis", "master"): 1, ("redis", "replica"): 0}
    assert total.upstream_failover_seconds == {"redis": 2.5}
