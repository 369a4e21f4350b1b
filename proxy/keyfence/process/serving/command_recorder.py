"""The command log: a sample of what services send, without values, for `keyfence diff --replay`.

Rule: it costs nothing where it is off and next to nothing where it is on; it never raises, never grows beyond
its limits, and holds no value and no secret.

Of commands alike (service, command, and what its keys are) the first few are written, then one each time that
their number has doubled, with how many it stands for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from keyfence.commands.model import Touches
from keyfence.policy.analysis.command_log import as_line
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.telemetry.decision_log import rfc3339

FIRST = 3  # of commands alike
MAX_GROUPS = 10_000
MAX_BYTES = 64 * 1024 * 1024  # of the file, and of the one before it
_MAX_KEYS = 4  # of a command that tell it from others


class _Group:
    __slots__ = ("count", "next", "written")

    def __init__(self) -> None:
        self.count = 0  # commands seen
        self.written = 0  # of them, up to the last line
        self.next = 1  # the one to write


class Recorder:
    """Writes the log of one process. Several processes may write to one file."""

    def __init__(
        self, path: str, *, max_bytes: int = MAX_BYTES, wall: Callable[[], float] = time.time
    ) -> None:
        """Raises OSError where the file can't be opened."""
        self.path = path
        self.lost = 0  # lines that couldn't be written, and commands of groups for which there was no room
        self._max_bytes = max_bytes
        self._wall = wall
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._file = self._open()

    def __call__(self, policy: CompiledPolicy, service: str, argv: Sequence[bytes], touches: Touches) -> None:
        """Take note of a command of a service."""
        first = policy.classifier.first
        name = touches.command.name if touches.command is not None else ""
        key = (service, name, policy.revision, *[first(one.key) for one in touches.accesses[:_MAX_KEYS]])
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self.lost += 1
                return
            group = self._groups[key] = _Group()
        group.count += 1
        if group.count >= group.next:
            self._write(policy, service, argv, touches, group)

    def _write(
        self, policy: CompiledPolicy, service: str, argv: Sequence[bytes], touches: Touches, group: _Group
    ) -> None:
        since, group.written = group.count - group.written, group.count
        group.next = group.count + 1 if group.count < FIRST else group.count * 2
        try:
            line = {"time": rfc3339(self._wall())} | as_line(policy, service, argv, touches, since)
            data = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
            self._rotate(len(data))
            if os.write(self._file, data) < len(data):
                self.lost += 1
        except Exception:  # whatever it is, the command goes on its way
            self.lost += 1

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _rotate(self, more: int) -> None:
        """Make room: the file becomes FILE.1 when it is full. Another process may have done so already."""
        mine = os.fstat(self._file)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is not None and os.path.samestat(mine, there):
            if mine.st_size + more <= self._max_bytes:
                return
            os.replace(self.path, self.path + ".1")
        os.close(self._file)
        self._file = self._open()

    def close(self) -> None:
        os.close(self._file)
