"""The alerts and the dashboard of deploy/, with a real Prometheus that scrapes a real keyfence."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from keyfence.telemetry.metrics.table import METRICS
from tests.clients.running import ask, configure, metric
from tests.prometheus import JOB, MISSING, RULES, Prometheus, is_installed, wait_until
from tests.servers import PROJECT, Keyfence, running_redis
from tests.test_docs import anchors
from tools.dashboard import dashboard, text

RUNBOOKS = PROJECT / "docs" / "runbooks.md"
DASHBOARD = PROJECT / "deploy" / "grafana" / "keyfence.json"
ALERTS = {
    "NewViolation",
    "RefusalsRising",
    "ExceptionLapsed",
    "BreakGlassActive",
    "SessionsOpaque",
    "RedisBypassed",
    "RedisReadOnly",
    "RedisWithoutPrimary",
    "FailoverTookLong",
    "RedisMisplaced",
    "HashSlotsWithoutNode",
    "TopologyOld",
    "ClusterNodeNotServed",
    "DecisionsDropped",
    "UpstreamDown",
    "KeyfenceDown",
    "LoginNotRenewed",
    "LoginEnds",
    "PolicyRefused",
    "PolicyStale",
}
needs_prometheus = pytest.mark.skipif(not is_installed(), reason=MISSING)


def rules() -> list[dict[str, Any]]:
    """Returns the recording rules and the alerts."""
    files = [yaml.safe_load((RULES / name).read_text()) for name in ("recording.yml", "alerts.yml")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> dict[str, str]:
    """Returns every query of the rules and the dashboard, by its place."""
    found = {rule.get("record") or rule["alert"]: rule["expr"] for rule in rules()}
    for panel in panels():
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


# -- without a Prometheus


def test_every_alert_has_a_runbook_with_what_it_means_and_what_to_do() -> None:
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert alerts.keys() == ALERTS
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        assert name.lower() in anchors(RUNBOOKS)
        section = RUNBOOKS.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
        for part in ("What it means.", "How to look.", "What to do."):
            assert f"**{part}**" in section
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


@pytest.mark.parametrize("place", queries())
def test_every_query_uses_metrics_and_labels_that_exist(place: str) -> None:
    metrics = {one.name: one for one in METRICS}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    query = queries()[place]
    for name, selector in re.findall(r"\b([a-z_]*:?keyfence_[\w:]+)(?:\{([^}]*)\})?", query):
        if ":" in name:
            assert name in recorded
            continue
        known = {*metrics[name.removesuffix("_bucket")].labels, "job", "instance", "le"}
        assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selector)) <= known


def test_the_dashboard_is_up_to_date() -> None:
    assert DASHBOARD.read_text() == text(), "run: python -m tools.dashboard >deploy/grafana/keyfence.json"


def test_the_dashboard_keeps_the_conventions_of_mixins() -> None:
    names = [one["name"] for one in dashboard()["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "service", "rule"]
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            selectors = re.findall(r"keyfence_\w+\{([^}]*)\}", target["expr"])
            assert selectors
            for selector in selectors:
                assert 'job=~"$job", instance=~"$instance"' in selector
            assert set(re.findall(r"\[([^]]+)\]", target["expr"])) <= {"$__rate_interval", "$__range"}


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


# -- with a Prometheus


@needs_prometheus
def test_the_rules_pass_their_own_tests() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=RULES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        alert["alertname"]
        for test in yaml.safe_load((RULES / "tests.yml").read_text())["tests"]
        for alert in test.get("alert_rule_test", ())
        if "exp_alerts" in alert
    }
    assert tested == ALERTS


@needs_prometheus
def test_the_example_configuration_is_valid() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", str(RULES / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Busy(threading.Thread):
    """A client of CubeProxy that sends admitted commands, and reconnects when its worker ends."""

    def __init__(self, keyfence: Keyfence) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._client = keyfence.client("CubeProxy")

    def run(self) -> None:
        while not self.ended.wait(0.005):
            try:
                self._client.hget("cube:v1:shared:sandbox:proxy:7c8f", "HostIP")
            except redis.ConnectionError:
                continue  # redis-py connects again
        self._client.close()


class Watched:
    """A keyfence with two workers and some traffic, and a Prometheus that scrapes it each second."""

    def __init__(self, keyfence: Keyfence, prometheus: Prometheus, config: Path) -> None:
        self.keyfence = keyfence
        self.prometheus = prometheus
        self.config = config

    def reload(self, *more: str) -> None:
        configure(self.config.parent, self.keyfence.ready.upstream, "workers: 2", *more)
        status, body = ask(self.keyfence, "/-/reload", {})
        assert status == 200, body

    def kill_a_worker(self) -> None:
        (pid, *_) = [one["pid"] for one in json.loads(ask(self.keyfence, "/workers")[1])]
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: metric(self.keyfence, "keyfence_worker_restarts_total") >= 1, "the worker is replaced"
        )

    def series(self) -> set[str]:
        """Returns all series of keyfence's counters."""
        names = "|".join(one.name for one in METRICS if one.kind == "counter")
        return {str(sorted(one.labels.items())) for one in self.prometheus.query(f'{{__name__=~"{names}"}}')}

    def resets(self) -> dict[str, float]:
        """Returns the counters of which a series was ever reset."""
        found = {}
        for one in METRICS:
            name = {"counter": one.name, "histogram": f"{one.name}_count"}.get(one.kind)
            if name:
                for row in self.prometheus.query(f"sum(resets({name}[1h])) > 0"):
                    found[name] = row.value
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with running_redis() as server:
        config = configure(folder, server.url, "workers: 2")
        expected = r"worker \d+ has ended \(killed by SIGKILL\)|\A\Z"
        with Keyfence("--config", config, expect_stderr=expected) as keyfence:
            target = urllib.parse.urlsplit(keyfence.ready.admin).netloc
            with Prometheus(folder, target) as prometheus:
                busy = Busy(keyfence)
                busy.start()
                prometheus.wait_for_scrapes(3)
                yield Watched(keyfence, prometheus, config)
                busy.ended.set()
                busy.join()


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_violation_fires_exactly_one_alert(watched: Watched) -> None:
    prometheus = watched.prometheus
    assert prometheus.alerts("NewViolation") == []
    with watched.keyfence.client("cube-proxy-sidecar") as client:
        client.hget("cube:v1:master:node:metric:n1", "cpu")
    wait_until(lambda: prometheus.alerts("NewViolation"), "the alert fires")
    prometheus.wait_for_scrapes(5)
    (alert,) = prometheus.alerts("NewViolation")
    assert alert == {
        "alertname": "NewViolation",
        "job": JOB,
        "service": "cube-proxy-sidecar",
        "rule": "scope.read",
        "severity": "warning",
        "policy": "cubesandbox",
        "owner": "cube-platform",
        "contact": "#cube-redis",
    }
    assert prometheus.failing_rules() == {}
    for name in ALERTS - {"NewViolation"}:
        assert prometheus.alerts(name) == []


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reload_and_a_workers_restart_reset_no_series(watched: Watched) -> None:
    prometheus = watched.prometheus
    prometheus.wait_for_scrapes(2)
    before = watched.series()
    watched.reload("modes: [{rule: scope.write, mode: enforce}, {mode: observe}]")
    prometheus.wait_for_scrapes(2)
    watched.kill_a_worker()
    prometheus.wait_for_scrapes(2)
    assert ask(watched.keyfence, "/-/restart", {})[0] == 200
    prometheus.wait_for_scrapes(3)
    assert watched.resets() == {}
    assert before
    wait_until(lambda: before < watched.series(), "every series is there, and those of the new modes")
    (commands,) = prometheus.query('sum(increase(keyfence_commands_total{service="CubeProxy"}[1h]))')
    assert commands.value > 0


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_panel_of_the_dashboard_shows_data(watched: Watched) -> None:
    values = {
        "$job": JOB,
        "$instance": ".+",
        "$service": "CubeProxy",
        "$rule": "scope.read",
        "$__rate_interval": "1m",
        "$__range": "1h",
    }

    def expression(target: dict[str, Any]) -> str:
        query: str = target["expr"]
        for variable, value in values.items():
            query = query.replace(variable, value)
        assert "$" not in query
        return query

    def is_shown(target: dict[str, Any]) -> bool:
        rows = watched.prometheus.query(expression(target))
        return any(not math.isnan(row.value) for row in rows)

    def are_empty() -> list[str]:
        return [
            f"{panel['title']}: {expression(target)}"
            for panel in panels()
            for target in panel["targets"]
            if not is_shown(target)
        ]

    with watched.keyfence.client("CubeProxy") as client:
        client.hget("cube:v1:master:node:metric:n1", "cpu")
    wait_until(lambda: not are_empty(), "every panel has data")
