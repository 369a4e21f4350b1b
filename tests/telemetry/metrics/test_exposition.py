from __future__ import annotations

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from keyfence.telemetry.counters import DECISION_BOUNDS, Counters
from keyfence.telemetry.metrics.exposition import exposition


def samples(counters: Counters) -> dict[str, float]:
    text = exposition(counters).decode("utf-8")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_an_empty_proxy_has_its_plain_numbers_at_zero() -> None:
    found = samples(Counters())
    assert found["keyfence_log_dropped_decisions_total{}"] == 0
    assert found["keyfence_break_glass_active{}"] == 0


def test_counts_are_exposed_under_their_labels() -> None:
    counters = Counters()
    counters.violation('we"ird\n', "scope.write", "HSET", "route", "refused", times=2)
    counters.command("a", "GET", "forwarded", times=7)
    counters.connection_opened("a", "tcp")
    counters.connection_rejected("tcp", "clients")
    counters.upstream_state("redis", True)
    counters.upstream_event("redis", "reconnects")
    counters.upstream_event("redis", "connect_failures")
    counters.session_opaque("a", "monitor")
    counters.internal_error("judge")
    counters.closed_for("output limit")
    counters.at_length("violation")
    counters.policy_loaded("cubesandbox", "r1", 1234.5)
    counters.policy_made_of([("cubesandbox", "platform", "#cube")], "r1")
    counters.meter("a").upstream_in += 5
    counters.collect()
    counters.policy_failed("load", "cubesandbox")
    counters.set_break_glass(True)
    counters.set_exceptions_lapsed("legacy", 3)
    found = samples(counters)
    expected = {
        "keyfence_violations_total{action=refused,command=HSET,entry=route,rule=scope.write,"
        'service=we"ird\n}': 2,
        'keyfence_rule_violations_total{action=refused,rule=scope.write,service=we"ird\n}': 2,
        "keyfence_traffic_bytes_total{direction=upstream_in,service=a}": 5,
        "keyfence_commands_total{command=GET,outcome=forwarded,service=a}": 7,
        "keyfence_connections_open{listener=tcp,service=a}": 1,
        "keyfence_connections_accepted_total{listener=tcp,service=a}": 1,
        "keyfence_connections_rejected_total{listener=tcp,reason=clients}": 1,
        "keyfence_upstream_up{upstream=redis}": 1,
        "keyfence_upstream_reconnects_total{upstream=redis}": 1,
        "keyfence_upstream_connect_failures_total{upstream=redis}": 1,
        "keyfence_sessions_opaque_total{reason=monitor,service=a}": 1,
        "keyfence_internal_errors_total{place=judge}": 1,
        "keyfence_closures_total{reason=output limit}": 1,
        "keyfence_commands_judged_at_length_total{reason=violation}": 1,
        "keyfence_policy_info{contact=#cube,owner=platform,policy=cubesandbox,revision=r1}": 1,
        "keyfence_policy_loaded_timestamp_seconds{policy=cubesandbox}": 1234.5,
        "keyfence_policy_load_failures_total{policy=cubesandbox}": 1,
        "keyfence_break_glass_active{}": 1,
        "keyfence_break_glass_activations_total{}": 1,
        "keyfence_exceptions_lapsed{kind=legacy}": 3,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_the_histogram_is_cumulative_and_starts_in_microseconds() -> None:
    counters = Counters()
    for seconds in (5e-7, 3e-6, 3e-6, 1.0):
        counters.took("decision", "A", seconds)
    found = samples(counters)
    buckets = [
        (float(name.split("le=")[1].split(",")[0]), value)
        for name, value in found.items()
        if name.startswith("keyfence_decision_seconds_bucket")
    ]
    assert [bound for bound, _ in buckets] == [*DECISION_BOUNDS, float("inf")]
    assert [value for _, value in buckets][:3] == [1, 1, 3]
    assert buckets[-2:] == [(0.01, 3), (float("inf"), 4)]
    assert found["keyfence_decision_seconds_count{service=A}"] == 4


def test_every_name_is_ours_and_the_global_registry_stays_untouched() -> None:
    before = {family.name for family in REGISTRY.collect()}
    families = list(text_string_to_metric_families(exposition(Counters()).decode()))
    assert all(family.name.startswith("keyfence_") for family in families)
    assert all(family.documentation for family in families)
    assert {family.name for family in REGISTRY.collect()} == before
