"""`keyfence waivers`, run as a user would."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from keyfence.cli.main import cli

POLICY = """policy: p
services: [one, two]
scopes: {s: {prefix: "p:", writers: one}}
keys: {k: {key: "p:k"}}
"""
WAIVERS = """waivers:
  - {service: two, rule: scope.write, entry: k, owner: ada, reason: moves, until: 2099-01-01}
  - {service: two, rule: scope.read, entry: k, owner: ada, reason: moves, until: 2099-01-01}
"""
LINE = {
    "time": "2026-01-01T00:00:00Z",
    "service": "two",
    "command": "SET",
    "rule": "scope.write",
    "severity": "must",
    "entry": "k",
    "key": "p:k",
    "hint": "",
    "action": "waived",
    "merged": 2,
    "dropped": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "w.yaml").write_text(WAIVERS)
    (tmp_path / "keyfence.yaml").write_text("policy: p.yaml\nwaivers: w.yaml\n")
    log = [LINE, LINE | {"action": "refused", "command": "DEL", "merged": 0}]
    (tmp_path / "log").write_text("".join(json.dumps(one) + "\n" for one in log))
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["waivers", *map(str, arguments)])


def test_uses_are_counted_from_a_decision_log(folder: Path) -> None:
    result = run(folder / "log", "--config", folder / "keyfence.yaml", "--json")
    assert result.exit_code == 0, result.output
    assert [(one["rule"], one["uses"], one["state"]) for one in json.loads(result.output)] == [
        ("scope.write", 3, "in use"),
        ("scope.read", 0, "unused"),
    ]


def test_the_table_shows_each_waiver_with_its_owner(folder: Path) -> None:
    result = run(folder / "log", "--waivers", folder / "w.yaml")
    assert result.exit_code == 0, result.output
    assert "in use" in result.output
    assert "unused" in result.output
    assert "ada" in result.output


def test_a_lapsed_waiver_has_exit_code_1(folder: Path) -> None:
    (folder / "w.yaml").write_text(WAIVERS.replace("2099", "2020", 1))
    result = run("--config", folder / "keyfence.yaml")
    assert result.exit_code == 1, result.output
    assert "lapsed" in result.output


def test_without_a_source_no_uses_are_counted(folder: Path) -> None:
    result = run("--config", folder / "keyfence.yaml", "--json")
    assert result.exit_code == 0, result.output
    assert [(one["uses"], one["state"]) for one in json.loads(result.output)] == [(None, ""), (None, "")]


def test_a_baseline_is_a_valid_waivers_file(folder: Path) -> None:
    result = run(folder / "log", "--baseline", "--owner", "ada", "--until", "2099-01-01")
    assert result.exit_code == 0, result.output
    (folder / "w.yaml").write_text(result.output)
    listed = run("--config", folder / "keyfence.yaml", "--json")
    assert [(one["service"], one["rule"], one["command"]) for one in json.loads(listed.output)] == [
        ("two", "scope.write", "DEL")
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["log"], 2, "no waivers; name them with --config or --waivers"),
        (["--admin", "127.0.0.1:1"], 1, "http://127.0.0.1:1/waivers: no keyfence answers there"),
        (["log", "--baseline"], 2, "--baseline needs --owner and --until: who will fix this, and by when?"),
        (
            ["log", "--baseline", "--owner", "a", "--until", "x"],
            2,
            "'x' is not a date; write it as 2027-06-30",
        ),
        (["none", "--waivers", "w.yaml"], 2, "none: No such file or directory"),
        (["http://127.0.0.1:1", "--waivers", "w.yaml"], 1, "no keyfence answers there"),
        (["--waivers", "p.yaml"], 2, "p.yaml:1:1: error: this is a policy, which --policy names"),
    ],
)
def test_a_wrong_waivers_option_gives_one_line(
    arguments: list[str], code: int, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = run(*arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_a_name_that_the_policy_lacks_is_an_error_with_its_place(folder: Path) -> None:
    (folder / "w.yaml").write_text(WAIVERS.replace("entry: k", "entry: kk"))
    result = run("--waivers", folder / "w.yaml", "--policy", folder / "p.yaml")
    assert result.exit_code == 2
    assert f"{folder / 'w.yaml'}:2:46: error: 'kk' is not an entry or channel of the policy" in result.output


def test_a_short_log_marks_no_waiver_as_unused(folder: Path) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    (folder / "log").write_text(json.dumps(LINE | {"time": now}) + "\n")
    result = run(folder / "log", "--config", folder / "keyfence.yaml")
    assert result.exit_code == 0, result.output
    assert "unused" not in result.output
    assert "too early: uses are counted since 20" in result.output
