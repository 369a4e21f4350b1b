"""The examples in deploy/ use keyfence's real commands and allow enough time."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from keyfence.cli.main import cli
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.net.addresses import Address, url_of
from tests.clients.running import configure
from tests.servers import PROJECT, Keyfence, RedisServer

DEPLOY = PROJECT / "deploy"


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "keyfence.service")
    return unit["Service"]


def _command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["ExecStart", "ExecReload"])
def test_the_unit_calls_existing_commands(name: str, service: configparser.SectionProxy) -> None:
    _, command, *arguments = shlex.split(service[name])
    _command(command).make_context(command, arguments)  # raises click.UsageError


def test_an_unknown_option_in_the_unit_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        _command("run").make_context("run", ["--nonsense"])


def test_the_unit_waits_longer_than_the_drain(service: configparser.SectionProxy) -> None:
    drain = load_settings("", Overrides(policy="p")).drain
    assert float(service["TimeoutStopSec"]) > drain + 5
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")


def test_systemd_accepts_the_units_with_credentials(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = (DEPLOY / "keyfence.service").read_text()
    unit = re.sub("^Documentation=.*\n", "", unit, flags=re.MULTILINE)  # it is not installed here
    (tmp_path / "keyfence.service").write_text(unit.replace("/opt/keyfence/bin/keyfence", "/bin/true"))
    shutil.copy(DEPLOY / "keyfence.socket", tmp_path)
    (tmp_path / "keyfence.service.d").mkdir()
    shutil.copy(DEPLOY / "keyfence-credentials.conf", tmp_path / "keyfence.service.d" / "credentials.conf")
    verified = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "keyfence.service", tmp_path / "keyfence.socket"],
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, verified.stdout) == (0, "")
    assert str(tmp_path) not in verified.stderr


def test_the_configuration_with_credentials_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / "keyfence-credentials.conf").read_text()
    names = re.findall("^LoadCredential=([a-z-]+):", text, re.MULTILINE)
    for name in names:
        (tmp_path / name).write_text("0123456789abcdef\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    lines = re.findall("^#   ((?:upstream|admin): .*)$", text, re.MULTILINE)
    config = tmp_path / "keyfence.yaml"
    config.write_text("\n".join(["policy: p", *lines]))
    settings = load_settings(str(config), Overrides())
    assert settings.upstream is not None
    assert settings.upstream.password == "0123456789abcdef"
    assert settings.admin_token_file == str(tmp_path / "admin-token")


def test_a_reload_uses_the_configuration_s_address_and_token(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef\n")
    config = configure(tmp_path, redis_server.url)
    admin = "admin: {{listen: '127.0.0.1:{}', token_file: token}}"
    text = config.read_text()
    config.write_text(text.replace("admin: 127.0.0.1:0", admin.format(0)))
    keyfence = start_keyfence("--config", config)
    config.write_text(
        text.replace("admin: 127.0.0.1:0", admin.format(keyfence.ready.admin.rpartition(":")[2]))
    )
    done = CliRunner().invoke(cli, ["reload", "--config", str(config)])
    assert (done.exit_code, done.stdout[:9]) == (0, "reloaded:")
    keyfence.expect_stderr = "admin has changed in the configuration: that needs a restart"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:9464", "http://127.0.0.1:9464"),
        (":9464", "http://127.0.0.1:9464"),
        ("0.0.0.0:9464", "http://127.0.0.1:9464"),
        ("[::]:9464", "http://[::1]:9464"),
        ("[fd00::1]:9464", "http://[fd00::1]:9464"),
    ],
)
def test_an_admin_address_has_a_url_on_its_own_machine(address: str, url: str) -> None:
    assert url_of(Address(address)) == url
