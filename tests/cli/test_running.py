"""Conventions of all commands, and the commands that read or change a running keyfence."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from keyfence import __version__
from keyfence.cli.main import cli
from keyfence.cli.terminal.asking import source_url
from keyfence.cli.terminal.options import admin_url
from keyfence.policy.rules import RULES
from tests.cli.test_main import NO_REDIS, POLICY, keyfence
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis

# A server, a play, and commands that print a file as it is.
# These print a file: a schema, a policy, code.
WITHOUT_OUTPUT = {
    "run",
    "demo",
    "draft",
    "init",
    "schema",
    "policies",
    "export acl",
    "export builders",
    "export docs",
}
ASKING = ("report", "status", "modes", "waivers", "observe", "reload", "restart", "healthcheck")
CANDIDATE = ("candidate load", "candidate show", "candidate drop", "candidate promote")
WAIVERS = """waivers:
  - {service: CubeProxy, rule: scope.read, owner: ada, reason: moves, until: 2099-01-01}
  - {service: CubeProxy, rule: scope.write, entry: lock, owner: ada, reason: moves, until: 2020-01-01}
"""


def option(command: click.Command, name: str) -> click.Option | None:
    found = [one for one in command.params if isinstance(one, click.Option) and name in one.opts]
    return found[0] if found else None


# -- one convention


@pytest.mark.parametrize("command", ["", "acl self", *CANDIDATE, *sorted(cli.commands)])
def test_help_fits_80_columns_and_is_not_cut(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = keyfence(*command.split(), "--help")
    assert code == 0
    for line in out.splitlines():
        assert len(line) <= 80, line
        assert line.startswith("Usage: ") or not line.endswith(("...", "-", "/")), line
    if not command:
        assert all(re.search(rf"^  {name} +\S", out, re.MULTILINE) for name in cli.commands)


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yields every command below a group, with its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


ALL = dict(commands(cli))


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_OUTPUT))
def test_every_command_with_output_has_the_same_format_option(name: str) -> None:
    found = option(ALL[name], "--format")
    assert found is not None
    assert isinstance(found.type, click.Choice)
    assert tuple(found.type.choices)[:2] == ("text", "json")
    assert found.default == "text"
    alias = option(ALL[name], "--json")
    assert alias is not None
    assert alias.hidden


def test_the_json_flag_still_works_and_format_overrides_it() -> None:
    common = ("explain", "--policy", POLICY, "--service", "ops")
    assert json.loads(keyfence(*common, "--json", "--", "PING").out)["verdict"] == "allow"
    assert keyfence(*common, "--json", "--format", "text", "--", "PING").out.endswith("allow\n")
    assert keyfence("commands", "--markdown").out == keyfence("commands", "--format", "markdown").out


@pytest.mark.parametrize("name", [*ASKING, *CANDIDATE])
def test_every_command_that_asks_keyfence_takes_the_same_address(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"observe": ["--end"], "candidate load": ["new.yaml"]}
    arguments = [*name.split(), *more.get(name, [])]
    message = "no keyfence answers there"
    for address in ("127.0.0.1:1", "http://127.0.0.1:1"):
        code, out, err = keyfence(*arguments, "--admin", address)
        assert (code, out) == (1, "")
        assert err.startswith("keyfence: http://127.0.0.1:1/")
        assert message in err
    monkeypatch.setenv("KEYFENCE_ADMIN", "127.0.0.1:2")
    assert keyfence(*arguments).err.startswith("keyfence: http://127.0.0.1:2/")
    assert keyfence(*arguments, "--admin", "[::1]:1").err.startswith("keyfence: http://[::1]:1/")


def test_an_address_is_host_and_port_or_a_url() -> None:
    assert admin_url("redis-1:9464") == "http://redis-1:9464"
    assert admin_url(":9464") == "http://127.0.0.1:9464"
    assert admin_url("https://x/y") == "https://x/y"
    with pytest.raises(ValueError, match="write HOST:PORT"):
        admin_url("redis-1")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:1", "http://h:1"),
        ("h:9464", "http://h:9464"),
        ("[::1]:9464", "http://[::1]:9464"),
        ("decisions.log", ""),
        ("-", ""),
        ("/var/log/a:1", ""),
        ("a:b", ""),
        ("2026-06-15T15:06:41", ""),
        ("", ""),
    ],
)
def test_an_argument_may_be_an_address_or_a_log(text: str, url: str) -> None:
    assert source_url(text) == url


# -- tables on a narrow terminal


@pytest.fixture
def terminal() -> Callable[..., str]:
    """Runs a command with a terminal of `columns` columns as its standard output."""

    def run(columns: int, *arguments: str) -> str:
        ours, theirs = pty.openpty()
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        settings = {"TERM": "xterm", "NO_COLOR": "1"} | dict.fromkeys(("COLUMNS", "LINES"), "")
        environment = {name: value for name, value in (os.environ | settings).items() if value}
        with subprocess.Popen(
            [sys.executable, "-m", "keyfence", *arguments], cwd=PROJECT, stdout=theirs, env=environment
        ) as child:
            os.close(theirs)
            found = b""
            with contextlib.suppress(OSError):  # EIO: the other side has gone
                while piece := os.read(ours, 65536):
                    found += piece
            os.close(ours)
            child.wait(PATIENCE_SECONDS)
        return found.decode().replace("\r\n", "\n")

    return run


def test_on_a_narrow_terminal_modes_wrap_between_words(config: Path, terminal: Callable[..., str]) -> None:
    wide = terminal(250, "modes", "--config", str(config)).splitlines()
    assert wide[1].startswith("┏")
    narrow = terminal(80, "modes", "--config", str(config)).splitlines()
    assert narrow[0] == "modes of cubesandbox"
    assert "scope.write          enforce" in narrow
    assert "field.unknown        observe" in narrow
    assert all(len(line) <= 80 for line in narrow[: len(RULES)])


def test_on_a_narrow_terminal_waivers_are_blocks_of_lines(config: Path, terminal: Callable[..., str]) -> None:
    arguments = ("waivers", "--config", str(config))
    assert terminal(250, *arguments).splitlines()[1].startswith("┏")
    blocks = terminal(60, *arguments).split("\n\n")
    assert blocks[0] == "waivers"
    assert [line.split() for line in blocks[1].splitlines()] == [
        ["state", "lapsed"],
        ["until", "2020-01-01"],
        ["uses", "-"],
        ["service", "CubeProxy"],
        ["rule", "scope.write"],
        ["entry", "or", "scope", "lock"],
        ["command", "any"],
        ["keys", "or", "script", "any"],
        ["owner", "ada"],
        ["reason", "moves"],
    ]


# -- a running keyfence


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def config(redis_behind: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    (folder / "waivers.yaml").write_text(WAIVERS)
    path = folder / "keyfence.yaml"
    path.write_text(
        f"policy: {POLICY}\nwaivers: waivers.yaml\nupstream: {redis_behind.url}\nadmin: 127.0.0.1:0\n"
        "listeners: [{listen: '127.0.0.1:0', service: CubeProxy}]\n"
        "modes: [{rule: scope.write, mode: enforce}, {rule: key.legacy, mode: disabled}]\n"
    )
    return path


@pytest.fixture(scope="module")
def running(config: Path) -> Iterator[Keyfence]:
    with Keyfence("--config", config, expect_stderr="^$|break-glass|nothing was reloaded") as keyfence:
        yield keyfence


@pytest.fixture
def admin(running: Keyfence, monkeypatch: pytest.MonkeyPatch) -> str:
    """The admin address as HOST:PORT; KEYFENCE_ADMIN holds it too."""
    address = running.ready.admin.removeprefix("http://")
    monkeypatch.setenv("KEYFENCE_ADMIN", address)
    return address


@pytest.mark.usefixtures("admin")
def test_status_shows_what_runs_and_since_when(running: Keyfence) -> None:
    with running.connect() as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        code, out, err = keyfence("status")
        answer = json.loads(keyfence("status", "--format", "json").out)
    assert (code, err) == (0, "")
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    patterns = [
        rf"keyfence    {re.escape(__version__)}, process \d+, since {time}",
        "ready       yes",
        rf"policy      cubesandbox, revision [0-9a-f]{{12}}, since {time}: {re.escape(POLICY)}",
        r"modes       1 rule enforced, \d+ rules observed, 1 rule disabled",
        "waivers     2",
        rf"upstream    (redis|unix)://\S+, up since {time}",
        r"listener    127\.0\.0\.1:\d+, CubeProxy",
        rf"process     \d+, serving, 1 connection, since {time}",
        r"clients     1 \(CubeProxy 1\)",
        r"next        1 waiver has lapsed, on 2020-01-01 \(CubeProxy, scope\.write\)\. .*",
        r"            keyfence waivers --admin http://\S+",
    ]
    assert [re.fullmatch(*pair) is not None for pair in zip(patterns, out.splitlines(), strict=True)] == (
        [True] * len(patterns)
    ), out
    assert answer["ready"] is True
    assert answer["policy"]["name"] == "cubesandbox"
    assert answer["upstream"]["up"] is True
    assert answer["started"] <= answer["policy"]["loaded"] + 60
    assert answer["modes"]["CubeProxy"]["enforce"] == answer["modes"]["CubeProxy"]["disabled"] == 1
    assert answer["clients"] == {"CubeProxy": 1}


def test_status_without_redis_fails_and_gives_the_reason() -> None:
    arguments = ("--policy", POLICY, "--upstream", NO_REDIS, "--listen", "127.0.0.1:0")
    with Keyfence(*arguments, "--admin", "127.0.0.1:0", expect_stderr="is unreachable") as running:
        code, out, _ = keyfence("status", "--admin", running.ready.admin)
    assert code == 1
    assert re.search(r"^ready       no: upstream redis://127\.0\.0\.1:1 is unreachable", out, re.MULTILINE)
    assert re.search(r"^upstream    redis://127\.0\.0\.1:1, down \(.+\) since ", out, re.MULTILINE)


@pytest.mark.parametrize("workers", ["", "2"])
def test_status_of_a_keyfence_with_splice(workers: str, redis_behind: RedisServer) -> None:
    arguments = ["--upstream", redis_behind.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    arguments += ["--splice", *(["--workers", workers] if workers else [])]
    with Keyfence(*arguments) as running:
        code, out, _ = keyfence("status", "--admin", running.ready.admin)
        modes = keyfence("modes", "--admin", running.ready.admin)
    assert code == 0
    assert "policy      none: it runs with --splice and applies no policy\n" in out
    assert len(re.findall("^process ", out, re.MULTILINE)) == int(workers or 1)
    assert modes == (1, "", "keyfence: keyfence runs with --splice: it applies no policy\n")


def test_modes_of_a_running_keyfence_equal_those_of_its_configuration(admin: str, config: Path) -> None:
    of_running = keyfence("modes", "--format", "json", "--admin", admin)
    of_file = keyfence("modes", "--format", "json", "--config", config)
    assert (of_running.code, of_running.err) == (0, "")
    assert json.loads(of_running.out) == json.loads(of_file.out)
    assert keyfence("modes").out == keyfence("modes", "--config", config).out


@pytest.mark.usefixtures("admin")
def test_break_glass_is_shown_and_can_end_early() -> None:
    code, out, _ = keyfence("observe", "--for", "1h", "--rule", "scope.write", "--format", "json")
    assert (code, json.loads(out)["rule"]) == (0, "scope.write")
    assert keyfence("observe", "--for", "1h", "--service", "CubeProxy").code == 0
    glass = [line for line in keyfence("status").out.splitlines() if line.startswith("break-glass")]
    assert [re.sub("until .*", "until", line) for line in glass] == [
        "break-glass violations of scope.write are not refused until",
        "break-glass violations of every rule by CubeProxy are not refused until",
    ]
    assert "break-glass: violations of scope.write are not refused until " in keyfence("modes").out
    assert keyfence("observe", "--end") == (0, "break-glass ended; modes are as configured again\n", "")
    assert keyfence("observe", "--end") == (0, "no break-glass was open\n", "")
    assert json.loads(keyfence("observe", "--end", "--format", "json").out) == {"ended": 0}
    assert "break-glass" not in keyfence("status").out


def test_waivers_of_a_running_keyfence_show_their_uses(running: Keyfence, admin: str) -> None:
    with running.connect() as client:
        client.sendall(b"GET cube:v1:master:lock:a:b\r\n")
        assert client.recv(100) == b"$-1\r\n"
    for arguments in ((), (admin,), ("--admin", admin)):
        code, out, err = keyfence("waivers", "--format", "json", *arguments)
        assert (code, err) == (1, ""), "one has lapsed"
        assert [(one["rule"], one["state"], one["owner"]) for one in json.loads(out)] == [
            ("scope.read", "in use", "ada"),
            ("scope.write", "lapsed", "ada"),
        ]
    code, out, _ = keyfence("waivers")
    assert "in use" in out
    assert "lapsed" in out


def test_every_spelling_of_the_address_gives_the_same_report(running: Keyfence, admin: str) -> None:
    with running.connect() as client:
        client.sendall(b"SET cube:v1:shared:sandbox:proxy:s1 x\r\n")
        assert client.recv(1000).startswith(b"-NOPERM [scope.write]")
    texts = {keyfence("report", *one).out for one in ((), (admin,), (f"http://{admin}",), ("--admin", admin))}
    assert len(texts) == 1
    rows = json.loads(keyfence("report", "--format", "json").out)
    assert ("scope.write", {"refused": 1}) in [(row["rule"], row["actions"]) for row in rows]


def test_a_failed_reload_lists_every_fault(admin: str, config: Path) -> None:
    code, out, _ = keyfence("reload", "--format", "json")
    assert (code, json.loads(out)["policy"]) == (0, "cubesandbox")
    before = config.read_text()
    waivers = config.parent / "waivers.yaml"
    config.write_text(before + "nonsense: 1\nmetrics: x\nlimits: {idle: 5}\n")
    waivers.write_text("waivers: [{service: one, rule: no.rule}]\n")
    try:
        code, out, err = keyfence("reload")
        message = keyfence("reload", "--format", "json")
    finally:
        config.write_text(before)
        waivers.write_text(WAIVERS)
    assert (code, out) == (1, "")
    lines = err.splitlines()
    faults = [line for line in lines if ": error: " in line and not line.startswith("keyfence: ")]
    assert [Path(line.partition(":")[0]).name for line in faults] == ["keyfence.yaml"] * 3 + (
        ["waivers.yaml"] * (len(faults) - 3)
    )
    assert len(faults) >= 6
    assert lines[-1].startswith(f"keyfence: http://{admin}/-/reload: nothing was reloaded: ")
    assert message.code == 1
    assert json.loads(message.out)["diagnostics"] == faults
