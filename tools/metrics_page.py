#!/usr/bin/env python3
"""Writes docs/metrics.md from the table of metrics.

Rule: nothing about a metric is written by hand. `tests/telemetry/metrics/test_table.py` compares the page
with this output, and with a scrape of a running keyfence.

Usage: python -m tools.metrics_page >docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from keyfence.telemetry.counters import BOUNDS, MAX_COARSE, MAX_SERIES, MAX_SERVICES
from keyfence.telemetry.metrics.table import LABELS, METRICS, TOPICS, Metric

INTRODUCTION = f"""\
# Metrics

`GET /metrics` on the admin address, and on the `metrics` address, serves these metrics in Prometheus' text
format. With workers it serves the sum of all processes. A reload or a worker's restart resets no counter.
[deploy/prometheus](../deploy/prometheus) has recording rules and alerts, [deploy/grafana](../deploy/grafana)
a dashboard, and [runbooks.md](runbooks.md) says what to do about each alert.

`python -m tools.metrics_page` writes this page from the code.

- **Rows at 0.** `keyfence_rule_violations_total` and `keyfence_sessions_opaque_total` have every row that can
  occur from the start, and those of a new policy from the reload on. So `increase()` sees the first
  violation. A rule that is disabled for a service has no row there.
- **Limits.** The label sets are closed, and no metric has more than {MAX_SERIES + MAX_COARSE:,} rows (times
  and bytes: those of {MAX_SERVICES} services). Beyond that, counts go to rows with the label `other`, so that
  sums stay exact. `keyfence_series_folded_total` counts how often that happens.
- **Owners.** `keyfence_policy_info` says who owns a policy file. If one file is in force, this routes an
  alert: `keyfence_rule_violations_total * on (job, instance) group_left (owner, contact)
  keyfence_policy_info`. If several are, look at the `entry` of `keyfence_violations_total`.
- **Samples.** The three histograms are sampled, because taking the time costs a part of what it measures. So
  their `_count` is the number of samples; `keyfence_commands_total` has the number of commands.
"""


def page() -> str:
    """Returns the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    for topic, metrics in TOPICS.items():
        yield f"## {topic}\n"
        yield "| metric | type, unit | labels | meaning | example |"
        yield "|---|---|---|---|---|"
        yield from map(_row, metrics)
        yield ""
    yield "## Labels\n"
    yield "| label | values |"
    yield "|---|---|"
    used = {label for metric in METRICS for label in metric.labels}
    for label, values in LABELS.items():
        if label in used:
            yield f"| `{label}` | {values} |"
    yield ""
    yield "## Buckets\n"
    yield "| histogram | upper bounds in seconds |"
    yield "|---|---|"
    for metric in METRICS:
        if metric.kind == "histogram":
            bounds = ", ".join(f"{bound:g}" for bound in BOUNDS[metric.table])
            yield f"| `{metric.name}` | {bounds} |"


def _row(metric: Metric) -> str:
    kind = f"{metric.kind}, {metric.unit}" if metric.unit else metric.kind
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    query = f"`{metric.query}`" if metric.query else ""
    cells = [f"`{metric.name}`", kind, labels, metric.help, query]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write(page())
