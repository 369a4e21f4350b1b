"""`keyfence export`: what it prints, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from keyfence.authoring.export.languages import LANGUAGES
from keyfence.cli.main import cli
from tests.policy.cases import POLICIES

CUBESANDBOX = str(POLICIES / "cubesandbox.yaml")


def export(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export", *arguments], prog_name="keyfence")


@pytest.mark.parametrize("arguments", [[], ["acl"], ["docs"], ["builders"]])
def test_help_fits_a_terminal_of_80_columns(arguments: list[str]) -> None:
    result = CliRunner().invoke(
        cli, ["export", *arguments, "--help"], prog_name="keyfence", terminal_width=80, max_content_width=80
    )
    assert result.exit_code == 0
    # The names of servers are one word for click.
    long = [line for line in result.output.splitlines() if len(line) > 80]
    assert all("redis-8.10" in line for line in long)


def test_acl_prints_a_line_for_each_service_or_for_one() -> None:
    lines = export("acl", CUBESANDBOX).output.splitlines()
    users = [line.split()[2] for line in lines if line.startswith("ACL SETUSER ")]
    assert users == ["CubeMaster", "CubeProxy", "CubeAPI", "cube-proxy-sidecar", "external", "ops"]
    assert all(not line or line.startswith(("#", "ACL SETUSER ")) for line in lines)
    assert export("acl", CUBESANDBOX, "--service", "CubeProxy").output.count("ACL SETUSER CubeProxy ") == 1


def test_acl_for_a_later_server_has_its_commands() -> None:
    assert "+hexpire" not in export("acl", CUBESANDBOX).output
    assert "+hexpire" in export("acl", CUBESANDBOX, "--server", "redis-8.0").output


def test_docs_prints_the_tables() -> None:
    output = export("docs", CUBESANDBOX).output
    assert output.startswith("# Redis keys: cubesandbox\n")
    assert '<a id="sandbox-route"></a>' in output


@pytest.mark.parametrize("language", LANGUAGES)
def test_builders_prints_a_module(language: str) -> None:
    result = export("builders", CUBESANDBOX, "--lang", language, "--service", "CubeProxy")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "cube:v1:shared:sandbox:proxy:" in result.output
    assert "cube:v1:master:" not in result.output


def test_the_go_package_and_the_java_class_have_the_given_name() -> None:
    assert "\npackage keys\n" in export("builders", CUBESANDBOX, "--lang", "go", "--name", "keys").output
    java = export("builders", CUBESANDBOX, "--lang", "java", "--name", "com.acme.Keys").output
    assert "package com.acme;" in java
    assert "public final class Keys {" in java


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acl", CUBESANDBOX, "--service", "X"], "keyfence: --service: 'X' is not a service of the policy: "),
        (["builders", CUBESANDBOX, "--lang", "go", "--service", "X"], "keyfence: --service: 'X' is not a "),
        (["builders", CUBESANDBOX, "--lang", "go", "--name", "a-b"], "keyfence: --name: 'a-b' is not a name"),
        (["docs", "/nowhere.yaml"], "/nowhere.yaml:1:1: error: cannot be read: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = export(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_an_entry_without_a_builder_is_named_on_standard_error() -> None:
    hard = Path(__file__).parents[1] / "authoring" / "export" / "hard.yaml"
    result = export("builders", str(hard), "--lang", "rust")
    assert result.exit_code == 0
    assert result.stderr == "keyfence: binary has no builder: its keys are not UTF-8 text\n"
