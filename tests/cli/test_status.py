"""`keyfence status` shows everything that keyfence says of itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from keyfence.admin.client import AskError
from keyfence.cli.main import cli
from keyfence.upstream.cluster.state import ClusterState
from tests.upstream.cluster.states import MASTER
from tests.web.stage import Stage


def no_next_step(*_: Any) -> Any:
    raise AskError("there is no /next")


def said(monkeypatch: pytest.MonkeyPatch, next_step: Any = None, **more: Any) -> tuple[int, list[str]]:
    """The exit code and the lines, for an answer of a running keyfence."""
    answer = asyncio.run(Stage(None).status()) | {"modes": {}, "clients": {}} | more
    answer["modes"] = {"shop": {"enforce": 3}}
    for one in answer["workers"]:
        one["started"] = 1e9
    monkeypatch.setattr("keyfence.cli.status.ask_admin", lambda *_: answer)
    monkeypatch.setattr("keyfence.cli.status.ask", next_step or no_next_step)
    ran = CliRunner().invoke(cli, ["status"])
    return ran.exit_code, ran.output.splitlines()


def test_each_warning_about_redis_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = said(monkeypatch, warnings=["upstream r is a replica", "upstream r sends notices"])
    assert code == 0
    assert lines[1:4] == [
        "ready       yes",
        "warning     upstream r is a replica",
        "warning     upstream r sends notices",
    ]


def test_the_environment_is_a_line_if_the_configuration_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, environment="staging")[1][1] == "environment staging"
    assert said(monkeypatch)[1][1] == "ready       yes"


def test_without_a_warning_there_is_no_such_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(line.startswith("warning") for line in said(monkeypatch)[1])


def test_the_last_lines_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"sentence": "3 rules can be enforced: a, b and c.", "command": "keyfence ready --write-modes"}
    lines = said(monkeypatch, lambda *_: step)[1]
    assert lines[-2:] == [
        "next        3 rules can be enforced: a, b and c.",
        "            keyfence ready --write-modes",
    ]
    lines = said(monkeypatch, lambda *_: step | {"command": ""})[1]
    assert lines[-1] == "next        3 rules can be enforced: a, b and c."


def test_a_keyfence_that_does_not_say_what_to_do_is_shown_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch)[1][-1].startswith("clients ")


def test_what_makes_it_not_ready_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = said(monkeypatch, ready=False, reasons=["upstream r was a primary"])
    assert (code, lines[1]) == (1, "ready       no: upstream r was a primary")


@pytest.mark.parametrize(("seconds", "end"), [(None, ""), (2.34, "; 2.3 s without service")])
def test_the_last_failover_is_a_line(
    seconds: float | None, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failover = {"node": "10.0.0.2:6379", "why": "the Sentinels", "at": 0.0, "seconds": seconds}
    upstream = {"address": "sentinel:main", "up": True, "since": 1e9, "reason": "", "last_failover": failover}
    [line] = [one for one in said(monkeypatch, upstream=upstream)[1] if one.startswith("failover")]
    assert line.startswith("failover    to 10.0.0.2:6379 at ")
    assert line.endswith(f", known from the Sentinels{end}")


def a_cluster(age: float | None = 3.2, nodes: int = 1) -> dict[str, Any]:
    """The upstream of a status: a master, and so many replicas that clients cannot reach."""
    away = MASTER._replace(role="replica", primary=MASTER.node, announced="", up=False, slots=0)
    rows = [MASTER._replace(slots=5461), *[away] * (nodes - 1)]
    about = ClusterState(rows, 16383, age, [], Counter()).as_json()
    upstream = {"address": "cluster:10.0.0.1:6379", "up": True, "since": 1e9, "reason": ""}
    return upstream | {"cluster": about}


def test_the_nodes_of_a_cluster_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said(monkeypatch, upstream=a_cluster(nodes=2))[1]
    first = lines.index("cluster     2 nodes, 16383 of 16384 hash slots are served, topology 3.2 s old")
    assert lines[first + 1 : first + 3] == [
        "node        10.0.0.1:6379, master, 5,461 hash slots, up; clients use proxy:7201",
        "node        10.0.0.1:6379, replica of 10.0.0.1:6379, down; clients cannot reach it",
    ]


def test_commands_that_are_sent_in_parts_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    split = {"CubeMaster": ["MGET", "DEL"], "CubeProxy": [], "*": ["EXISTS"]}
    lines = said(monkeypatch, upstream=a_cluster() | {"split": split})[1]
    assert [one for one in lines if one.startswith("split")] == [
        "split       CubeMaster: MGET, DEL",
        "split       CubeProxy: none",
        "split       every other service: EXISTS",
    ]


def test_of_many_nodes_some_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [one for one in said(monkeypatch, upstream=a_cluster(nodes=60))[1] if one.startswith("node ")]
    assert len(lines) == 51
    assert lines[-1] == "node        10 more (--format json has all)"


def test_a_topology_that_is_not_known_yet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said(monkeypatch, upstream=a_cluster(None, 0))[1]
    assert any(one.endswith("its topology is not known yet") for one in lines)
