"""The decision log of several workers: one process writes it.

Rule: a line is written as the worker worded it, whole or not at all; what can't be written is added to
`dropped` of the next line, so that the sum of 1 + merged + dropped stays exact.

Each worker writes its lines into a pipe (`Sink` with a descriptor), which holds them also when the worker
dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from .counters import Counters
from .decision_log import Sink

MAX_LINE = 1 << 20  # bytes; a worker's lines have a few thousand at most


class LogRelay:
    """Writes the lines of all workers to one file, or drops them while there is none."""

    def __init__(self, counters: Counters, schedule: Callable[[Callable[[], None]], object] | None) -> None:
        self._counters = counters
        self._schedule = schedule
        self._sink: Sink | None = None

    def write_to(self, target: str) -> None:
        """Use this file, "-" for standard output or "" for none, from now on. Raises OSError, and changes
        nothing then."""
        sink = Sink(target, self._counters, self._schedule) if target else None
        self.close()
        self._sink = sink

    def take(self, line: bytes) -> None:
        """One line of a worker, with its newline."""
        if self._sink is None:
            return
        fields = json.loads(line)
        lost = self._sink.take_lost()
        if lost:
            fields["dropped"] += lost
            line = json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
        self._sink.write(line, 1 + fields["merged"], fields["dropped"])

    def flush(self) -> None:
        """To be called each second: what a pipe or terminal wouldn't take is tried again."""
        if self._sink is not None:
            self._sink.flush()

    def reopen(self) -> None:
        """Open the file anew, after it was moved."""
        if self._sink is not None:
            self._sink.reopen()

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None


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
                    continue  # the end of a line that a worker was killed over
        if len(self._rest) > MAX_LINE:
            self._rest = b""

    def connection_lost(self, _exc: Exception | None) -> None:
        self.ended.set()
