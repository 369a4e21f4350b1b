"""Runs docs/first-week.md: every command in it, in order, against a real keyfence.

`python -m tests.first_week` writes what the commands print into the document.

A block `yaml FILE` is written to that file, `yaml FILE +` is appended to it. In a block `console`, a line
with `$ ` is a command, and the lines after it are what it prints. `<!-- week -->` lets a week pass: keyfence
is ended, everything in its store moves a week into the past, and keyfence begins again.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import PATIENCE_SECONDS, PROJECT

DOCUMENT = PROJECT / "docs" / "first-week.md"
WEEK = 7 * 86_400.0
PORTS = ("6381", "6382", "9464")
_PARTS = re.compile(r"```(?P<info>[^\n]+)\n(?P<body>.*?)```|<!-- (?P<order>[^>]+) -->", re.DOTALL)
# What differs between two runs.
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "2026-11-02 09:30:00Z"),
    (re.compile(r"\bd-[0-9a-f]{8}\b"), "d-1f0c2a9b"),
    (re.compile(r"\b\d+[smh] ago"), "1m ago"),
)


class Walk:
    """One run of the document, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: _free_port() for port in PORTS}
        self._keyfence: subprocess.Popen[str] | None = None
        tools = folder / "bin"
        tools.mkdir()
        command = tools / "keyfence"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m keyfence "$@"\n')
        command.chmod(0o755)
        admin = f"127.0.0.1:{self.ports['9464']}"
        self._environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "KEYFENCE_ADMIN": admin,
            "PYTHONUNBUFFERED": "1",
        }

    def real(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        return text

    def shown(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(own, port)
        for pattern, to in _VARIES:
            text = pattern.sub(to, text)
        return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))

    def run(self, command: str) -> str:
        """What a command prints, as the document shows it."""
        if command.startswith("keyfence run"):
            return self.start()
        ran = subprocess.run(
            ["sh", "-c", self.real(command)],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )
        if command.startswith("redis-cli") and "NOPERM" not in ran.stdout:
            return ""  # the document leaves out what Redis answers
        return self.shown(ran.stdout)

    def start(self) -> str:
        self._keyfence = subprocess.Popen(
            [sys.executable, "-m", "keyfence", "run", "--config", "keyfence.yaml"],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keyfence.stdout is not None
        line = self._keyfence.stdout.readline()
        return self.shown(line).partition("; upstream")[0]

    def stop(self) -> None:
        if self._keyfence is not None:
            self._keyfence.send_signal(signal.SIGTERM)
            self._keyfence.communicate(timeout=PATIENCE_SECONDS)
            self._keyfence = None

    def order(self, text: str) -> None:
        """Do what a comment says."""
        if text == "week":
            self._let_a_week_pass()
        elif text == "wait: resolved":
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "resolved" not in self.run("keyfence findings --state resolved"):
                assert time.monotonic() < deadline
                time.sleep(0.2)
        else:
            raise ValueError(text)

    def _let_a_week_pass(self) -> None:
        self.stop()
        with sqlite3.connect(self.folder / "findings.db") as store:
            for table, columns in _times(store).items():
                for column, unit in columns.items():
                    store.execute(f'UPDATE {table} SET "{column}" = "{column}" - ?', (WEEK / unit,))
            store.execute('UPDATE keyfence_spans SET "end" = ?', (time.time(),))
        store.close()
        self.start()


def _times(store: sqlite3.Connection) -> dict[str, dict[str, int]]:
    """By table: its columns that are times, and how many seconds their unit has."""
    times = {"at": 1, "since": 1, "first": 1, "last": 1, "begin": 1, "end": 1, "began": 1, "hour": 3600}
    found: dict[str, dict[str, int]] = {}
    for (table,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
        found[table] = {name: times[name] for name in columns if name in times}
    return found


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def walked(document: str, folder: Path) -> str:
    """The document with what its commands really print."""
    walk = Walk(folder)

    def part(match: re.Match[str]) -> str:
        if match["order"]:
            walk.order(match["order"].strip())
            return match[0]
        language, _, name = match["info"].partition(" ")
        if language == "yaml" and name:
            path, _, how = name.partition(" ")
            with (folder / path).open("a" if how == "+" else "w") as file:
                file.write(walk.real(match["body"]))
            return match[0]
        if language != "console":
            return match[0]
        lines = []
        for line in match["body"].splitlines():
            if line.startswith("$ "):
                printed = walk.run(line[2:].removesuffix(" &"))
                lines += [line, *([printed] if printed else [])]
        return "```console\n" + "\n".join(lines) + "\n```"

    try:
        return _PARTS.sub(part, document)
    finally:
        walk.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        DOCUMENT.write_text(walked(DOCUMENT.read_text(), Path(scratch)))
