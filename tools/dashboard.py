#!/usr/bin/env python3
"""Writes the Grafana dashboard deploy/grafana/keyfence.json.

Rule: it keeps the conventions of monitoring mixins (`$datasource`, `$job`, `$instance`, `$__rate_interval`).
Its queries use only metrics of keyfence, no recording rules. `tests/test_watching.py` runs each of them.

Usage: python -m tools.dashboard >deploy/grafana/keyfence.json
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
FLEET = 'job=~"$job", instance=~"$instance"'
OF_SERVICE = f'{FLEET}, service=~"$service"'
OF_RULE = f'{FLEET}, rule=~"$rule"'
WIDTH = 24  # of Grafana's grid


class Query(NamedTuple):
    """A query of a panel, and the name of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel. `description` is its tooltip."""

    kind: str  # stat, timeseries or table
    title: str
    unit: str
    queries: Sequence[Query]
    description: str = ""


def _rate(metric: str, selector: str, by: str) -> str:
    return f"sum by ({by}) (rate(keyfence_{metric}{{{selector}}}[$__rate_interval]))"


def _quantile(quantile: float, metric: str, selector: str) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{metric}_seconds_bucket', selector, 'le')})"


def _increase(metric: str, selector: str, by: str = "") -> str:
    return f"sum {by}(increase(keyfence_{metric}{{{selector}}}[$__range]))".replace("sum (", "sum(")


def _times(selector: str, quantiles: Sequence[float]) -> list[Query]:
    return [
        Query(_quantile(quantile, metric, selector), f"{shown}, {quantile:.0%}")
        for metric, shown in (("request", "in keyfence"), ("upstream", "Redis"))
        for quantile in quantiles
    ]


def _most_broken(selector: str) -> str:
    by = "service, rule, entry, command, action"
    return f"topk(20, sum by ({by}) (keyfence_violations_total{{{selector}}}))"


FLEET_PANELS = (
    Panel("stat", "Instances", "short", [Query(f"count(keyfence_build_info{{{FLEET}}})")]),
    Panel(
        "stat",
        "Reach Redis",
        "short",
        [Query(f"sum(keyfence_upstream_up{{{FLEET}}})")],
        "The number of instances that reach Redis.",
    ),
    Panel("stat", "Break-glass open", "short", [Query(f"sum(keyfence_break_glass_active{{{FLEET}}})")]),
    Panel(
        "stat", "Violations", "short", [Query(_increase("rule_violations_total", FLEET))], "In this period."
    ),
    Panel(
        "stat",
        "Exceptions past their date",
        "short",
        [Query(f"sum(max by (kind) (keyfence_exceptions_lapsed{{{FLEET}}}))")],
    ),
    Panel(
        "stat",
        "Decisions without a log line",
        "short",
        [Query(_increase("log_dropped_decisions_total", FLEET))],
        "In this period.",
    ),
    Panel(
        "timeseries",
        "Commands",
        "ops",
        [Query(_rate("commands_total", FLEET, "service"), "{{service}}")],
    ),
    Panel(
        "timeseries",
        "Violations by rule",
        "ops",
        [Query(_rate("rule_violations_total", FLEET, "rule") + " > 0", "{{rule}}")],
    ),
    Panel(
        "timeseries",
        "Violations by action",
        "ops",
        [Query(_rate("rule_violations_total", FLEET, "action"), "{{action}}")],
    ),
    Panel(
        "timeseries",
        "Times of requests",
        "s",
        _times(FLEET, (0.5, 0.99)),
        "In keyfence: from reading a request to writing it to Redis. Redis: from there to its reply.",
    ),
    Panel(
        "timeseries",
        "Commands on the slow path",
        "ops",
        [Query(_rate("commands_judged_at_length_total", FLEET, "reason"), "{{reason}}")],
    ),
    Panel(
        "timeseries",
        "Clients",
        "short",
        [Query(f"sum by (instance) (keyfence_connections_open{{{FLEET}}})", "{{instance}}")],
    ),
    Panel(
        "table",
        "Policies in force",
        "short",
        [Query(f"count by (policy, owner, contact, revision) (keyfence_policy_info{{{FLEET}}})")],
        "The value is the number of instances.",
    ),
    Panel(
        "table",
        "Who breaks what",
        "short",
        [Query(f"topk(20, {_increase('rule_violations_total', FLEET, 'by (service, rule, action) ')} > 0)")],
        "The violations in this period.",
    ),
)
SERVICE_PANELS = (
    Panel(
        "timeseries",
        "$service: commands",
        "ops",
        [Query(_rate("commands_total", OF_SERVICE, "service, outcome"), "{{service}} {{outcome}}")],
    ),
    Panel(
        "timeseries",
        "$service: violations",
        "ops",
        [
            Query(
                _rate("rule_violations_total", OF_SERVICE, "service, rule, action") + " > 0",
                "{{service}} {{rule}} {{action}}",
            )
        ],
    ),
    Panel(
        "timeseries",
        "$service: bytes",
        "Bps",
        [Query(_rate("traffic_bytes_total", OF_SERVICE, "direction"), "{{direction}}")],
    ),
    Panel("timeseries", "$service: times of requests", "s", _times(OF_SERVICE, (0.5, 0.99))),
    Panel(
        "timeseries",
        "$service: times of decisions",
        "s",
        [Query(_quantile(quantile, "decision", OF_SERVICE), f"{quantile:.0%}") for quantile in (0.5, 0.99)],
    ),
    Panel(
        "timeseries",
        "$service: clients",
        "short",
        [Query(f"sum by (service) (keyfence_connections_open{{{OF_SERVICE}}})", "{{service}}")],
    ),
    Panel(
        "table",
        "$service: what breaks which rule",
        "short",
        [Query(_most_broken(OF_SERVICE))],
        "Since keyfence was started.",
    ),
    Panel(
        "table",
        "$service: sessions that pass unread",
        "short",
        [Query(_increase("sessions_opaque_total", OF_SERVICE, "by (service, reason) "))],
        "In this period.",
    ),
)
RULE_PANELS = (
    Panel(
        "timeseries",
        "$rule: violations by service",
        "ops",
        [Query(_rate("rule_violations_total", OF_RULE, "rule, service") + " > 0", "{{rule}} {{service}}")],
    ),
    Panel(
        "timeseries",
        "$rule: violations by action",
        "ops",
        [Query(_rate("rule_violations_total", OF_RULE, "rule, action"), "{{rule}} {{action}}")],
    ),
    Panel(
        "table",
        "$rule: entries and commands",
        "short",
        [Query(_most_broken(OF_RULE))],
        "Since keyfence was started.",
    ),
    Panel(
        "table",
        "$rule: violations of each service",
        "short",
        [Query(_increase("rule_violations_total", OF_RULE, "by (rule, service, action) "))],
        "In this period. 0: the service keeps the rule.",
    ),
)
ROWS = (("Fleet", FLEET_PANELS), ("Service: $service", SERVICE_PANELS), ("Rule: $rule", RULE_PANELS))
SIZES = {"stat": (4, 4), "timeseries": (8, 8), "table": (12, 8)}  # width, height


def dashboard() -> dict[str, Any]:
    """Returns the dashboard as Grafana imports it."""
    return {
        "title": "keyfence",
        "uid": "keyfence",
        "tags": ["keyfence", "redis"],
        "description": "Who breaks which rule, and how keyfence and Redis do.",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [*_variables()]},
        "panels": [*_panels()],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    rows = "keyfence_rule_violations_total"
    for name, metric in (
        ("job", "keyfence_build_info"),
        ("instance", 'keyfence_build_info{job=~"$job"}'),
        ("service", f"{rows}{{{FLEET}}}"),
        ("rule", f"{rows}{{{FLEET}}}"),
    ):
        query = f"label_values({metric}, {name})"
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels() -> Iterator[dict[str, Any]]:
    """Lays the panels out from left to right, row by row."""
    ids = itertools.count(1)
    x = y = height = 0
    for title, panels in ROWS:
        y += height
        yield {
            "id": next(ids),
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
        }
        x, y, height = 0, y + 1, 0
        for panel in panels:
            width, tall = SIZES[panel.kind]
            if x + width > WIDTH or (height and tall != height):
                x, y = 0, y + height
            height = tall
            yield _panel(panel, next(ids), {"h": tall, "w": width, "x": x, "y": y})
            x += width


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    is_table = panel.kind == "table"
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
                "format": "table" if is_table else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
    if is_table:
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True}}}]
    if panel.kind == "stat":
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    return made


def text() -> str:
    """Returns the dashboard as its file has it."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
