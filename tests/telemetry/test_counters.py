from __future__ import annotations

import json

import pytest

from keyfence.telemetry import counters as module
from keyfence.telemetry.counters import DECISION_BOUNDS, Counters
from keyfence.telemetry.traffic import Traffic


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
    counters.observe_decision(seconds, times=2)
    assert counters.decision_buckets[bucket] == 2
    assert sum(counters.decision_buckets) == 2
    assert counters.decision_seconds == 2 * seconds


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
    counters.upstream_reconnected("redis")
    counters.upstream_connect_failed("redis")
    counters.session_opaque("a", "protocol")
    counters.internal_error("judge")
    counters.closed_for("output limit")
    counters.policy_loaded("cubesandbox", "r1", 100.0)
    counters.policy_load_failed("cubesandbox")
    counters.set_exceptions_lapsed("legacy", 2)
    counters.observe_decision(2e-6)
    counters.client_in += 10
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
    assert total.client_in == 20
    assert sum(total.decision_buckets) == 2
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
    traffic = {name for name in dir(Traffic()) if not name.startswith("_")}
    assert set(shot) == set(Counters.__slots__) | traffic
