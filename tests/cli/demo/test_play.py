"""The demo with a keyfence of its own."""

from __future__ import annotations

import http.client
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.admin.client import ask
from keyfence.cli.demo.private import CANDIDATE, PORT
from keyfence.cli.demo.traffic import Minute
from keyfence.policy.loading.load import load_policy
from keyfence.policy.remedies.explain import explain
from tests.policy.cases import POLICIES
from tests.servers import PATIENCE_SECONDS, PROJECT, server_binaries

POLICY = POLICIES / "cubesandbox.yaml"
MISTAKES = {step.mistake: step for step in Minute("t").steps() if step.mistake}
WAIVED = "an unregistered key"
ENFORCED = "2. enforce"
LAST = "Everything has stopped, and nothing is left behind."


@pytest.fixture(scope="module", autouse=True)
def _a_redis() -> None:
    if not server_binaries():
        pytest.fail("the demo needs a redis-server")


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A folder for temporary files, with a path that is short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="kf-", dir="/tmp") as name:
        yield Path(name)


def environment(tmp: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(tmp), "PYTHONPATH": str(PROJECT / "proxy"), "PYTHONUNBUFFERED": "1"}


def demo(
    *arguments: str, tmp: Path, cwd: Path = PROJECT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keyfence", "demo", *arguments],
        cwd=cwd,
        env=environment(tmp) | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 3,
        check=False,
    )


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[str, Path]]:
    """The demo's output, and the folder where it could leave temporary files."""
    with tempfile.TemporaryDirectory(prefix="kf-", dir="/tmp") as name:
        yield play_in(Path(name)), Path(name)


def play_in(tmp: Path) -> str:
    # A Redis of the user's must not be touched: nothing answers at this one.
    run = demo(tmp=tmp, env={"KEYFENCE_UPSTREAM": "redis://127.0.0.1:1"})
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


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


# -- what it prints


def test_the_address_of_the_page_comes_first(played: tuple[str, Path]) -> None:
    assert re.match(r"The page is at http://127\.0\.0\.1:\d+/\n", played[0])


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
def test_each_mistake_is_refused_in_enforce_unless_it_is_a_should_or_waived(
    played: tuple[str, Path], mistake: str
) -> None:
    _, enforced = halves(played[0])
    lines = [line.strip() for line in enforced.splitlines()]
    at = lines.index(mistake)
    step = MISTAKES[mistake]
    assert lines[at + 1].startswith(f"{step.service}> {step.argv[0]}")
    answer = explain(load_policy(POLICY), step.service, [word.encode() for word in step.argv])
    must = [violation["rule"] for violation in answer["violations"] if violation["severity"] == "must"]
    if must and mistake != WAIVED:
        assert re.fullmatch(
            rf"NOPERM \[{re.escape(must[0])}\] .+ Ask #cube-redis\. \(d-[0-9a-f]{{8}}\)", lines[at + 2]
        )
    else:
        assert lines[at + 2] == "OK"


def test_only_mistakes_are_refused(played: tuple[str, Path]) -> None:
    _, enforced = halves(played[0])
    lines = enforced.splitlines()
    headings = [lines[at - 1] for at, line in enumerate(lines) if re.match(r" +[\w-]+> ", line)]
    assert set(headings) == set(MISTAKES)
    number = re.search(r"^(\d+) of (\d+) commands passed, .*; (\d+) were refused and", enforced, re.MULTILINE)
    assert number
    assert int(number[1]) + int(number[3]) == int(number[2])


def test_piped_output_has_no_colour_and_no_trailing_spaces(played: tuple[str, Path]) -> None:
    assert "\x1b" not in played[0]
    assert not re.search(r" $", played[0], re.MULTILINE)


# -- on a terminal


class Terminal:
    """The demo on a terminal of 80 columns."""

    def __init__(self, tmp: Path, *arguments: str) -> None:
        self.text = ""
        self._own, theirs = pty.openpty()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keyfence", "demo", *arguments],
                cwd=PROJECT,
                env=environment(tmp) | {"COLUMNS": "80", "TERM": "dumb"},
                stdin=theirs,
                stdout=theirs,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=default_signals,  # noqa: PLW1509 - no threads here
            )
        finally:
            os.close(theirs)

    def read_until(self, wanted: str) -> str:
        """Returns everything so far, once this is in it. An empty text is never found: all is read."""
        deadline = time.monotonic() + PATIENCE_SECONDS * 3
        while not (wanted and wanted in self.text):
            assert time.monotonic() < deadline, self.text
            if not select.select([self._own], [], [], 0.1)[0]:
                continue
            try:
                read = os.read(self._own, 65536).decode()
            except OSError:  # all ends of the terminal are closed
                read = ""
            if not read:
                assert not wanted, self.text
                break
            self.text += read.replace("\r\n", "\n")
        return self.text

    def close(self) -> None:
        os.close(self._own)
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=PATIENCE_SECONDS)


def default_signals() -> None:
    """A shell that runs tests in the background makes their child processes ignore SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="module")
def on_terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, str, Path]]:
    """A demo that stays up, the admin URL of its keyfence, and its temporary files."""
    tmp = tmp_path_factory.mktemp("terminal")
    terminal = Terminal(tmp)
    try:
        text = terminal.read_until("are enforced.")
        address = re.search(r"The page is at (\S+)/\n", text)
        assert address
        yield terminal, address[1], tmp
    finally:
        terminal.close()


def page(admin: str, path: str) -> str:
    """What a browser gets."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(admin).netloc, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": "text/html"})
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()


def test_its_lines_fit_a_terminal_of_80_columns(on_terminal: tuple[Terminal, str, Path]) -> None:
    assert max(map(len, on_terminal[0].text.splitlines())) <= 80


def test_every_view_of_the_page_is_filled(on_terminal: tuple[Terminal, str, Path]) -> None:
    _, admin, _ = on_terminal
    overview = page(admin, "/")
    assert re.search(r"<h1>\d+ new findings since yesterday", overview)
    assert re.search(r"<strong>[1-9]\d*</strong> waived", overview)
    assert all(f">{word}</span>" in overview for word in ("enforced", "not ready", "gap", "no traffic"))
    assert all(f'<rect class="{action}"' in overview for action in ("refused", "observed", "waived"))
    assert "CubeProxy" in page(admin, "/findings")
    found = ask(admin, "/findings?service=CubeProxy&rule=scope.write")["findings"]
    finding = page(admin, f"/findings/{found[0]['id']}")
    assert all(text in finding for text in ("its writers: CubeMaster", "redis-py", "waiver"))
    assert "type.mismatch" in page(admin, "/services/CubeProxy")
    assert "sandbox-route" in page(admin, "/policy")
    candidate = page(admin, "/candidate")
    assert all(f">{change}</span>" in candidate for change in ("new", "gone", "same"))


def test_the_page_is_at_its_own_port_unless_that_is_taken(on_terminal: tuple[Terminal, str, Path]) -> None:
    first = urllib.parse.urlsplit(on_terminal[1]).port
    if first != PORT:
        pytest.skip(f"another program has port {PORT}")
    terminal = Terminal(on_terminal[2])
    try:
        assert f":{PORT}/" not in terminal.read_until("private keyfence")
    finally:
        terminal.close()


def test_while_it_stays_up_the_services_go_on(on_terminal: tuple[Terminal, str, Path]) -> None:
    _, admin, _ = on_terminal

    def violations() -> int:
        return sum(row["count"] for row in ask(admin, "/report"))

    before, deadline = violations(), time.monotonic() + PATIENCE_SECONDS
    while violations() <= before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_token_that_it_prints_allows_changes(
    on_terminal: tuple[Terminal, str, Path], tmp_path: Path
) -> None:
    terminal, admin, _ = on_terminal
    printed = re.search(r"sign in with the token (\w+)\.", terminal.text)
    assert printed
    token = tmp_path / "token"
    token.write_text(printed[1])
    assert "revision" in ask(admin, "/-/reload", {}, timeout=PATIENCE_SECONDS, token_file=str(token))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_normal_end_of_a_demo_that_stays_up(number: signal.Signals, tmp: Path) -> None:
    terminal = Terminal(tmp)
    try:
        terminal.read_until("are enforced.")
        terminal.process.send_signal(number)
        assert LAST in terminal.read_until("")
        _, stderr = terminal.process.communicate(timeout=PATIENCE_SECONDS)
        assert (terminal.process.returncode, stderr) == (0, "")
    finally:
        terminal.close()
    assert left_behind(tmp) == []


def test_once_ends_by_itself_on_a_terminal_too(tmp: Path) -> None:
    terminal = Terminal(tmp, "--once")
    try:
        assert LAST in terminal.read_until("")
        assert "Ctrl-C" not in terminal.text
        terminal.process.communicate(timeout=PATIENCE_SECONDS)
        assert terminal.process.returncode == 0
    finally:
        terminal.close()


# -- its end


def left_behind(tmp: Path) -> list[str]:
    """The files and processes of a demo. A process may take a moment to end after its parent was killed."""
    return [str(path) for path in tmp.iterdir()] + processes_that_name(str(tmp))


def test_the_demo_leaves_no_file_and_no_process(played: tuple[str, Path]) -> None:
    assert left_behind(played[1]) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_all_that_it_started(number: signal.Signals, tmp: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "keyfence", "demo"],
        cwd=PROJECT,
        env=environment(tmp),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509 - no threads here
    )
    assert process.stdout
    assert process.stdout.readline().startswith("The page is at")
    process.send_signal(number)
    process.send_signal(number)  # an impatient user
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert stderr.strip() in (f"keyfence: ended by {number.name}", "Aborted!")
    assert left_behind(tmp) == []


def test_its_keyfence_ends_with_a_demo_that_is_killed(tmp: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "keyfence", "demo"],
        cwd=PROJECT,
        env=environment(tmp),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        process.stdout.readline()
        process.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := processes_that_name(str(tmp)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_the_demo_finds_its_policy_from_any_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "keyfence").mkdir(parents=True)  # not the package
    run = demo("--once", tmp=tmp_path, cwd=elsewhere)
    assert run.returncode == 0, run.stderr


def test_a_policy_of_ones_own_is_played_without_a_candidate_if_it_has_none_of_the_changes(
    tmp_path: Path,
) -> None:
    text = POLICY.read_text()
    for before, after in CANDIDATE:
        assert text.count(before) == 1
        text = text.replace(before, after)
    policy = tmp_path / "own.yaml"
    policy.write_text(text)
    run = demo("--policy", str(policy), tmp=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert "ttl.range" in run.stdout  # what the candidate would break


# -- errors


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


def test_a_keyfence_that_does_not_start_gives_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    bad = tmp_path / "bin"
    bad.mkdir()
    (bad / "redis-server").write_text("#!/bin/sh\nexit 3\n")
    (bad / "redis-server").chmod(0o755)
    run = demo(tmp=temporary, env={"PATH": f"{bad}:{os.environ['PATH']}"})
    assert run.returncode == 1
    assert run.stderr.startswith(f"keyfence: keyfence did not start: {bad}/redis-server")
    assert run.stderr.count("\n") == 1
    assert list(temporary.iterdir()) == []
