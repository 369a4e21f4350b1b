"""The settings of reads from replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from tests.config.test_models import faults

SENTINEL = "sentinel: {hosts: ['s:26379'], name: main}"
READS = "reads: {CubeMaster: replicas}\n"


def settings(tmp_path: Path, text: str, flags: Overrides | None = None) -> Settings:
    file = tmp_path / "keyfence.yaml"
    file.write_text("policy: p\n" + text)
    return load_settings(str(file), flags or Overrides())


def test_replicas_are_named_or_known_to_the_sentinels(tmp_path: Path) -> None:
    named = settings(tmp_path, 'upstream: {url: "redis://a", replicas: ["b:6379", "[::1]:7"]}\n' + READS)
    assert named.replicas == (("b", 6379), ("::1", 7))
    known = settings(tmp_path, f"upstream: {{{SENTINEL}, replicas: sentinel}}\n{READS}")
    assert known.replicas == "sentinel"
    assert settings(tmp_path, "upstream: redis://a").replicas == ()


def test_a_service_asks_for_replicas(tmp_path: Path) -> None:
    upstream = 'upstream: {url: "redis://a", replicas: ["b:6379"]}\n'
    text = 'reads: {"*": replicas, CubeProxy: primary, CubeMaster: {at: replicas, after_write: 5s}}'
    assert settings(tmp_path, upstream + text).after_write == {"*": 1.0, "CubeProxy": None, "CubeMaster": 5.0}
    assert settings(tmp_path, upstream + "reads: replicas").after_write == {"*": 1.0}
    assert settings(tmp_path, upstream).after_write == {}


def test_the_upstream_of_the_command_line_has_no_replicas(tmp_path: Path) -> None:
    flags = Overrides(upstream="redis://other")
    text = 'upstream: {url: "redis://a", replicas: ["b:6379"]}\n' + READS
    assert settings(tmp_path, text, flags).replicas == ()


@pytest.mark.parametrize(
    ("upstream", "message"),
    [
        (
            'url: "redis://a", mode: dedicated, replicas: ["b:6379"]',
            "2:57: reads from replicas need mode: shared, because a dedicated connection leads to the "
            "primary; remove mode, or replicas",
        ),
        (
            'replicas: ["b:6379"]',
            "2:22: replicas need a url or Sentinels; name the Redis whose replicas they are",
        ),
        (
            'url: "redis://a", replicas: sentinel',
            "2:40: no Sentinels are named that know the replicas; list them as HOST:PORT, or add sentinel:",
        ),
        ('url: "redis://a", replicas: ["a:6379"]', "2:41: a:6379 is the primary itself; remove it"),
        (
            'url: "redis://a", replicas: ["b:6379", "b:6379"]',
            "2:51: b:6379 is named twice; remove one",
        ),
        ('url: "redis://a"', "3:21: no replicas are named to read from; add replicas: to upstream"),
        (
            'url: "redis://a", replicas: ["b"]',
            "2:40: 'b' is not an address; write HOST:PORT, as in 127.0.0.1:6380 or [::1]:6380",
        ),
        (
            'url: "redis://a", replicas: some',
            "2:40: expected a list of replicas, each as HOST:PORT, or the word sentinel",
        ),
    ],
)
def test_reads_that_cannot_take_place_are_told_with_their_place(
    tmp_path: Path, upstream: str, message: str
) -> None:
    assert faults(tmp_path, f"policy: p\nupstream: {{{upstream}}}\n{READS}") == ["keyfence.yaml:" + message]


CLUSTER = 'upstream: {cluster: ["a:6379"], expose: single}\n'


def test_a_cluster_behind_one_address_needs_no_names_of_replicas(tmp_path: Path) -> None:
    found = settings(tmp_path, CLUSTER + READS)
    assert found.after_write == {"CubeMaster": 1.0}
    assert found.replicas == ()


def test_clients_that_know_clusters_choose_replicas_themselves(tmp_path: Path) -> None:
    upstream = 'upstream: {cluster: ["a:6379"], announce: {host: 127.0.0.1, ports: 7200-7299}}\n'
    assert faults(tmp_path, "policy: p\n" + upstream + READS) == [
        "keyfence.yaml:3:21: clients that know clusters choose the node of each read themselves, and read at "
        "a replica's listener after READONLY; remove reads, or write expose: single in place of announce"
    ]


def test_only_known_services_and_places_are_named(tmp_path: Path) -> None:
    text = 'policy: p\nupstream: {url: "redis://a", replicas: ["b:6379"]}\n'
    assert faults(tmp_path, text + "reads: {CubeMastr: replicas}") == [
        "keyfence.yaml:3:20: 'CubeMastr' is not a service of the policy; did you mean CubeMaster?"
    ]
    [fault] = faults(tmp_path, text + "reads: {CubeMaster: master}")
    assert fault.startswith("keyfence.yaml:3:21: ")
