from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from click.testing import CliRunner

from keyfence.cli.demo import EVENTS, META, SERVICES, Minute, _difference, _host_port
from keyfence.cli.main import cli
from keyfence.commands.extract import extract
from keyfence.policy.analysis.explain import explain
from keyfence.policy.loading.load import load_policy
from tests.policy.cases import POLICIES
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis, server_binaries

POLICY = POLICIES / "cubesandbox.yaml"
MISTAKES = {step.mistake: step for step in Minute("t").steps() if step.mistake}
OBSERVED, ENFORCED = "1. observe", "2. enforce"


@pytest.fixture(scope="module", autouse=True)
def _a_redis() -> None:
    if not server_binaries():
        pytest.fail("the demo needs a redis-server")


def demo(*arguments: str, tmp: Path, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keyfence", "demo", *arguments],
        cwd=cwd,
        env=os.environ | {"TMPDIR": str(tmp), "PYTHONPATH": str(PROJECT / "proxy")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The demo's output, and the folder where it could leave temporary files."""
    tmp = tmp_path_factory.mktemp("demo")
    run = demo(tmp=tmp)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout, tmp


def processes_that_name(text: str) -> list[str]:
    """Returns the command lines of running processes that contain the text (Linux only, else none)."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


def halves(output: str) -> tuple[str, str]:
    first, second = output.split(ENFORCED)
    return first, second


# -- with a private keyfence


def test_each_mistake_is_found_in_observe(played: tuple[str, Path]) -> None:
    observed, _ = halves(played[0])
    policy = load_policy(POLICY)
    rows = [re.split(r"\s{2,}", line) for line in observed.splitlines()]
    found = {(row[0], row[1], row[2]) for row in rows if len(row) > 4}
    for step in MISTAKES.values():
        answer = explain(policy, step.service, [word.encode() for word in step.argv])
        assert answer["violations"], step
        for violation in answer["violations"]:
            assert (step.service, violation["rule"], answer["command"]) in found


def test_every_command_passes_in_observe(played: tuple[str, Path]) -> None:
    observed, _ = halves(played[0])
    number = re.search(
        r"^(\d+) of (\d+) commands passed, (\d+) mistakes among them\.$", observed, re.MULTILINE
    )
    assert number
    assert number[1] == number[2]
    assert int(number[3]) >= len(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_refused_in_enforce_unless_it_is_a_should(
    played: tuple[str, Path], mistake: str
) -> None:
    _, enforced = halves(played[0])
    lines = enforced.splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(f"({mistake})"))
    step = MISTAKES[mistake]
    assert lines[at].startswith(step.service)
    answer = explain(load_policy(POLICY), step.service, [word.encode() for word in step.argv])
    must = [violation["rule"] for violation in answer["violations"] if violation["severity"] == "must"]
    if must:
        assert re.fullmatch(
            rf"NOPERM \[{re.escape(must[0])}\] .+ Ask #cube-redis\. \(d-[0-9a-f]{{8}}\)",
            lines[at + 1].strip(),
        )
    else:
        assert lines[at + 1].strip() == "OK"


def test_only_mistakes_are_refused(played: tuple[str, Path]) -> None:
    _, enforced = halves(played[0])
    tried = [line for line in enforced.splitlines() if "> " in line]
    assert all(any(line.endswith(f"({mistake})") for mistake in MISTAKES) for line in tried)
    number = re.search(r"^(\d+) of (\d+) commands passed, .*; (\d+) were refused and", enforced, re.MULTILINE)
    assert number
    assert int(number[1]) + int(number[3]) == int(number[2])


def test_exactly_the_mistakes_are_violations() -> None:
    policy = load_policy(POLICY)
    for step in Minute("t").steps():
        answer = explain(policy, step.service, [word.encode() for word in step.argv])
        assert (answer["verdict"] == "violation") == bool(step.mistake), (step, answer["violations"])


def test_piped_output_has_no_colour_and_no_trailing_spaces(played: tuple[str, Path]) -> None:
    assert "\x1b" not in played[0]
    assert not re.search(r" $", played[0], re.MULTILINE)


def test_the_demo_leaves_no_file_and_no_process(played: tuple[str, Path]) -> None:
    _, tmp = played
    assert list(tmp.iterdir()) == []
    assert processes_that_name(str(tmp)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_demo_and_all_that_it_started(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "keyfence", "demo"],
        cwd=PROJECT,
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs tests in the background makes their child processes ignore SIGINT.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    assert process.stdout
    assert process.stdout.readline().startswith("A private keyfence")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert stderr.strip() in ("keyfence: ended by SIGTERM", "Aborted!")
    assert list(tmp_path.iterdir()) == []
    assert processes_that_name(str(tmp_path)) == []


def test_the_demo_finds_its_policy_from_any_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = demo(tmp=tmp_path, cwd=elsewhere)
    assert run.returncode == 0, run.stderr


def test_a_policy_without_the_demo_services_is_an_error(tmp_path: Path) -> None:
    policy = tmp_path / "small.yaml"
    policy.write_text("policy: small\nservices: [CubeMaster]\n")
    run = demo("--policy", str(policy), tmp=tmp_path)
    assert run.returncode == 1
    assert re.fullmatch(
        r"keyfence: the policy small has no service CubeProxy, CubeAPI, cube-proxy-sidecar.*\n", run.stderr
    )


def test_a_missing_policy_is_an_error(tmp_path: Path) -> None:
    run = demo("--policy", str(tmp_path / "none.yaml"), tmp=tmp_path)
    assert run.returncode == 2
    assert run.stderr == f"{tmp_path}/none.yaml:1:1: error: cannot be read: No such file or directory\n"


# -- through a running keyfence


class Result(NamedTuple):
    code: int
    out: str
    err: str


def connect(*arguments: str) -> Result:
    """Runs `keyfence demo --connect …` in this process."""
    run = CliRunner().invoke(cli, ["demo", "--connect", *arguments], prog_name="keyfence")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exc_info
    return Result(run.exit_code, run.stdout, run.stderr)


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def direct(redis_behind: RedisServer) -> Iterator[redis.Redis]:
    redis_behind.clear()
    with redis_behind.client() as client:
        yield client


@pytest.fixture(scope="module")
def configure(
    redis_behind: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[str, str]]:
    """Returns a function: services → arguments of a keyfence with a listener for each of them."""

    def write(*services: str) -> tuple[str, str]:
        config = tmp_path_factory.mktemp("config") / "keyfence.yaml"
        lines = "".join(f"  - {{listen: '127.0.0.1:0', service: {service}}}\n" for service in services)
        config.write_text(
            f"policy: {POLICY}\nupstream: {redis_behind.url}\nadmin: 127.0.0.1:0\nlisteners:\n{lines}"
        )
        return "--config", str(config)

    return write


@pytest.fixture(scope="module")
def admin(configure: Callable[..., tuple[str, str]]) -> Iterator[str]:
    """The admin URL of a keyfence in observe mode."""
    with Keyfence(*configure(*SERVICES)) as keyfence:
        yield keyfence.ready.admin


def test_the_demo_plays_through_a_running_keyfence_and_leaves_no_key(admin: str, direct: redis.Redis) -> None:
    first, second = connect(admin), connect(admin)
    assert (first.code, first.err) == (0, "")
    assert "The demo has deleted the keys that it wrote" in first.out
    assert all(f"({mistake})" in first.out for mistake in MISTAKES)
    assert "NOPERM" not in first.out
    assert direct.dbsize() == 0
    # The second run shows only its own violations.
    count = re.compile(r"^CubeProxy +scope\.write +HSET +sandbox-route +(\d+) ", re.MULTILINE)
    assert count.findall(first.out) == count.findall(second.out) == ["6"]


def test_the_demo_changes_no_mode(configure: Callable[..., tuple[str, str]], direct: redis.Redis) -> None:
    with Keyfence(*configure(*SERVICES), "--mode", "enforce") as keyfence:
        code, out, err = connect(keyfence.ready.admin)
    assert (code, err) == (0, "")
    assert "NOPERM [scope.write] CubeProxy may not HSET" in out
    assert "were refused and never reached Redis" in out
    assert direct.dbsize() == 0


def test_the_demo_spares_keys_in_use_and_a_large_redis(admin: str, direct: redis.Redis) -> None:
    direct.hset(META, "theirs", "{}")
    direct.xadd(EVENTS, {"op": "create"})
    direct.mset({f"k{number}": "" for number in range(10_001)})
    before = direct.dump(META), direct.dump(EVENTS), direct.dbsize()
    code, out, err = connect(admin)
    assert (code, err) == (0, "")
    assert f"Left out: commands on {META}: the key is in use." in out
    assert f"Left out: commands on {EVENTS}: the key is in use." in out
    assert "Left out: KEYS: it would block other clients." in out
    assert "> KEYS" not in out
    assert (direct.dump(META), direct.dump(EVENTS), direct.dbsize()) == before


def test_a_keyfence_without_the_demo_services_is_an_error(configure: Callable[..., tuple[str, str]]) -> None:
    with Keyfence(*configure("CubeMaster", "CubeProxy")) as keyfence:
        message = connect(admin := keyfence.ready.admin)
    assert message == (
        1,
        "",
        f"keyfence: {admin}: no listener for CubeAPI, cube-proxy-sidecar (it has: CubeProxy, CubeMaster); "
        "the demo needs a listener for each of CubeSandbox' services\n",
    )


def test_a_keyfence_with_splice_is_an_error(configure: Callable[..., tuple[str, str]]) -> None:
    with Keyfence(*configure(*SERVICES), "--splice") as keyfence:
        message = connect(admin := keyfence.ready.admin)
    assert message == (1, "", f"keyfence: {admin}: this keyfence runs with --splice and applies no policy\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:1",), "http://127.0.0.1:1/modes: no keyfence answers there"),
        (("127.0.0.1:1",), "http://127.0.0.1:1/modes: no keyfence answers there"),
        (
            ("http://127.0.0.1:1", "--policy", "x"),
            "a running keyfence uses its own policy; give either --admin or --policy, not both",
        ),
    ],
)
def test_a_demo_that_cannot_start_gives_one_line(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = connect(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"keyfence: {message}")
    assert err.count("\n") == 1


# -- helper functions


def test_a_wildcard_address_is_reached_at_the_admin_host() -> None:
    assert _host_port("0.0.0.0:7101", "10.0.0.1") == ("10.0.0.1", 7101)
    assert _host_port(":7101", "10.0.0.1") == ("10.0.0.1", 7101)
    assert _host_port("[::1]:7101", "10.0.0.1") == ("::1", 7101)


def test_the_difference_of_two_reports_counts_the_violations_between() -> None:
    row = {"service": "a", "rule": "r", "command": "GET", "entry": "e", "shape": "", "count": 2}
    assert _difference([row | {"count": 5}], [row])[0]["count"] == 3  # type: ignore[list-item]
    assert _difference([row], [row]) == []  # type: ignore[list-item]


def test_every_key_but_the_two_without_an_id_holds_the_tag() -> None:
    for step in Minute("0a1b2c").steps():
        for access in extract([word.encode() for word in step.argv]).accesses:
            assert b"0a1b2c" in access.key or access.key.decode() in (META, EVENTS)
