"""A real Prometheus for tests, which scrapes a keyfence and evaluates the rules of deploy/prometheus.

Rule: it runs on a free loopback port with a folder of its own, and is ended by its own pid.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.servers import PATIENCE_SECONDS, PROJECT, free_port

MISSING = "prometheus is not installed (Debian's package prometheus, which has promtool too)"
RULES = PROJECT / "deploy" / "prometheus"
JOB = "keyfence"
LIMIT_SECONDS = 90.0  # for what takes some seconds on a quiet machine


def is_installed() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def wait_until(check: Callable[[], object], what: str) -> None:
    """Waits until `check` holds; each time it asks Prometheus, which should not be busy with this alone."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not check():
        assert time.monotonic() < deadline, f"it never came to pass that {what}"
        time.sleep(0.2)


class Sample(NamedTuple):
    """One row of an answer."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """Scrapes these targets, and evaluates the rules, each second."""

    def __init__(self, folder: Path, *targets: str) -> None:
        """`targets` are addresses: HOST:PORT."""
        self._folder = folder
        self._port = free_port()
        listed = json.dumps(list(targets))
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: [{RULES}/recording.yml, {RULES}/alerts.yml]\n"
            f"scrape_configs: [{{job_name: {JOB}, static_configs: [{{targets: {listed}}}]}}]\n"
        )

    def __enter__(self) -> Self:
        self._log = (self._folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._folder}/prometheus.yml",
                f"--storage.tsdb.path={self._folder}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(self._is_ready, "Prometheus is ready")
        except BaseException as exc:
            self.__exit__(None, None, None)
            exc.add_note((self._folder / "prometheus.log").read_text()[-2000:])
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def query(self, expression: str) -> list[Sample]:
        """Returns the answer to a query, now."""
        rows = self._get("query", query=expression)["result"]
        return [Sample(row["metric"], float(row["value"][1])) for row in rows]

    def alerts(self, name: str) -> list[dict[str, str]]:
        """Returns the labels of the alerts of this name that are firing."""
        alerts = self._get("alerts")["alerts"]
        return [
            one["labels"] for one in alerts if one["labels"]["alertname"] == name and one["state"] == "firing"
        ]

    def failing_rules(self) -> dict[str, str]:
        """Returns the rules that cannot be evaluated, with their errors."""
        groups = self._get("rules")["groups"]
        rules = [rule for one in groups for rule in one["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}

    def wait_for_scrapes(self, more: int) -> None:
        """Waits until this many more scrapes have succeeded."""
        scrapes = f'min(sum_over_time(up{{job="{JOB}"}}[1h]))'

        def number() -> float:
            return sum(one.value for one in self.query(scrapes))

        goal = number() + more
        wait_until(lambda: number() >= goal, f"{more} more scrapes have succeeded")
