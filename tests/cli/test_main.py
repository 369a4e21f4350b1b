from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence import __version__
from keyfence.cli.main import PLACES, cli
from keyfence.policy.rules import RULES
from tests.policy.cases import POLICIES
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis

POLICY = str(POLICIES / "cubesandbox.yaml")
NO_REDIS = "redis://127.0.0.1:1"
SMALL = """
policy: small
claims: ["a:"]
services: [one, two]
should: [field.unknown]
scopes: {s: {prefix: "a:", writers: [one]}}
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


def keyfence(*arguments: str | Path, stdin: str | bytes = "") -> Result:
    """Runs the command in this process. An exception other than SystemExit fails the test."""
    run = CliRunner().invoke(cli, [str(one) for one in arguments], input=stdin, prog_name="keyfence")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exc_info
    return Result(
        run.exit_code,
        run.stdout,
        re.sub(r"\Akeyfence: interpreted \(.*\)\n", "", run.stderr),
    )


def process(*arguments: str | bytes, stdin: bytes = b"") -> Result:
    """Runs the command as a separate process."""
    run = subprocess.run(
        [sys.executable, "-m", "keyfence", *arguments],
        cwd=PROJECT,
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
    )
    return Result(run.returncode, run.stdout.decode(), run.stderr.decode("utf-8", "surrogateescape"))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


Write = Callable[[str, "str | bytes"], Path]


@pytest.fixture
def small(file: Write) -> Path:
    return file("small.yaml", SMALL)


# -- keyfence


def test_the_version_shows_whether_keyfence_is_compiled() -> None:
    code, out, err = keyfence("--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(
        rf"keyfence {re.escape(__version__)}, (compiled|interpreted|partly compiled).*\n", out
    )


def test_python_m_keyfence_runs_the_command_line() -> None:
    assert process("--version").out.startswith("keyfence ")


@pytest.mark.parametrize("command", sorted(PLACES))
def test_each_command_has_help(command: str) -> None:
    code, out, err = keyfence(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: keyfence {command}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "Error: No such command 'nonsense'."),
        (("run", "--nonsense"), "Error: No such option"),
        (
            ("run", "--mode", "off"),
            "Error: Invalid value for '--mode': 'off' is not one of 'observe', 'enforce'.",
        ),
        (
            ("run", "--listen", "6380"),
            "Error: Invalid value for '--listen': '6380' is not an address; write HOST:PORT",
        ),
        (("run", "--listen", "h:65536"), "Error: Invalid value for '--listen': 'h:65536' is not an address"),
        (("run", "--admin", "on"), "Error: Invalid value for '--admin': 'on' is not an address"),
        (
            ("run", "--upstream", "h:6379"),
            "Error: Invalid value for '--upstream': 'h:6379' is not an upstream",
        ),
        (("check",), "Error: Missing argument 'POLICY...'."),
        (
            ("explain", "--policy", POLICY, "--service", "ops"),
            "keyfence: give either a command or --file",
        ),
        (("explain", "--service", "ops", "--", "GET", "k"), "Error: Missing option '--policy'."),
        (("explain", "--policy", POLICY, "--", "GET", "k"), "Error: Missing option '--service'."),
        (("observe",), "keyfence: give a duration, for example --for 30m, or --end to end it early"),
        (
            ("observe", "--end", "--rule", "ttl.range"),
            "keyfence: --end ends every break-glass; omit --for, --rule and --service",
        ),
        (("report", "--admin", "h:1", "log"), "keyfence: give either --admin or an argument"),
        (("waivers", "--admin", "h:1", "log"), "keyfence: give either --admin or an argument"),
        (
            ("modes", "--admin", "h:1", "--policy", "p.yaml"),
            "keyfence: give either --admin or --config and --policy, not both",
        ),
        (("status", "--admin", "9464"), "Error: Invalid value for '--admin'"),
    ],
)
def test_wrong_usage_gives_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = keyfence(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(message)


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m keyfence modes --policy {POLICY} | head -n 1; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.splitlines()[0].strip() == "modes of cubesandbox"


@pytest.mark.parametrize("command", [("modes", "--policy", POLICY), ("check", POLICY), ("--help",)])
def test_a_full_disk_is_one_line_and_exit_code_2(command: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [sys.executable, "-m", "keyfence", *command],
            cwd=PROJECT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 2
    assert run.stderr == "keyfence: the output cannot be written: no space left on device\n"


# -- run


def test_run_needs_a_policy() -> None:
    assert keyfence("run") == (
        2,
        "",
        "command line:1:1: error: no policy; name one with policy: or --policy\n",
    )


BAD_CONFIGURATIONS: dict[str | bytes, str] = {
    f"policy: {POLICY}\nlistener: []\n": "2:1: error: unknown key 'listener'; did you mean listeners?",
    f"policy: {POLICY}\npolicy: q\n": "2:1: error: duplicate key 'policy'; the first one is in line 1",
    f"policy: {POLICY}\nlisteners: [{{listen: here}}]\n": (
        "2:22: error: 'here' is not an address; write HOST:PORT, as in 127.0.0.1:6380 or [::1]:6380"
    ),
    f"policy: {POLICY}\nupstream: redis://u:secret@h:0\n": (
        "2:11: error: the upstream's port is not a number from 1 to 65535: 'redis://u:***@h:0'"
    ),
    f"policy: {POLICY}\nlisteners: [{{listen: ':0', service: cubemaster}}]\n": (
        "2:37: error: 'cubemaster' is not a service of the policy; did you mean CubeMaster?"
    ),
    f"policy: {POLICY}\nmodes: [{{mode: enforce, rule: scope.writ}}]\n": (
        "2:31: error: 'scope.writ' is not a rule; did you mean scope.write?"
    ),
    b"\xff\xfe": "1:1: error: not UTF-8 text (byte 0); save the file as UTF-8",
    "": "1:1: error: the file is empty",
}


@pytest.mark.parametrize(("text", "message"), BAD_CONFIGURATIONS.items())
def test_a_bad_configuration_is_one_line_with_its_place(text: str | bytes, message: str, file: Write) -> None:
    config = file("keyfence.yaml", text)
    assert keyfence("run", "--config", config) == (2, "", f"{config}:{message}\n")


def test_every_fault_of_a_configuration_has_its_line(file: Write) -> None:
    config = file("keyfence.yaml", f"policy: {POLICY}\nadmin: [x]\nmetrics: [x]\nmodes: [{{mode: on}}]\n")
    assert keyfence("run", "--config", config).err.splitlines() == [
        f"{config}:2:8: error: expected a mapping (name: value), not a list",
        f"{config}:3:10: error: expected text, not a list",
        f"{config}:4:16: error: 'on' is not admitted here; expected observe, enforce or disabled",
    ]


@pytest.mark.parametrize(
    ("option", "of_a_folder"),
    [
        ("--config", "cannot be read: it is a folder; name a regular file"),
        ("--policy", "no policy in this folder; a policy is a file *.yaml"),
    ],
)
def test_an_unreadable_file_is_an_error(option: str, of_a_folder: str, tmp_path: Path) -> None:
    none = tmp_path / "none.yaml"
    assert keyfence("run", option, none) == (
        2,
        "",
        f"{none}:1:1: error: cannot be read: No such file or directory\n",
    )
    assert keyfence("run", option, tmp_path) == (
        2,
        "",
        f"{tmp_path}:1:1: error: {of_a_folder}\n",
    )


def test_a_configuration_names_its_policy_relative_to_itself(file: Write, tmp_path: Path) -> None:
    config = file("keyfence.yaml", "policy: none.yaml\n")
    assert keyfence("run", "--config", config).err.startswith(
        f"{tmp_path}/none.yaml:1:1: error: cannot be read"
    )


def test_every_fault_of_a_policy_has_its_line(file: Write) -> None:
    policy = file("p.yaml", "policy: p\nservices: [a, a]\nkeys: {k: {key: 'x:<y>', writers: [b]}}\n")
    code, out, err = keyfence("run", "--policy", policy)
    assert (code, out) == (2, "")
    assert [line.removeprefix(f"{policy}:") for line in err.splitlines()] == [
        "2:15: error: the service a is listed twice",
        "3:17: error: 'x:<y>': placeholder <y> is not declared (at offset 2); "
        "known: base64, date, epoch, ip, ipv4, sha256, uuid",
        "3:36: error: 'b' is not listed under services; known: a, unknown",
    ]


def test_an_unknown_service_is_an_error_with_a_suggestion(small: Path) -> None:
    assert keyfence("run", "--policy", small, "--service", "on") == (
        2,
        "",
        "command line:1:1: error: 'on' is not a service of the policy; did you mean one?\n",
    )


def test_a_port_in_use_is_an_error(small: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        common = ("run", "--policy", small, "--upstream", NO_REDIS)
        assert keyfence(*common, "--listen", address, "--admin", "none") == (
            2,
            "",
            f"keyfence: cannot listen on {address}: the address is already in use\n",
        )
        assert keyfence(*common, "--listen", "127.0.0.1:0", "--admin", address) == (
            2,
            "",
            f"keyfence: cannot listen on {address} (admin): the address is already in use\n",
        )


def test_an_unknown_host_is_an_error(small: Path) -> None:
    code, _, err = keyfence("run", "--policy", small, "--upstream", NO_REDIS, "--listen", "nowhere.invalid:0")
    assert code == 2
    assert err.startswith("keyfence: cannot listen on nowhere.invalid:0: ")
    assert err.count("\n") == 1


def test_an_unwritable_decision_log_is_an_error(small: Path, tmp_path: Path) -> None:
    log = tmp_path / "none" / "log.jsonl"
    assert keyfence("run", "--policy", small, "--upstream", NO_REDIS, "--decision-log", log) == (
        2,
        "",
        f"keyfence: the decision log {log} cannot be written: No such file or directory\n",
    )


def test_an_unreadable_ca_file_is_an_error(small: Path, file: Write) -> None:
    config = file(
        "keyfence.yaml",
        f"policy: {small}\nupstream: {{url: 'rediss://u:secret@127.0.0.1:1', ca: none.pem}}\n",
    )
    code, _, err = keyfence("run", "--config", config, "--listen", "127.0.0.1:0")
    assert code == 2
    assert "keyfence.yaml:2:54: error: " in err
    assert "none.pem cannot be read" in err
    assert "secret" not in err


@pytest.mark.parametrize(
    "url",
    ["redis://u:secret@h:0", "redis://u:sec/secret@h", "http://u:secret@h", "redis://u:secret@[", "secret@h"],
)
def test_no_error_shows_a_password(url: str, small: Path, file: Write) -> None:
    by_flag = keyfence("run", "--policy", small, "--upstream", url)
    config = file("keyfence.yaml", json.dumps({"policy": str(small), "upstream": url}))
    by_file = keyfence("run", "--config", config)
    for code, out, err in (by_flag, by_file):
        assert (code, out) == (2, "")
        assert err
        assert "secret" not in err


def test_port_0_picks_a_port_and_prints_it(small: Path) -> None:
    arguments = ("--policy", small, "--upstream", NO_REDIS, "--listen", "127.0.0.1:0", "--service", "one")
    with Keyfence(*arguments, "--admin", "127.0.0.1:0", expect_stderr="is unreachable") as running:
        assert running.address("one")[1] > 0
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d+", running.ready.admin)
        assert running.ready.upstream == NO_REDIS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_keyfence_with_exit_code_0(number: signal.Signals, small: Path) -> None:
    arguments = ("--policy", small, "--upstream", NO_REDIS, "--listen", "127.0.0.1:0", "--admin", "none")
    with Keyfence(*arguments, expect_stderr="is unreachable") as running:
        assert running.signal(number) == 0


def test_a_file_name_may_be_invalid_utf_8() -> None:
    for command in ("check", "report"):
        code, out, err = process(command, b"none\xff.yaml")
        assert code != 0
        assert r"none\udcff.yaml" in out + err
        assert "internal error" not in err


# -- modes


def cells(out: str) -> dict[str, list[str]]:
    """Returns rule → modes in the order of the services, from the printed table."""
    rows = (re.split(r"\s*[│┃]\s*", line.strip()) for line in out.splitlines() if line.startswith(("│", "┃")))
    return {row[1]: row[2:-1] for row in rows}


def test_modes_are_a_matrix_of_rules_and_services(file: Write, small: Path) -> None:
    config = file(
        "keyfence.yaml",
        f"""
policy: {small}
modes:
  - {{rule: scope.write, service: two, mode: enforce}}
  - {{rule: key.legacy, mode: disabled}}
  - {{rule: field.unknown, mode: enforce}}
  - {{mode: observe}}
""",
    )
    code, out, err = keyfence("modes", "--config", config)
    assert (code, err) == (0, "")
    table = cells(out)
    assert table["rule"] == ["one", "two", "unknown"]
    assert table.keys() - {"rule"} == RULES.keys()
    assert table["scope.write"] == ["observe", "enforce", "observe"]
    assert table["key.legacy"] == ["disabled"] * 3
    assert table["field.unknown"] == ["observe (should)"] * 3
    assert table["scope.read"] == ["observe"] * 3


def test_without_configured_modes_every_rule_is_observed(small: Path) -> None:
    _, out, _ = keyfence("modes", "--policy", small)
    assert {mode for rule, row in cells(out).items() if rule != "rule" for mode in row} == {"observe"}


def test_modes_of_a_configuration_without_a_policy_is_an_error(file: Write) -> None:
    config = file("keyfence.yaml", "workers: 1\n")
    assert keyfence("modes", "--config", config) == (
        2,
        "",
        f"{config}:1:1: error: no policy; name one with policy: or --policy\n",
    )


# -- observe and report, against a running keyfence


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def running(redis_behind: RedisServer) -> Iterator[Keyfence]:
    """A keyfence in enforce mode with one listener, for CubeProxy."""
    arguments = ["--policy", POLICY, "--upstream", redis_behind.url, "--listen", "127.0.0.1:0"]
    arguments += ["--service", "CubeProxy", "--mode", "enforce", "--admin", "127.0.0.1:0"]
    with Keyfence(*arguments, expect_stderr="^$|break-glass") as keyfence:  # its test may run elsewhere
        yield keyfence


def write(running: Keyfence) -> str:
    """Returns the reply to CubeProxy's write to a key that it may not write."""
    with running.connect() as client:
        client.sendall(b"SET cube:v1:shared:sandbox:proxy:s1 x\r\n")
        return client.makefile("rb").readline().decode()


def test_observe_stops_refusing_a_rule_of_a_service(running: Keyfence) -> None:
    assert write(running).startswith("-NOPERM [scope.write]")
    assert keyfence(
        "observe",
        "--for",
        "1h",
        "--rule",
        "scope.write",
        "--service",
        "CubeProxy",
        "--admin",
        running.ready.admin,
    ) == (
        0,
        "for 1h, violations of scope.write by CubeProxy are observed and not refused\n",
        "",
    )
    assert write(running).startswith("-NOPERM [type.mismatch]")
    assert keyfence("observe", "--for", "10m", "--admin", running.ready.admin) == (
        0,
        "for 10m, violations of every rule are observed and not refused\n",
        "",
    )
    assert write(running) == "+OK\r\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--for", "1h", "--rule", "scope.writ"), "\"rule\" is not a known rule: 'scope.writ'"),
        (("--for", "1h", "--service", "Nobody"), "'Nobody' is not a service of the policy"),
        (("--for", "2d"), '"for" must be more than 0 and at most 86400 seconds'),
        (("--for", "0s"), '"for" must be more than 0'),
    ],
)
def test_an_invalid_break_glass_is_an_error(
    arguments: tuple[str, ...], message: str, running: Keyfence
) -> None:
    admin = running.ready.admin
    code, out, err = keyfence("observe", *arguments, "--admin", admin)
    assert (code, out) == (1, "")
    assert err.startswith(f"keyfence: {admin}/-/observe: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["5", "", "h", "1h30", "-1h", "٣h", "1 h"])
def test_a_duration_needs_a_unit(text: str) -> None:
    code, out, err = keyfence("observe", "--for", text)
    assert (code, out) == (2, "")
    assert err.startswith(f"keyfence: --for: {text!r} is not a duration; write a number and its unit")


def test_a_report_of_a_running_keyfence(running: Keyfence) -> None:
    write(running)
    code, out, err = keyfence("report", running.ready.admin + "/")
    assert (code, err) == (0, "")
    assert re.search(r"^CubeProxy +scope\.write +SET +sandbox-route +\d+ ", out, re.MULTILINE)


@pytest.mark.parametrize(
    "command",
    [
        ("report",),
        ("report", "--admin"),
        ("observe", "--for", "1h", "--admin"),
        ("observe", "--end", "--admin"),
        ("reload", "--admin"),
        ("restart", "--admin"),
        ("status", "--admin"),
        ("modes", "--admin"),
        ("waivers", "--admin"),
        ("waivers",),
    ],
)
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "no keyfence answers there (Connection refused)"),
        ("http://u:secret@127.0.0.1:1", "no keyfence answers there ("),
        ("http://[::1", "no keyfence answers there (Invalid IPv6 URL)"),
        ("http://127.0.0.1:x", "no keyfence answers there ("),
        ("http://127.0.0.1:1/a b\x7f", "no keyfence answers there ("),
    ],
)
def test_an_unreachable_admin_address_gives_one_line(
    command: tuple[str, ...], url: str, message: str
) -> None:
    code, out, err = keyfence(*command, url)
    assert (code, out) == (1, "")
    assert message in err
    assert "secret" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\n\xff",
        b"HTTP/1.0 200 OK\r\n\r\n5",
        b"HTTP/1.0 200 OK\r\n\r\n[5]",
        b'HTTP/1.0 200 OK\r\n\r\n[{"service": 5}]',
        b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
        b"HTTP/1.0 500 No\r\n\r\n[]",
        b'HTTP/1.0 500 No\r\n\r\n{"error": "a\\nb"}',
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
@pytest.mark.parametrize("command", ["report", "status", "modes", "waivers", "reload"])
def test_an_answer_from_another_server_gives_one_line(command: str, answer: bytes) -> None:
    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        code, out, err = keyfence(command, "--admin", f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert (code, out) == (1, "")
    assert err.startswith("keyfence: http://127.0.0.1:")
    assert err.count("\n") == 1


LINE = {
    "time": "2026-11-21T00:00:00Z",
    "service": "CubeProxy",
    "rule": "scope.write",
    "severity": "must",
    "command": "HSET",
    "entry": "sandbox-route",
    "action": "observed",
    "key": "k1",
    "hint": "its writers: CubeMaster",
    "merged": 4,
}


def test_a_report_of_a_log(file: Write) -> None:
    log = file("log.jsonl", (json.dumps(LINE) + "\n") * 2)
    code, out, err = keyfence("report", log)
    assert (code, err) == (0, "")
    assert re.search(
        r"^CubeProxy +scope\.write +HSET +sandbox-route +0 +10 +0 .* k1 +its writers: CubeMaster",
        out,
        re.MULTILINE,
    )
    assert keyfence("report", "-", stdin=log.read_bytes()).out == out


def test_an_unreadable_log_line_is_reported_and_fails(file: Write) -> None:
    log = file("log.jsonl", "nonsense\n" + json.dumps(LINE) + "\n" + "[1]\n")
    code, out, err = keyfence("report", log)
    assert code == 1
    assert "scope.write" in out
    assert err.splitlines() == [
        f"keyfence: {log}: line 1 is skipped: not JSON (Expecting value at column 1)",
        f"keyfence: {log}: line 3 is skipped: not a JSON object",
    ]


def test_violations_that_the_log_dropped_are_reported(file: Write) -> None:
    log = file("log.jsonl", json.dumps(LINE | {"dropped": 7}) + "\n")
    code, _, err = keyfence("report", log)
    assert (code, err) == (0, f"keyfence: {log}: the log's limits left out 7 more violations\n")


def test_an_empty_log_has_no_violations() -> None:
    assert keyfence("report", "-") == (0, "No violations.\n", "")


@pytest.mark.parametrize(
    ("name", "message"), [("none.jsonl", "No such file or directory"), ("", "Is a directory")]
)
def test_an_unreadable_log_is_an_error(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert keyfence("report", path) == (2, "", f"keyfence: {path}: {message}\n")


# -- never a traceback

OPTIONS = {
    "run": ["--config", "--policy", "--upstream", "--listen", "--service", "--mode", "--admin"],
    "modes": ["--config", "--policy", "--admin"],
    "status": ["--admin", "--format"],
    "explain": ["--policy", "--service"],
    "observe": ["--for", "--rule", "--service", "--admin"],
    "report": ["--admin"],
    "waivers": ["--config", "--waivers", "--admin", "--until"],
    "check": [],
    "news": ["--since", "--owner", "--findings", "--config", "--admin"],
    "fleet": ["--findings", "--forget", "--admin"],
    "withdraw": ["--to", "--name", "--ca"],
    "history": ["--from", "--name", "--trust", "--rule", "--since", "--head", "--findings", "--config"],
    "demo": ["--admin"],
}
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20),
    st.sampled_from(
        ["", "-", "none", "/", ".", "127.0.0.1:1", "http://127.0.0.1:1", "http://", "9" * 400, "1h", "\udcff"]
    ),
)


@pytest.mark.parametrize("command", OPTIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_option_value_causes_a_traceback(command: str, data: st.DataObject, tmp_path: Path) -> None:
    # A missing policy ends the commands that would start a server.
    arguments = ["--policy", str(tmp_path / "none")] if command == "run" else []
    for option in OPTIONS[command]:
        if data.draw(st.booleans()) and not (command == "run" and option == "--policy"):
            value = data.draw(VALUES)
            arguments.append(f"{option}={value}")
    if command == "demo" and arguments in ([], ["--admin="]):
        arguments += ["--policy", str(tmp_path / "none")]  # it would play, which takes seconds
    if command in ("report", "check", "explain"):
        arguments += ["--", data.draw(VALUES)]
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        code, out, err = keyfence(command, *arguments)
    finally:
        os.chdir(before)
    assert code in (0, 1, 2)
    assert "Traceback" not in out + err
    assert "internal error" not in err
