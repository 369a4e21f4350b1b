"""The decision log of several workers: the parent writes it.

Rule: a line is written as the worker made it, completely or not at all. Decisions whose line cannot be
written are added to `dropped` of the next line, so that the sum of 1 + merged + dropped stays exact.

Each worker writes its lines into a pipe (`LogFile` with a descriptor), which keeps them even if the worker
dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from .counters import Counters
from .log_file import LogFile

MAX_LINE = 1 << 20  # bytes; a worker's lines have a few thousand at most


class LogRelay:
    """Writes the lines of all workers to one file, or drops them while there is none."""

    def __init__(self, counters: Counters, schedule: Callable[[Callable[[], None]], object] | None) -> None:
        self._counters = counters
        self._schedule = schedule
        self._file: LogFile | None = None

    def write_to(self, target: str) -> None:
        """Use this file, "-" for standard output or "" for none, from now on. Raises OSError, and changes
        nothing then."""
        file = LogFile(target, self._counters, self._schedule) if target else None
        self.close()
        self._file = file

    def take(self, line: bytes) -> None:
        """One line of a worker, with its newline."""
        if self._file is None:
            return
        fields = json.loads(line)
        lost = self._file.take_lost()
        if lost:
            fields["dropped"] += lost
            line = json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
        self._file.write(line, 1 + fields["merged"], fields["dropped"])

    def flush(self) -> None:
        """Called each second: write again what a pipe or terminal did not take."""
        if self._file is not None:
            self._file.flush()

    def reopen(self) -> None:
        """Open the file again, after it was moved."""
        if self._file is not None:
            self._file.reopen()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class LogPipe(asyncio.Protocol):
    """The parent's end of one worker's pipe. `ended` is set once the worker has written its last line."""

    def __init__(self, relay: LogRelay) -> None:
        self.ended = asyncio.Event()
        self._relay = relay
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line:
                try:
                    self._relay.take(line + b"\n")
                except (ValueError, KeyError, TypeError):
                    continue  # the rest of a line whose worker was killed while writing it
        if len(self._rest) > MAX_LINE:
            self._rest = b""

    def connection_lost(self, _exc: Exception | None) -> None:
        self.ended.set()
