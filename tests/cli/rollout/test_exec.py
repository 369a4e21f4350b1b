from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from keyfence.findings.gate.baseline import read_baseline
from tests.cli.test_main import keyfence
from tests.servers import PATIENCE_SECONDS, PROJECT, RedisServer

pytestmark = pytest.mark.slow

POLICY = """
policy: shop
owner: {team: billing, contact: "#billing"}
claims: ["order:", "cart:", "note:"]
services: [shop, billing]
keys:
  order: {key: "order:<id>", writers: [billing], readers: [shop]}
  cart: {key: "cart:<id>", writers: [shop], ttl: {max: 1h}}
  note: {key: "note:<id>", writers: [shop]}
placeholders: {id: "[0-9]+"}
"""
BEGIN = """
import os, redis, signal, sys, time, urllib.request, json
client = redis.from_url(os.environ["REDIS_URL"])
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(POLICY)
    return path


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder for temporary files; what lies there after a run was left behind."""
    path = tmp_path / "left"
    path.mkdir()
    return path


class Exec:
    """`keyfence exec` with a policy, for the service `shop`."""

    def __init__(self, policy: Path, left: Path) -> None:
        self.environment = os.environ | {"TMPDIR": str(left), "PYTHONPATH": str(PROJECT / "proxy")}
        self._options = ["--policy", str(policy), "--service", "shop"]

    def line(self, *options: str | Path, code: str = "", command: tuple[str, ...] = ()) -> list[str]:
        """The command line for Python code behind a client, or for another command."""
        command = command or (sys.executable, "-c", BEGIN + code)
        names = [*self._options, *map(str, options)]
        return [sys.executable, "-m", "keyfence", "exec", *names, "--", *command]

    def __call__(
        self, *options: str | Path, code: str = "", command: tuple[str, ...] = (), stdin: str = ""
    ) -> Ended:
        run = subprocess.run(
            self.line(*options, code=code, command=command),
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=PATIENCE_SECONDS * 3,
            check=False,
        )
        assert "Traceback" not in run.stderr.partition("keyfence gate:")[2]
        return Ended(run.returncode, run.stdout, run.stderr)

    @contextlib.contextmanager
    def started(self, code: str) -> Iterator[subprocess.Popen[str]]:
        """The same in the background, once the command has printed a line."""
        with subprocess.Popen(
            self.line(code=code),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n"
                yield process
            finally:
                process.kill()


@pytest.fixture
def run(policy: Path, left: Path) -> Exec:
    return Exec(policy, left)


def lives(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_ended(*pids: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(map(lives, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if lives(pid)]
        time.sleep(0.02)


# Prints the processes that serve the command: its own, keyfence, Redis.
PIDS = """
with urllib.request.urlopen(os.environ["KEYFENCE_ADMIN"] + "/status") as answer:
    status = json.load(answer)
pids = [os.getpid(), status["pid"], client.info("server")["process_id"]]
"""


# -- the exit code and the report


def test_new_findings_fail_a_command_that_succeeds_and_nothing_is_left(run: Exec, left: Path) -> None:
    code, out, err = run(code=f"{PIDS}\nclient.set('order:7', 'x')\nprint(pids)")
    assert code == 1
    assert err.startswith("keyfence gate: 1 new finding; ")
    assert re.search(r"\n  example  order:7  \(d-[0-9a-f]{8}\)\n  hint     its writers: billing\n", err)
    assert list(left.iterdir()) == []
    pids = json.loads(out)
    assert len(set(pids)) == 3
    wait_until_ended(*pids)


def test_a_command_that_keeps_the_policy_is_green(run: Exec) -> None:
    code, out, err = run(code="print(client.set('note:7', 'x'))")
    assert (code, out) == (0, "True\n")
    assert re.fullmatch(r"keyfence gate: no new findings; \d+ commands evaluated\n", err)


def test_a_command_that_never_comes_to_redis_is_not_green(run: Exec) -> None:
    code, out, err = run(command=("cat",), stdin="to the command\n")
    assert (code, out) == (3, "to the command\n")
    assert err == "keyfence gate: no traffic was judged: this run proves nothing\n"


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -KILL $$", 137)], ids=["its own code", "a signal"]
)
def test_the_failure_of_the_command_counts_first(command: str, code: int, run: Exec) -> None:
    found = run(command=("sh", "-c", command))
    assert found.code == code
    assert found.err.startswith("keyfence gate: ")


def test_a_missing_command_has_the_code_of_shells(run: Exec, left: Path) -> None:
    code, _, err = run(command=("no-such-command",))
    assert code == 127
    assert err.startswith("keyfence: no-such-command cannot be run: No such file or directory\n")
    assert list(left.iterdir()) == []


def test_a_key_without_its_time_to_live_is_found_at_the_end_without_waiting(run: Exec) -> None:
    """The grace time is for clients that may still set it. None is left."""
    code, _, err = run(code="client.hset('cart:7', 'a', 'b')")
    assert code == 1
    assert re.search(r"\nf-[0-9a-f]{12}  ttl\.required  shop     HSET         1\n", err)


def test_in_enforce_the_command_is_refused(run: Exec) -> None:
    code, out, _ = run(
        "--mode",
        "enforce",
        code="""
try:
    client.set('order:7', 'x')
except redis.exceptions.NoPermissionError as refusal:
    print(refusal)
""",
    )
    assert code == 1
    assert out.startswith("[scope.write] shop may not SET order:7")


# -- baselines, stores and formats


def test_a_baseline_of_a_run_makes_the_next_one_green(run: Exec, tmp_path: Path) -> None:
    known = tmp_path / "known.yaml"
    code, _, err = run("--write-baseline", known, code="client.set('order:7', 'x')")
    assert (code, err) == (0, f"keyfence: {known} knows 1 finding\n")
    assert [one.entry for one in read_baseline(str(known))] == ["order"]
    assert run("--baseline", known, code="client.set('order:8', 'x')").code == 0
    assert run("--baseline", known, code="client.delete('order:8')").code == 1


def test_a_store_that_is_kept_can_be_judged_again(run: Exec, tmp_path: Path) -> None:
    store, log, report = f"sqlite:///{tmp_path}/f.db", tmp_path / "log.jsonl", tmp_path / "report.xml"
    options = ("--findings", store, "--decision-log", log, "--output", report, "--format", "junit")
    code, _, err = run(*options, code="client.set('order:7', 'x')")
    assert (code, err) == (1, "")
    (failure,) = ElementTree.parse(report).getroot().findall(".//failure")
    (line,) = map(json.loads, log.read_text().splitlines())
    assert failure.text is not None
    assert line["decision"] in failure.text
    assert keyfence("gate", store).code == 1
    assert run("--findings", store, code="client.delete('order:7')").err.startswith("keyfence gate: 2 new")


def test_each_variable_has_the_address_of_its_service(run: Exec) -> None:
    found = run(
        "--env",
        "SHOP_URL",
        "--env",
        "BILLING_URL=billing",
        code="""
assert os.environ["SHOP_URL"] == os.environ["REDIS_URL"] != os.environ["BILLING_URL"]
redis.from_url(os.environ["BILLING_URL"]).set('order:7', 'x')
print(client.get('order:7'))
""",
    )
    assert (found.code, found.out) == (0, "b'x'\n"), found.err


def test_only_the_command_line_names_an_upstream(
    run: Exec, tmp_path: Path, policy: Path, redis_server: RedisServer
) -> None:
    """A configuration names the Redis of an environment. Tests must not write there."""
    config = tmp_path / "keyfence.yaml"
    config.write_text(
        f"policy: {policy.name}\nupstream: {redis_server.url}\nadmin: 127.0.0.1:9464\n"
        'listeners:\n- {listen: "127.0.0.1:7101", service: shop}\n'
        "modes:\n- {rule: scope.write, mode: enforce}\n"
    )
    run._options = ["--config", str(config)]
    write = "client.set('note:7', 'x')\nprint(urllib.parse.urlsplit(os.environ['REDIS_URL']).port)"
    code, out, err = run(code=f"import urllib.parse\n{write}")
    assert (code, urlsplit(f"//x:{out}").port != 7101) == (0, True), err
    with redis_server.client() as direct:
        assert direct.get("note:7") is None
        assert run("--upstream", redis_server.url, code="client.set('note:7', 'x')").code == 0
        assert direct.get("note:7") == b"x"


# -- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_the_command_decides(number: signal.Signals, run: Exec, left: Path) -> None:
    code = f"""
def taken(*_):
    client.set('note:7', 'x')
    print("taken", flush=True)
    sys.exit(5)
signal.signal({int(number)}, taken)
print("up", flush=True)
while True:
    time.sleep(0.02)
"""
    with run.started(code) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (5, "taken\n"), err
    assert err.startswith("keyfence gate: no new findings")
    assert list(left.iterdir()) == []


def test_ctrl_c_reaches_the_command_once_and_keyfence_serves_until_its_end(run: Exec) -> None:
    code = """
times = []
signal.signal(signal.SIGINT, lambda *_: times.append(1))
print("up", flush=True)
while not times:
    time.sleep(0.02)
time.sleep(0.3)
client.set('note:7', 'x')
print("interrupts:", len(times), flush=True)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        line = run.line(code=code)
        os.execve(line[0], line, run.environment)
    seen = b""
    with contextlib.suppress(OSError):  # EIO is a terminal's end
        while piece := os.read(terminal, 4096):
            seen += piece
            if seen.endswith(b"up\r\n"):
                os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"interrupts: 1\r\n" in seen, seen
    assert os.waitstatus_to_exitcode(status) == 0, seen


def test_if_keyfence_exec_is_killed_everything_ends(run: Exec) -> None:
    code = f"""{PIDS}
print("up", flush=True)
print(pids, flush=True)
while True:
    time.sleep(0.02)
"""
    with run.started(code) as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        process.kill()
        process.wait(PATIENCE_SECONDS)
        wait_until_ended(*pids)


def test_if_keyfence_itself_ends_early_nothing_is_green(run: Exec) -> None:
    code, _, err = run(code=f"{PIDS}\nos.kill(pids[1], signal.SIGKILL)")
    assert code == 2
    assert err == "keyfence: keyfence did not last until the command's end, so nothing is judged\n"


def test_a_signal_during_the_start_leaves_nothing(run: Exec, left: Path) -> None:
    with subprocess.Popen(run.line(command=("sleep", "600")), env=run.environment) as process:
        while not list(left.iterdir()):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        # Interrupted; or the command had begun, and has ended by the signal.
        assert process.wait(PATIENCE_SECONDS) in (130, 128 + signal.SIGTERM)
    assert list(left.iterdir()) == []


def test_the_only_service_of_a_policy_need_not_be_named(run: Exec, policy: Path) -> None:
    text = policy.read_text().replace("[shop, billing]", "[shop]").replace("writers: [billing], ", "")
    policy.write_text(text)
    run._options = ["--policy", str(policy)]
    assert run(code="client.set('note:7', 'x')").code == 0


# -- wrong usage


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--service is missing: which one is the command? shop, billing"),
        (("--service", "shpo"), "'shpo' is not a service of the policy; did you mean shop?"),
        (("--service", "shop", "--env", "X=bill"), "'bill' is not a service of the policy"),
        (
            ("--service", "shop", "--env", "=shop"),
            "--env '=shop' names no variable; write NAME or NAME=SERVICE",
        ),
        (("--service", "shop", "--baseline", "missing.yaml"), "missing.yaml:1:1: error: cannot be read"),
        (("--service", "shop", "--findings", "x"), "'x' is not a findings store; write sqlite:////PATH/FILE"),
        (("--service", "shop", "--upstream", "x"), "Invalid value for '--upstream'"),
        (("--service", "shop", "--nonsense"), "No such option"),
        (
            ("--service", "shop", "--findings", "sqlite:////proc/x/f.db"),
            "findings store sqlite:////proc/x/f.db",
        ),
    ],
)
def test_wrong_usage_runs_nothing(options: tuple[str, ...], message: str, run: Exec) -> None:
    run._options = run._options[:2]
    code, out, err = run(*options, command=("echo", "ran"))
    assert (code, out) == (2, "")
    assert message in err


def test_without_a_command_or_a_policy_nothing_runs() -> None:
    assert "Missing argument '-- COMMAND...'" in keyfence("exec").err
    code, _, err = keyfence("exec", "--", "true")
    assert (code, err) == (2, "command line:1:1: error: no policy; name one with policy: or --policy\n")
