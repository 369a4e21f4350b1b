"""Lines for operators while keyfence runs, each with its time.

Rule: the number of lines is bounded, and the next line says how many were left out. A repeated kind gets one
line a minute. Each change of a state gets a line, and the last state is always printed. keyfence never waits
for a reader.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import sys
import threading
import time
from typing import Literal, TextIO

from keyfence.policy.units import counted

INTERVAL_SECONDS = 60.0
MAX_KINDS = 1000  # kinds come from code and configuration; this guards against mistakes
MAX_CHANGES = 10  # lines of one thing within the interval
MAX_WAITING = 1 << 18  # bytes of lines that nobody has read yet
# A write of this size to a pipe that polls as writable cannot block (POSIX: PIPE_BUF is 512 at least, 4096 on
# Linux).
PIPE_CHUNK = min(select.PIPE_BUF, 4096)

_kinds: dict[str, tuple[float, int]] = {}  # when it was last printed, and how many were left out since


def stamped(text: str) -> str:
    """A line with keyfence's name and the time before it, without a newline."""
    return f"keyfence: {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}"


class _Output:
    """Standard output or standard error. What a pipe or terminal does not take at once waits here, and no
    client waits for it."""

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self._name = name
        self._waiting = bytearray()
        self._left_out = 0
        self._lock = threading.Lock()

    def print(self, text: str) -> None:
        """Write a line. A stream that is closed, or on a full disk, is ignored: keyfence goes on."""
        with contextlib.suppress(OSError, ValueError), self._lock:
            self._flush()
            self._add(text)
            self._flush()

    def flush(self) -> None:
        """Write what waits, as far as somebody reads it."""
        with contextlib.suppress(OSError, ValueError), self._lock:
            self._flush()

    def _add(self, text: str) -> None:
        line = f"{stamped(text)}\n".encode("utf-8", "backslashreplace")
        if len(self._waiting) + len(line) > MAX_WAITING and self._waiting:
            self._left_out += 1
            return
        if self._left_out:
            left_out, self._left_out = counted(self._left_out, "line"), 0
            self._waiting += f"{stamped(f'{left_out} before this one: nobody has read them')}\n".encode()
        self._waiting += line

    def _flush(self) -> None:
        if not self._waiting:
            return
        stream: TextIO | None = getattr(sys, self._name)
        if stream is None:  # keyfence was started without it
            self._waiting.clear()
            return
        try:
            fd = stream.fileno()
        except (AttributeError, OSError, ValueError):  # it is closed, or not a file
            text, self._waiting = self._waiting.decode("utf-8", "replace"), bytearray()
            stream.write(text)
            stream.flush()
            return
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while self._waiting and poll.poll(0):
            chunk = self._waiting[:PIPE_CHUNK]
            chunk = chunk[: chunk.rfind(b"\n") + 1 or PIPE_CHUNK]  # whole lines, since others write there too
            try:
                written = os.write(fd, chunk)
            except BlockingIOError:
                return
            except OSError:
                self._waiting.clear()
                raise
            del self._waiting[:written]


_stdout, _stderr = _Output("stdout"), _Output("stderr")


def warn(text: str) -> None:
    """Print a line on standard error."""
    _stderr.print(text)


def tell(text: str) -> None:
    """Print a line on standard output."""
    _stdout.print(text)


def print_waiting() -> None:
    """Print the lines that wait. Called about each second."""
    _stdout.flush()
    _stderr.flush()


def notice(kind: str, text: str) -> None:
    """Print a line, unless one of this kind was printed within the last minute."""
    now = time.monotonic()
    last, left_out = _kinds.get(kind, (-INTERVAL_SECONDS, 0))
    if now - last < INTERVAL_SECONDS:
        _kinds[kind] = last, left_out + 1
        return
    if kind in _kinds or len(_kinds) < MAX_KINDS:
        _kinds[kind] = now, 0
    more = f" (and {left_out} more since the last line about this)" if left_out else ""
    warn(f"{text}{more}")


class Changes:
    """The changes of one state. Beyond MAX_CHANGES within the interval they wait for `tick`, which prints the
    last change and how many came before it."""

    def __init__(self) -> None:
        self._printed: collections.deque[float] = collections.deque(maxlen=MAX_CHANGES)
        self._waiting = ""
        self._left_out = 0

    def add(self, text: str) -> None:
        """The state has changed; `text` says to what."""
        self._left_out += bool(self._waiting)
        self._waiting = text
        self.tick()

    def tick(self) -> None:
        """Print the change that waits, once it is allowed. Called about each second."""
        now = time.monotonic()
        if not self._waiting or (
            len(self._printed) == MAX_CHANGES and now - self._printed[0] < INTERVAL_SECONDS
        ):
            return
        self._printed.append(now)
        more = f" ({self._left_out} changes before it were left out)" if self._left_out else ""
        warn(f"{self._waiting}{more}")
        self._waiting, self._left_out = "", 0


def elapsed(seconds: float) -> str:
    """A time span for people: `0.4 s`, `15 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


_reported = 0


def report_fault(exc: Exception) -> None:
    """Print an internal error for the operator. Only the first ones are printed; the counters have them
    all."""
    global _reported  # noqa: PLW0603 - one stream, one count
    _reported += 1
    if _reported <= 20:
        import traceback

        warn(f"internal error, please report it:\n{''.join(traceback.format_exception(exc)).rstrip()}")
