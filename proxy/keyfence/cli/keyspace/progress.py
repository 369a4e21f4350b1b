"""Progress of long work: a bar on a terminal, a line now and then elsewhere; and a clean end at Ctrl-C.

Rule: progress goes to standard error, so that standard output has the result and nothing else.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from keyfence.audit.checkpoint import Checkpoint
from keyfence.audit.scan import Interrupted
from keyfence.audit.servers.links import LinkError
from keyfence.cli.terminal.output import fail, say
from keyfence.findings.spans import span_text
from keyfence.policy.units import counted

LINE_SECONDS = 10.0  # between two lines where there is no terminal
BAR_SECONDS = 0.1
Watcher = Callable[[int, int], None]


@contextlib.contextmanager
def watching(what: str) -> Iterator[Watcher]:
    """A function that shows how many of all things are done. `what` names the things: keys."""
    if not sys.stderr.isatty():
        yield _Lines(what).show
        return
    columns = (
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,} of {task.total:,} " + what),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, emoji=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=0)
        yield lambda done, total: bar.update(task, completed=done, total=max(total, done))


class _Lines:
    """Progress as lines."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._last = time.monotonic()
        self._first: int | None = None

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        rate = (done - self._first) / (now - self._began)
        left = f", {span_text((total - done) / rate)} left" if rate and total > done else ""
        say(f"keyfence: {done:,} of {max(total, done):,} {self._what}, {rate:,.0f}/s{left}", err=True)


@contextlib.contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """While the body runs, the first SIGINT or SIGTERM calls `stop`; a second one ends the program."""
    before: dict[int, Any] = {}

    def told(number: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[int(number)] = signal.signal(number, told)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def interruptible(
    stop: Callable[[], None], checkpoint: Checkpoint, progress: Callable[[], tuple[int, int]]
) -> Iterator[None]:
    """While the body works on keys, a signal calls `stop`. Interrupted work ends the program and says how far
    it came: `progress` returns the keys that are done, and all keys. Raises LinkError, with how to go on."""
    kept = f"; --resume {checkpoint.path} goes on from here" if checkpoint.path else ""
    try:
        with stopping(stop):
            yield
    except Interrupted:
        done, total = progress()
        fail(f"interrupted after {done:,} of {counted(total, 'key')}{kept}", 130)
    except LinkError as exc:
        raise LinkError(f"{exc}{kept}") from None
