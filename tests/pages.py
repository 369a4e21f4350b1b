"""Runs pages of the documentation: every command in them, in order, against a real keyfence and Redis.

`python -m tests.pages` writes what the commands print into the pages.

- A block `yaml FILE` is written to that file, `yaml FILE +` is appended to it.
- In a block `diff FILE`, the lines that begin with a space or `-` stand in that file once. They become the
  lines that begin with a space or `+`. `@@` begins another place.
- In a block `console`, a line with `$ ` is a command, and the lines after it are what it prints. A command
  with `&` at its end goes on beside the others.
- `<!-- copy: FOLDER -->` copies a folder of the project.
- `<!-- run: COMMAND -->` runs a command that the page does not show.
- `<!-- wait: COMMAND | TEXT -->` repeats a command until it prints the text.
- `<!-- later: 7d -->` lets time pass: keyfence is ended, everything in its store moves into the past, and
  keyfence begins again.
- `*About 5 minutes.*` is how long a person needs for the section. The estimate counts what there is to read,
  to type and to decide; `<!-- read: FILE -->` adds a file. `<!-- minutes -->` is the table of all estimates.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.servers import PATIENCE_SECONDS, PROJECT, free_port, server_binaries

README = PROJECT / "README.md"
HOUR = PROJECT / "docs" / "first-hour.md"
WEEK = PROJECT / "docs" / "first-week.md"
PORTS = ("6379", "6381", "6382", "7101", "7102", "7103", "7104", "7105", "9464")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_PARTS = re.compile(r"```(?P<info>[^\n]+)\n(?P<body>.*?)```|<!-- (?P<order>.+?) -->", re.DOTALL)
_MINUTES = re.compile(r"\*About \d+ minutes?\.\*")
_TABLE = re.compile(r"(?<=<!-- minutes -->\n)\n(?:\|[^\n]*\n)*")
# What differs between two runs.
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "2026-11-02 09:30:00Z"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?!:)( to (\d{4}-\d\d-\d\d )?\d\d:\d\d)?"), "2026-11-02 09:30"),
    (re.compile(r"\bd-[0-9a-f]{8}\b"), "d-1f0c2a9b"),
    (re.compile(r"\brevision [0-9a-f]{12}\b"), "revision 2bf7c52ef2af"),
    (re.compile(r"\b\d+[smh] ago"), "1m ago"),
    (re.compile(r"cover only \d+ (seconds|minutes)"), "cover only 5 seconds"),
    (re.compile(r"(The page is at http://127\.0\.0\.1:)\d+"), r"\g<1>41873"),  # free ports of keyfence look
    (re.compile(r"(Clients connect to 127\.0\.0\.1:|^  redis-cli -p )\d+", re.MULTILINE), r"\g<1>38011"),
    (re.compile(r"\b(redis-py|ioredis) \d+\.\d+\.\d+"), r"\1 5.2.0"),
)


def constant(text: str) -> str:
    """A text as it is in every run."""
    for pattern, to in _VARIES:
        text = pattern.sub(to, text)
    return text


class Walk:
    """One run of a page, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._running: list[tuple[str, subprocess.Popen[str]]] = []  # in the background, with their commands
        tools = folder / "bin"
        tools.mkdir()
        _tool(tools / "keyfence", sys.executable, "-m", "keyfence")
        _tool(tools / "python", sys.executable)
        _tool(tools / "redis-server", str(server_binaries()[0].path))
        self._environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "KEYFENCE_ADMIN": f"127.0.0.1:{self.ports['9464']}",
            "NODE_PATH": str(PROJECT / "tests" / "node" / "node_modules"),
            "PYTHONUNBUFFERED": "1",
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def real(self, text: str) -> str:
        for port, own in self.ports.items():
            text = re.sub(rf"\b{port}\b", own, text)
        return text

    def shown(self, text: str) -> str:
        for port, own in self.ports.items():
            text = re.sub(rf"\b{own}\b", port, text)
        return "\n".join(line.rstrip() for line in constant(text).rstrip().split("\n"))

    def run(self, command: str) -> str:
        """What a command prints, as the page shows it."""
        if command.endswith(" &"):
            return self.start(self.real(command.removesuffix(" &")))
        ran = subprocess.run(
            ["sh", "-c", self.real(command)],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=4 * PATIENCE_SECONDS,
            check=False,
        )
        self._use_own_ports(self.folder.glob("keyfence*.yaml"))  # keyfence init writes such files
        if command.startswith("redis-cli") and "NOPERM" not in ran.stdout:
            return ""  # the page leaves out what Redis answers
        return self.shown(ran.stdout)

    def start(self, command: str) -> str:
        """Starts a command in the background, and waits until it serves."""
        words = shlex.split(command)
        process = subprocess.Popen(
            words if words[0] != "keyfence" else [sys.executable, "-m", *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE if words[0] == "keyfence" else subprocess.DEVNULL,
            text=True,
        )
        self._running.append((command, process))
        if process.stdout is not None:
            return self.shown(process.stdout.readline()).partition("; upstream")[0]
        port = int(words[words.index("--port") + 1])
        _eventually(lambda: _listens(port))
        return ""

    def stop(self, name: str = "") -> list[str]:
        """Ends what runs in the background, or only the commands of this name. Returns these commands."""
        ended = [one for one in reversed(self._running) if name in ("", shlex.split(one[0])[0])]
        for one in ended:
            self._running.remove(one)
            one[1].send_signal(signal.SIGTERM)
            one[1].communicate(timeout=PATIENCE_SECONDS)
        return [command for command, _ in ended]

    def order(self, text: str) -> None:
        """Do what a comment says."""
        name, _, what = text.partition(": ")
        if name == "copy":
            shutil.copytree(PROJECT / what, self.folder, dirs_exist_ok=True)
            self._use_own_ports(self.folder.glob("*.env"))
        elif name == "run":
            self.run(what)
        elif name == "wait":
            command, _, wanted = what.partition(" | ")
            _eventually(lambda: wanted in re.sub(" +", " ", self.run(command)))
        elif name == "later":
            self._let_time_pass(int(what[:-1]) * _UNITS[what[-1]])
        elif name not in ("read", "minutes"):
            raise ValueError(text)

    def write(self, file: str, body: str) -> None:
        name, _, how = file.partition(" ")
        with (self.folder / name).open("a" if how == "+" else "w") as opened:
            opened.write(self.real(body))

    def edit(self, file: str, body: str) -> None:
        """Makes the changes of a block `diff`. The text before each one must stand in the file once."""
        path = self.folder / file
        text = path.read_text()
        for place in re.split(r"^@@\n", self.real(body), flags=re.MULTILINE):
            lines = place.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(old) == 1, f"stands {text.count(old)} times in {file}:\n{old}"
            text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        path.write_text(text)

    def _use_own_ports(self, files: Iterator[Path]) -> None:
        for file in files:
            text = file.read_text()
            if self.real(text) != text:
                file.write_text(self.real(text))

    def _let_time_pass(self, seconds: float) -> None:
        commands = self.stop("keyfence")
        (file,) = self.folder.rglob("*.db")
        with sqlite3.connect(file) as store:
            for table, columns in _times(store).items():
                for column, unit in columns.items():
                    store.execute(f'UPDATE {table} SET "{column}" = "{column}" - ?', (seconds / unit,))
            looking = 'UPDATE keyfence_spans SET "end" = ? WHERE kind = ?'
            store.execute(looking, (time.time(), "looking"))
        store.close()
        for command in commands:
            self.start(command)


def _tool(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


def _times(store: sqlite3.Connection) -> dict[str, dict[str, int]]:
    """By table: its columns that are times, and how many seconds their unit has."""
    times = {
        "at": 1,
        "since": 1,
        "first": 1,
        "last": 1,
        "refusable": 1,
        "begin": 1,
        "end": 1,
        "began": 1,
        "hour": 3600,
    }
    found: dict[str, dict[str, int]] = {}
    for (table,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
        found[table] = {name: times[name] for name in columns if name in times}
    return found


def _free_ports(number: int) -> list[str]:
    """Returns free loopback ports, all different and of five digits."""
    found: set[str] = set()
    while len(found) < number:
        found |= {str(port)} if (port := free_port()) > 9999 else set()
    return sorted(found)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _eventually(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.2)


# -- how long a person needs

WORDS_A_MINUTE = 200  # read, outputs included
MINUTES_A_COMMAND = 1 / 3
MINUTES_AN_EDIT = 1.5  # a place that is changed, or a block that is written
MINUTES_A_GUESS = 1 / 6  # of a draft


class Effort(NamedTuple):
    """What a section asks of its reader."""

    words: int = 0
    commands: int = 0
    edits: int = 0
    guesses: int = 0

    @property
    def minutes(self) -> int:
        exact = (
            self.words / WORDS_A_MINUTE
            + self.commands * MINUTES_A_COMMAND
            + self.edits * MINUTES_AN_EDIT
            + self.guesses * MINUTES_A_GUESS
        )
        return max(1, round(exact))


def effort_of(section: str, folder: Path) -> Effort:
    """Returns the effort of a section. `folder` has the files that its reader reads."""
    blocks = [match for match in _PARTS.finditer(section) if match["info"]]
    read = "".join((folder / name).read_text() for name in re.findall(r"<!-- read: (.+?) -->", section))
    text = _PARTS.sub(lambda match: match["body"] or "", section) + constant(read)
    return Effort(
        words=len(re.findall(r"\S*\w\S*", text)),
        commands=sum(len(re.findall(r"^\$ ", match["body"], re.MULTILINE)) for match in blocks),
        edits=sum(
            1 + len(re.findall(r"^@@$", match["body"], re.MULTILINE))
            for match in blocks
            if re.match(r"(yaml|diff) \S", match["info"])
        ),
        guesses=read.count("guess:"),
    )


def _table_of(efforts: dict[str, Effort]) -> str:
    lines = ["", "| step | words | commands | edits | guesses | minutes |", "|---|--:|--:|--:|--:|--:|"]
    lines += [
        f"| {title} | {one.words:,} | {one.commands} | {one.edits} | {one.guesses} | {one.minutes} |"
        for title, one in efforts.items()
    ]
    sums = [sum(column) for column in zip(*efforts.values(), strict=True)]
    cells = " | ".join(f"{number:,}" for number in (*sums, sum(one.minutes for one in efforts.values())))
    return "\n".join([*lines, f"| together | {cells} |", ""])


# -- a whole page


def walked(page: str, folder: Path) -> str:
    """The page with what its commands really print, and its estimates."""
    walk = Walk(folder)
    efforts: dict[str, Effort] = {}
    sections = []
    try:
        for section in re.split(r"^(?=## )", page, flags=re.MULTILINE):
            section = _PARTS.sub(lambda part: _played(walk, part), section)
            if _MINUTES.search(section):
                effort = effort_of(section, folder)
                efforts[section.splitlines()[0].removeprefix("## ")] = effort
                minutes = f"{effort.minutes} minute{'' if effort.minutes == 1 else 's'}"
                section = _MINUTES.sub(f"*About {minutes}.*", section)
            sections.append(section)
    finally:
        walk.stop()
    return _TABLE.sub(lambda _: _table_of(efforts), "".join(sections))


def _played(walk: Walk, part: re.Match[str]) -> str:
    """Does what a part of the page says. Returns the part as it should be."""
    if part["order"]:
        walk.order(part["order"])
        return part[0]
    language, _, file = part["info"].partition(" ")
    if language == "yaml" and file:
        walk.write(file, part["body"])
    elif language == "diff":
        walk.edit(file, part["body"])
    elif language == "console":
        lines = []
        for line in part["body"].splitlines():
            if line.startswith("$ "):
                printed = walk.run(line[2:])
                lines += [line, *([printed] if printed else [])]
        return "```console\n" + "\n".join(lines) + "\n```"
    return part[0]


if __name__ == "__main__":
    for document in (README, HOUR, WEEK):
        if not sys.argv[1:] or document.stem in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as scratch:
                document.write_text(walked(document.read_text(), Path(scratch)))
