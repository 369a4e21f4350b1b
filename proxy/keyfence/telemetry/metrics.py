"""The counters in Prometheus' text format.

Rule: a scrape only reads the counters. Nothing is registered with the library's global registry. Base units
are seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .counters import DECISION_BOUNDS, Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Attribute of Counters, name, help, labels. The library appends `_total` to a counter's name.
_COUNTERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("violations", "violations", "Violations.", ("service", "rule", "command", "entry", "action")),
    ("commands", "commands", "Commands, by outcome.", ("service", "command", "outcome")),
    ("connections_accepted", "connections_accepted", "Client connections.", ("service", "listener")),
    (
        "connections_rejected",
        "connections_rejected",
        "Connections refused before a client existed.",
        ("listener", "reason"),
    ),
    ("upstream_reconnects", "upstream_reconnects", "Upstream connections made again.", ("upstream",)),
    (
        "upstream_connect_failures",
        "upstream_connect_failures",
        "Upstream connections that could not be made.",
        ("upstream",),
    ),
    (
        "sessions_opaque",
        "sessions_opaque",
        "Sessions that are passed on unread.",
        ("service", "reason"),
    ),
    (
        "upstream_faults",
        "upstream_faults",
        "Unexpected replies on shared connections: pushes dropped, connections out of step.",
        ("kind",),
    ),
    ("internal_errors", "internal_errors", "Errors in keyfence itself.", ("place",)),
    ("login_failures", "login_failures", "Wrong passwords for users that keyfence checks.", ("service",)),
    ("closures", "closures", "Connections that keyfence closed.", ("reason",)),
    ("policy_load_failures", "policy_load_failures", "Policies that could not be loaded.", ("policy",)),
    (
        "judged_at_length",
        "commands_judged_at_length",
        "Commands evaluated on the slow path, by reason.",
        ("reason",),
    ),
    (
        "candidate_commands",
        "candidate_commands",
        "Commands that a candidate policy has evaluated beside the one in force.",
        ("service",),
    ),
    (
        "candidate_violations",
        "candidate_violations",
        "Violations that only a candidate policy finds (new), that both policies find (same), or that only "
        "the policy in force finds (gone).",
        ("service", "rule", "change"),
    ),
    (
        "admin_refused",
        "admin_refused",
        "Connections and requests that the admin and metrics listeners refused.",
        ("listener", "reason"),
    ),
)
_PLAIN = (
    ("break_glass_started", "break_glass_activations", "How often enforcement was switched off by hand."),
    (
        "pending_ttl_dropped",
        "pending_ttl_dropped",
        "Keys dropped before their TTL was asked, for lack of room.",
    ),
    (
        "pending_ttl_unanswered",
        "pending_ttl_unanswered",
        "Keys whose TTL the upstream could not be asked for.",
    ),
    (
        "pending_size_dropped",
        "pending_size_dropped",
        "Keys dropped before their size was asked, for lack of room.",
    ),
    (
        "pending_size_unanswered",
        "pending_size_unanswered",
        "Keys whose size the upstream could not be asked for.",
    ),
    ("accept_pauses", "accept_pauses", "Pauses in accepting, for lack of file descriptors or memory."),
    ("worker_restarts", "worker_restarts", "Worker processes that ended without an order and were replaced."),
    ("log_lines", "log_lines", "Lines written to the decision log."),
    ("log_merged", "log_merged_decisions", "Decisions merged into another's line."),
    ("log_dropped", "log_dropped_decisions", "Decisions that no line of the log reports."),
    ("log_groups_evicted", "log_groups_evicted", "Groups of the log dropped for lack of room."),
    ("log_write_failures", "log_write_failures", "Lines that could not be written."),
    ("findings_write_failures", "findings_write_failures", "Failed writes to the findings store."),
    ("notification_failures", "notification_failures", "Notifications that the webhook did not take."),
    ("notifications_dropped", "notifications_dropped", "Changes of findings dropped for lack of room."),
)
_GAUGES = (
    ("connections_open", "connections_open", "Client connections that are open.", ("service", "listener")),
    ("opaque_open", "sessions_opaque_open", "Sessions that are passed on unread now.", ("service",)),
    ("upstream_up", "upstream_up", "Whether the upstream answers (1) or not (0).", ("upstream",)),
    ("exceptions_lapsed", "exceptions_lapsed", "Exceptions of the policy past their date.", ("kind",)),
)
_DIRECTIONS = ("client_in", "client_out", "upstream_in", "upstream_out")


class CountersCollector(Collector):
    """Turns counters into metric families at each scrape. `read` returns the counters to show: a process's
    own, or the sum over all workers."""

    def __init__(self, read: Callable[[], Counters]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        # Empty, so that registering does not scrape.
        return ()

    def collect(self) -> Iterator[Metric]:
        counters = self._read()
        for attribute, name, text, labels in _COUNTERS:
            counter = CounterMetricFamily(f"keyfence_{name}", text, labels=labels)
            _fill(counter, getattr(counters, attribute))
            yield counter
        for attribute, name, text in _PLAIN:
            yield CounterMetricFamily(f"keyfence_{name}", text, value=getattr(counters, attribute))
        traffic = CounterMetricFamily("keyfence_traffic_bytes", "Bytes, by direction.", labels=("direction",))
        for direction in _DIRECTIONS:
            traffic.add_metric((direction,), getattr(counters, direction))
        yield traffic
        yield _decisions(counters)
        for attribute, name, text, labels in _GAUGES:
            gauge = GaugeMetricFamily(f"keyfence_{name}", text, labels=labels)
            _fill(gauge, getattr(counters, attribute))
            yield gauge
        active = "Whether enforcement is switched off by hand (1) or not (0)."
        yield GaugeMetricFamily("keyfence_break_glass_active", active, value=counters.break_glass)
        if counters.workers:
            text = "Worker processes that serve clients."
            yield GaugeMetricFamily("keyfence_workers", text, value=counters.workers)
        yield from _policies(counters)


def _fill(family: CounterMetricFamily | GaugeMetricFamily, series: Mapping[Any, int]) -> None:
    for key, number in series.items():
        family.add_metric(key if isinstance(key, tuple) else (key,), number)


def _decisions(counters: Counters) -> Metric:
    cumulative = 0
    buckets: list[tuple[str, float]] = []
    for bound, number in zip((*DECISION_BOUNDS, float("inf")), counters.decision_buckets, strict=True):
        cumulative += number
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), cumulative))
    text = "Time to evaluate a command."
    return HistogramMetricFamily(
        "keyfence_decision_seconds", text, buckets=buckets, sum_value=counters.decision_seconds
    )


def _policies(counters: Counters) -> Iterator[Metric]:
    info = GaugeMetricFamily("keyfence_policy_info", "The policies in force.", labels=("policy", "revision"))
    loaded = GaugeMetricFamily(
        "keyfence_policy_loaded_timestamp_seconds", "When the policy was loaded.", labels=("policy",)
    )
    for name, (revision, at) in counters.policies.items():
        info.add_metric((name, revision), 1)
        loaded.add_metric((name,), at)
    yield info
    yield loaded


def registry(read: Callable[[], Counters]) -> CollectorRegistry:
    """A registry with keyfence's counters only."""
    own = CollectorRegistry(auto_describe=False)
    own.register(CountersCollector(read))
    return own


def exposition(counters: Counters) -> bytes:
    """The text of a scrape, of CONTENT_TYPE."""
    return generate_latest(registry(lambda: counters))
