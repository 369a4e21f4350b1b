"""The table of metrics, the page that is made from it, and what a running keyfence serves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from keyfence.telemetry.counters import COUNTED, GAUGES, SCALARS, Counters
from keyfence.telemetry.metrics.exposition import exposition
from keyfence.telemetry.metrics.table import LABELS, METRICS, Metric
from tests.clients.running import ask, configure, eventually
from tests.servers import PROJECT, Keyfence, RedisServer
from tools.metrics_page import page

Start = Callable[..., Keyfence]


def scraped(text: str) -> dict[str, Family]:
    """Returns the families of a scrape by the names that the table has."""
    families = text_string_to_metric_families(text)
    return {one.name + ("_total" if one.type == "counter" else ""): one for one in families}


def labels_of(family: Family) -> set[frozenset[str]]:
    return {frozenset(sample.labels) - {"le"} for sample in family.samples}


def test_the_page_is_up_to_date() -> None:
    assert (PROJECT / "docs" / "metrics.md").read_text() == page(), (
        "run: python -m tools.metrics_page >docs/metrics.md"
    )


def test_every_table_of_the_counters_is_a_metric() -> None:
    histograms = {"timed", "timed_seconds"}
    plain = {*COUNTED, *SCALARS, *GAUGES} - histograms
    assert {one.table for one in METRICS if one.kind != "histogram"} == plain | {"build"}


def test_every_label_has_its_values_described_and_no_other_has() -> None:
    assert {label for one in METRICS for label in one.labels} == LABELS.keys()


def test_every_example_uses_only_metrics_and_labels_that_exist() -> None:
    names = {one.name: one for one in METRICS}
    for one in METRICS:
        if one.query:
            (name,) = set(re.findall(r"keyfence_\w+?(?=_bucket|\b)", one.query))
            by = re.findall(r"by \(([^)]+)\)", one.query)
            labels = {label for listed in by for label in listed.split(", ")} - {"le", "instance"}
            assert labels <= set(names[name].labels)


def test_an_empty_keyfence_serves_every_metric_of_the_table() -> None:
    families = scraped(exposition(Counters()).decode())
    assert families.keys() == {one.name for one in METRICS} - {"keyfence_workers"}
    for one in METRICS:
        if one.name in families:
            assert (families[one.name].type, families[one.name].documentation) == (one.kind, one.help)


def test_a_running_keyfence_serves_the_metrics_of_the_table_with_their_labels(
    tmp_path: Path, redis_server: RedisServer, start_keyfence: Start
) -> None:
    keyfence = start_keyfence("--config", configure(tmp_path, redis_server.url, "workers: 1"))
    with keyfence.client("CubeProxy") as client:
        for number in range(130):
            client.get(f"cube:v1:shared:sandbox:proxy:{number}")
        client.get("nobody's")

    def is_counted() -> bool:
        served = scraped(ask(keyfence, "/metrics")[1])
        return all(
            served[name].samples for name in ("keyfence_upstream_seconds", "keyfence_violations_total")
        )

    eventually(is_counted, "the worker's counts are served")
    families = scraped(ask(keyfence, "/metrics")[1])
    assert families.keys() == {one.name for one in METRICS}
    with_samples: list[Metric] = [one for one in METRICS if families[one.name].samples]
    assert len(with_samples) > 30
    for one in with_samples:
        assert families[one.name].type == one.kind
        assert labels_of(families[one.name]) == {frozenset(one.labels)}
