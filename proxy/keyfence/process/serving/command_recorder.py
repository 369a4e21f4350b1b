"""The command log: a sample of what services send, without values, for `keyfence diff --replay`.

Rule: it never raises, never grows beyond its limits, and holds no value and no secret. It costs nothing while
it is off, and next to nothing while it is on.

Commands are alike if service, command, the classes of their keys and what they do to times to live are: a SET
without EX among many with one is a group of its own. The class of a key that no entry covers is its kind: the
key without its numbers, ids and the like. So the log shows every kind of key even if the policy is empty. Of
each group the first few are written, then one each time that their number has doubled, with the number of
commands that it represents. At the end the last line of each group is written again, for the commands since
then.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.wording.command_log import MAX_NAME, as_line
from keyfence.shapes.shapes import take_apart
from keyfence.shapes.skeleton import skeleton
from keyfence.telemetry.decision_log import rfc3339
from keyfence.telemetry.log_file import Tail
from keyfence.telemetry.operator_log import notice

FIRST = 3  # of a group
MAX_GROUPS = 10_000
MAX_KINDS = 4_000  # of keys and channels; of further ones, those that begin alike are of one kind …
MAX_BEGINNINGS = 1_000  # … as far as there is room for the beginnings, and leave room for other groups
MAX_BYTES = 64 * 1024 * 1024  # of the file, and of the one before it
MAX_KEPT = 8 * 1024 * 1024  # bytes of last lines in memory; groups beyond end with what was written before
_MAX_KEYS = 4  # of a command that decide its group

_ID = "<id>"
_SEGMENT_WITH_ID = re.compile(rf"[^:]*{_ID}[^:]*")
_LETTERS = re.compile(r"[^\W\d_]+")
_SURE_WORD = 8  # letters of a word in mixed case beside an id; a shorter one may be a part of the id


@dataclasses.dataclass(slots=True)
class _Group:
    count: int = 0  # commands seen
    written: int = 0  # those that a line represents
    next: int = 1  # the count at which the next line is written
    last: bytes = b""  # the last line, as far as there is room to keep it


class Recorder:
    """Writes the log of one process. Several processes may write to one file."""

    def __init__(
        self, path: str, *, max_bytes: int = MAX_BYTES, wall: Callable[[], float] = time.time
    ) -> None:
        """Raises OSError if the file cannot be opened."""
        self.path = path
        self.lost = 0  # lines that could not be written, and commands without room for their group
        self._max_bytes = max_bytes
        self._wall = wall
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._kept = 0  # bytes of last lines
        self._kinds: set[str] = set()
        self._kind_of: dict[bytes, str] = {}  # by skeleton
        self._file = self._open()
        self._tail = Tail()

    def __call__(self, policy: CompiledPolicy, service: str, argv: Sequence[bytes], touches: Touches) -> None:
        """Record a command of a service."""
        name = touches.command.name if touches.command is not None else ""
        classes = [self._class_of(policy, one.key) for one in touches.accesses[:_MAX_KEYS]]
        names = [self._kind(one.name) for one in touches.channels[:_MAX_KEYS]]
        lifetimes = [one.ttl.kind for one in touches.accesses[:_MAX_KEYS] if one.ttl is not None]
        key = (service, name, policy.revision, *classes, *names, *lifetimes)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self.lost += 1
                return
            group = self._groups[key] = _Group()
        group.count += 1
        if group.count >= group.next:
            self._write(policy, service, argv, touches, group)

    def _class_of(self, policy: CompiledPolicy, key: bytes) -> int | str:
        """Returns the entry or legacy form that covers a key, or else the key's kind."""
        index = policy.classifier.first(key[:MAX_NAME])
        if index >= 0 and policy.targets[index].kind in ("entry", "legacy"):
            return index
        return self._kind(key)

    def _kind(self, name: bytes) -> str:
        """Returns what a name has in common with others, as far as there is room for it."""
        bones = skeleton(name)
        kind = self._kind_of.get(bones)
        if kind is None:
            kind = self._with_room(kind_of(name))
            if len(self._kind_of) >= MAX_KINDS:
                self._kind_of.clear()
            if bones:
                self._kind_of[bones] = kind
        return kind

    def _with_room(self, kind: str) -> str:
        for one, most in ((kind, MAX_KINDS), (_beginning(kind), MAX_KINDS + MAX_BEGINNINGS)):
            if one in self._kinds:
                return one
            if len(self._kinds) < most:
                self._kinds.add(one)
                return one
        return ""

    def _write(
        self, policy: CompiledPolicy, service: str, argv: Sequence[bytes], touches: Touches, group: _Group
    ) -> None:
        try:
            self._put(group, as_line(policy, service, argv, touches, 0))
        except Exception as exc:  # a fault here must not stop the command
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self.lost += 1
        why = exc.strerror if isinstance(exc, OSError) else type(exc).__name__
        text = f"the command log {self.path} cannot be written: {why}; kinds of commands may be missing in it"
        notice("command log", text)

    def _put(self, group: _Group, line: dict[str, Any]) -> None:
        """Write a line for the commands of a group since its last one."""
        since = group.count - group.written
        group.next = group.count + 1 if group.count < FIRST else group.count * 2
        line = {"time": rfc3339(self._wall())} | line | {"count": since}
        data = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
        more = len(data) - len(group.last)
        if self._kept + more <= MAX_KEPT:
            self._kept += more
            group.last = data
        self._rotate(len(data))
        self._tail.append(self._file, data)
        group.written = group.count

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self.path, flags, 0o640)

    def _rotate(self, more: int) -> None:
        """Rename a full file to FILE.1. Another process may have done so already."""
        mine = os.fstat(self._file)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is not None and os.path.samestat(mine, there):
            if mine.st_size + more <= self._max_bytes:
                return
            os.replace(self.path, self.path + ".1")
        full, self._file = self._file, self._open()  # if that fails, the former file stays open
        os.close(full)

    def close(self) -> None:
        """Write what no line represents yet, and close the file."""
        try:
            for group in self._groups.values():
                if group.count > group.written and group.last:
                    self._put(group, json.loads(group.last))
        except Exception as exc:  # a fault here must not stop the end
            self._failed(exc)
        os.close(self._file)


def kind_of(name: bytes) -> str:
    """Returns the text of a name with a placeholder for each number, id, address and the like. It is the same
    for all names with the same skeleton."""
    anatomy = take_apart(name)
    return _SEGMENT_WITH_ID.sub(_without_parts_of_ids, anatomy.filled(anatomy.words))


def _without_parts_of_ids(found: re.Match[str]) -> str:
    """What looks like a word beside an id may be a part of it: `CQI-<id>`."""
    words = _LETTERS.findall(found[0].replace(_ID, ""))
    are_words = all(one.islower() or one.isupper() or len(one) >= _SURE_WORD for one in words)
    return found[0] if are_words else _ID


def _beginning(kind: str) -> str:
    """The first two segments of a kind, without its last one."""
    return ":".join(kind.split(":")[:-1][:2]) + ":…"
