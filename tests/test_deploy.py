"""The examples in deploy/ call keyfence as it is, and give it the time that it takes."""

from __future__ import annotations

import configparser
import shlex

import click
import pytest

from proxy.cli import cli
from proxy.config import Overrides, load_settings
from tests.servers import PROJECT


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(PROJECT / "deploy" / "keyfence.service")
    return unit["Service"]


@pytest.mark.parametrize("name", ["ExecStart", "ExecReload"])
def test_the_unit_calls_commands_that_there_are(name: str, service: configparser.SectionProxy) -> None:
    _, command, *arguments = shlex.split(service[name])
    cli.commands[command].make_context(command, arguments)  # raises click.UsageError


def test_a_wrong_option_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        cli.commands["run"].make_context("run", ["--nonsense"])


def test_the_unit_waits_for_longer_than_clients_may_take(service: configparser.SectionProxy) -> None:
    drain = load_settings("", Overrides(policy="p")).drain
    assert float(service["TimeoutStopSec"]) > drain + 5
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
