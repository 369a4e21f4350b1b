"""`keyfence policies` lists and prints the shipped policies (tests/test_dist.py: from an installed wheel)."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from keyfence.cli.main import cli
from keyfence.policy.loading.load import load_policy
from tests.servers import PROJECT

SHIPPED = sorted(
    path.relative_to(PROJECT / "policies").with_suffix("").as_posix()
    for path in (PROJECT / "policies").rglob("*.yaml")
    if not path.name.endswith(".test.yaml")
)


def keyfence(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="keyfence")


def listed(out: str) -> dict[str, Path]:
    """Policy name → file, from the output of `keyfence policies`."""
    return {name: Path(path) for name, path in (line.split(maxsplit=1) for line in out.splitlines())}


def test_without_a_name_every_shipped_policy_is_listed_with_its_file() -> None:
    result = keyfence("policies")
    assert result.exit_code == 0
    policies = listed(result.output)
    assert sorted(policies) == SHIPPED
    assert {"general", "cubesandbox", "applications/celery"} <= policies.keys()
    assert all(path.is_file() for path in policies.values())


def test_with_a_name_the_policy_is_printed_unchanged(tmp_path: Path) -> None:
    result = keyfence("policies", "cubesandbox")
    assert result.exit_code == 0
    assert result.output == (PROJECT / "policies" / "cubesandbox.yaml").read_text()
    copy = tmp_path / "copy.yaml"
    copy.write_text(result.output)
    assert load_policy(copy).name == "cubesandbox"


@pytest.mark.parametrize("name", ["nothing", "cubesandbox.yaml", "../policies/general", "cubesandbox.test"])
def test_an_unknown_name_gives_one_line_and_exit_code_2(name: str) -> None:
    result = keyfence("policies", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"keyfence: there is no shipped policy {name}; `keyfence policies` lists them\n"


# -- by name, where a command takes a policy


def test_a_command_takes_a_shipped_policy_by_its_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    route = ("--service", "CubeProxy", "--", "GET", "cube:v1:shared:x")
    for words in (
        ("check", "cubesandbox", "applications/celery"),
        ("diff", "cubesandbox", "cubesandbox"),
        ("modes", "--policy", "cubesandbox"),
        ("export", "docs", "cubesandbox"),
    ):
        assert keyfence(*words).exit_code == 0, words
    assert keyfence("explain", "--policy", "cubesandbox", *route).exit_code == 1


def test_a_file_of_the_name_goes_before_a_shipped_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cubesandbox").write_text("policy: mine\nservices: [a]\n")
    assert "policy mine, 1 service" in keyfence("check", "cubesandbox").output


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--policy", "cubesandbx"),
        ("run", "--policy", "cubesandbox", "--candidate", "cubesandbx"),
        ("check", "cubesandbx"),
        ("explain", "--policy", "cubesandbx", "--service", "a", "GET", "k"),
        ("diff", "cubesandbox", "cubesandbx"),
        ("export", "docs", "cubesandbx"),
        ("export", "acl", "cubesandbx"),
        ("modes", "--policy", "cubesandbx"),
        ("waivers", "--policy", "cubesandbx"),
        ("exec", "--policy", "cubesandbx", "--", "true"),
        ("audit", "redis://h", "--policy", "cubesandbx"),
        ("draft", "--extend", "cubesandbx"),
        ("demo", "--policy", "cubesandbx"),
        ("scripts", "log", "--policy", "cubesandbx"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_that_is_no_policy_is_an_error_that_lists_the_names(words: tuple[str, ...]) -> None:
    ran = keyfence(*words)
    assert ran.exit_code == 2
    assert "there is no file, folder or shipped policy 'cubesandbx'" in ran.output
    assert "applications/celery" in ran.output
