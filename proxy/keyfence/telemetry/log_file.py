"""The file that log lines are written to: a regular file, standard output or a pipe.

Rule: a line is written completely or counted as lost, and nothing here blocks or raises after the start.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable
from typing import NamedTuple

from .counters import Counters
from .operator_log import PIPE_CHUNK, notice, warn

MAX_BUFFER = 1 << 20  # bytes that wait for a pipe or terminal


class _Line(NamedTuple):
    data: bytes  # with its newline
    decisions: int  # that this line is the first to report
    dropped: int  # that the line reports as dropped


class Tail:
    """The end of a file of lines, of which a full disk may have taken only a part."""

    def __init__(self) -> None:
        self._is_torn = False

    def append(self, file: int, line: bytes) -> None:
        """Write a line with its newline, at once. The next one begins a line of its own in any case. Raises
        OSError unless all of it was written; a pipe that is not read is never waited for."""
        data = b"\n" * self._is_torn + line
        written = os.write(file, data)
        if written:
            self._is_torn = written < len(data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class LogFile:
    """Writes lines to a file that it appends to, to standard output ("-"), or to the descriptor of a pipe.

    With `schedule` (`loop.call_soon`), lines are collected until the end of the event loop's turn; without,
    each is written at once. A failed write loses its lines and counts them; the first one prints a warning. A
    pipe or terminal that nobody reads never blocks keyfence: up to MAX_BUFFER the lines wait, beyond that
    they are lost.
    """

    def __init__(
        self,
        target: str | int,
        counters: Counters,
        schedule: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Raises OSError if the file cannot be opened."""
        self._target = target
        self._counters = counters
        self._schedule = schedule
        self._scheduled = False
        self._lines: list[_Line] = []
        self._size = 0
        self._torn = False  # the last write ended inside a line
        self._warned = False
        self._lost = 0  # decisions, since `take_lost` was last called
        self._fd = -1
        self._may_block = False
        self._open()

    def _open(self) -> None:
        if self._target == "-":
            fd = 1
        elif isinstance(self._target, int):
            fd = os.dup(self._target)
        else:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(self._target, flags, 0o640)
        self._may_block = not stat.S_ISREG(os.fstat(fd).st_mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._fd = fd

    def take_lost(self) -> int:
        """How many decisions were lost with their lines since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def write(self, data: bytes, decisions: int, dropped: int) -> None:
        """Write a line with its newline. It is the first to report `decisions` decisions, and it reports
        `dropped` others as dropped."""
        line = _Line(data, decisions, dropped)
        if self._size + len(data) > MAX_BUFFER:
            self.flush()
        if self._size + len(data) > MAX_BUFFER or self._fd < 0:
            self._lose([line])
            return
        self._lines.append(line)
        self._size += len(data)
        if self._schedule is None:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._schedule(self.flush)

    def flush(self) -> None:
        """Write what is collected. Never raises."""
        self._scheduled = False
        if not self._lines or self._fd < 0:
            return
        try:
            self._stay_in_place()
        except OSError as exc:
            self._settle(0, exc, started=False)
            return
        data = b"".join(line.data for line in self._lines)
        if self._torn:
            data = b"\n" + data
        written, failure = self._write(data)
        self._settle(written - self._torn if written else 0, failure, started=written > 0)

    def _stay_in_place(self) -> None:
        """If the file was deleted, go on in a new one: a deleted file takes lines without an error, and they
        are lost. Raises OSError."""
        mine = os.fstat(self._fd)
        if mine.st_nlink or self._may_block or not isinstance(self._target, str) or self._target == "-":
            return
        before = self._fd
        self._open()
        os.close(before)
        if not os.path.samestat(mine, os.fstat(self._fd)):
            self._torn = False
            notice("log", f"the decision log {self._target} was deleted; keyfence goes on in a new file")

    def _write(self, data: bytes) -> tuple[int, OSError | None]:
        view = memoryview(data)
        written = 0
        try:
            while written < len(view):
                chunk = view[written:]
                if self._may_block:
                    if not self._poll.poll(0):
                        break
                    chunk = chunk[:PIPE_CHUNK]
                written += os.write(self._fd, chunk)
        except BlockingIOError:
            pass
        except OSError as failure:
            return written, failure
        return written, None

    def _settle(self, written: int, failure: OSError | None, *, started: bool) -> None:
        """Remove the lines that were written; lose the rest if the write failed."""
        done = 0
        while done < len(self._lines) and written >= len(self._lines[done].data):
            written -= len(self._lines[done].data)
            self._size -= len(self._lines[done].data)
            self._counters.log_lines += 1
            done += 1
        rest = self._lines[done:]
        if failure is not None:
            self._torn = written > 0 or (self._torn and not started)
            self._lose(rest)
            self._warn(failure)
            rest = []
            self._size = 0
        else:
            self._torn = False if started else self._torn
            if written:  # a pipe took a part of a line, and gets the other part next time
                rest[0] = rest[0]._replace(data=rest[0].data[written:])
                self._size -= written
        self._lines = rest

    def _lose(self, lines: list[_Line]) -> None:
        for line in lines:
            self._lost += line.decisions + line.dropped
            self._counters.log_dropped += line.decisions
            self._counters.log_write_failures += 1

    def _warn(self, failure: OSError) -> None:
        if not self._warned:
            self._warned = True
            name = "standard output" if self._target == "-" else str(self._target)
            warn(
                f"cannot write the decision log to {name}: {failure.strerror or failure}; "
                "lines are being lost and counted (keyfence_log_write_failures_total)"
            )

    def reopen(self) -> None:
        """Open the file again by its name, after logrotate has moved it. If that fails, the old one stays in
        use."""
        self.flush()
        self._warned = False
        if self._target == "-" or isinstance(self._target, int):
            return
        before = self._fd
        try:
            self._open()
        except OSError as failure:
            self._warn(failure)
            return
        self._torn = False
        if before >= 0:
            os.close(before)

    def close(self) -> None:
        self.flush()
        self._lose(self._lines)
        self._lines = []
        self._size = 0
        if self._fd > 1:
            os.close(self._fd)
        self._fd = -1
