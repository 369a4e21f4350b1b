from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keyfence.cli.keyspace import progress
from keyfence.cli.keyspace.progress import stopping, watching
from tests.audit.shop import POLICY
from tests.servers import PROJECT, RedisServer


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with watching("keys") as watch:
        for done in range(0, 50_001, 10_000):
            watch(done, 100_000)
            now += 4.0
    assert capsys.readouterr().err.splitlines() == [
        "keyfence: 30,000 of 100,000 keys, 2,500/s, 28s left",
    ]


def test_on_a_terminal_it_is_a_bar(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client, client.pipeline() as pipeline:
        for number in range(3000):
            pipeline.hset(f"shop:main:order:{number}", "state", "paid")
        pipeline.execute()
    policy = tmp_path / "shop.yaml"
    policy.write_text(POLICY)
    command = [sys.executable, "-m", "keyfence", "audit", redis_server.embedded.url]
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [*command, "--policy", str(policy), "--rate", "3000/s"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"COLUMNS": "80", "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65_536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    out, _ = run.communicate()
    assert run.returncode == 0
    assert b"3,000 keys" in out
    assert re.search(rb"[0-9,]+ of 3,000 keys", shown)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_the_second_ends(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stopped: list[bool] = []
    with stopping(lambda: stopped.append(True)):
        os.kill(os.getpid(), number)
        assert stopped == [True]
        assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    assert signal.getsignal(number) is before
