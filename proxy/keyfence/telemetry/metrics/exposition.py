"""The counters in Prometheus' text format.

Rule: a scrape only reads the counters. `table` lists every metric; the exposition and docs/metrics.md come
from it. Nothing is registered with the library's global registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from keyfence import __version__
from keyfence.telemetry.counters import BOUNDS, Counters

from .table import BY_TABLE, METRICS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Rows = Mapping[Any, float]  # by the labels' values: a tuple, or the value of the only label


class CountersCollector(Collector):
    """Turns counters into metric families at each scrape. `read` returns the counters to show: a process's
    own, or the sum over all workers."""

    def __init__(self, read: Callable[[], Counters]) -> None:
        self._read = read

    def describe(self) -> Iterable[Family]:
        # Empty, so that registering does not scrape.
        return ()

    def collect(self) -> Iterator[Family]:
        counters = self._read()
        for metric in METRICS:
            if metric.kind == "histogram":
                yield _histogram(metric, counters)
            elif metric.name != "keyfence_workers" or counters.workers:
                yield _family(metric, _rows(metric, counters))


def _rows(metric: Metric, counters: Counters) -> Rows:
    """The values of a metric, by its labels' values."""
    match metric.table:
        case "build":
            return {__version__: 1}
        case "policies":
            return {name: at for name, (_, at) in counters.policies.items()}
        case "folded":
            return {BY_TABLE.get(table, f"keyfence_{table}"): n for table, n in counters.folded.items()}
        case table:
            found = getattr(counters, table)
            return found if metric.labels else {(): found}


def _family(metric: Metric, rows: Rows) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for key, number in rows.items():
        family.add_metric(key if isinstance(key, tuple) else (key,), number)
    return family


def _histogram(metric: Metric, counters: Counters) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(repr, BOUNDS[metric.table]), "+Inf"]
    for (what, service), seconds in counters.timed_seconds.items():
        if what == metric.table:
            total = 0
            buckets: list[tuple[str, float]] = []
            for index, bound in enumerate(bounds):
                total += counters.timed.get((what, service, index), 0)
                buckets.append((bound, total))
            family.add_metric((service,), buckets, seconds)
    return family


def registry(read: Callable[[], Counters]) -> CollectorRegistry:
    """A registry with keyfence's counters only."""
    own = CollectorRegistry(auto_describe=False)
    own.register(CountersCollector(read))
    return own


def exposition(counters: Counters) -> bytes:
    """The text of a scrape, of CONTENT_TYPE."""
    return generate_latest(registry(lambda: counters))
