"""keyfence as a process that starts quickly: a fork of one that has imported everything.

Rule: a fork is as a start. It has the environment, folder, descriptors and session that it is given, no
thread, and nothing that an earlier one did. `start` says when only a new interpreter would do.

An interpreter takes most of a second of CPU to import what `keyfence run` needs, and tests start it more than
a thousand times. The process that forks (the nursery) starts once for each process of tests. It ends with it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

# What an interpreter reads when it starts, or keyfence while it is imported.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC", "KEYFENCE_PURE", "PYDANTIC", "UV_")
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
_IMPORTED = (
    "keyfence.cli.run",
    "keyfence.admin.server",
    "keyfence.web.site",
    "keyfence.findings.writer",
    "sqlalchemy.dialects.sqlite",
    "uvloop",
)
_NUMBER = 4  # bytes of a process id, and of a status
_PIECE = 32 * 1024  # bytes of a message: packets have a limit, and an environment may be large
_MOST_DESCRIPTORS = 900


class Process:
    """A forked keyfence, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, line: socket.socket, stdout: IO[str]) -> None:
        """`line` tells the process id, and the status once it has ended."""
        self.stdout = stdout
        self.returncode: int | None = None
        self._line = line
        self._lock = threading.Lock()
        self.pid = self._read_number()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self.returncode is None:
                self._line.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))
                try:
                    status = self._read_number()
                except (BlockingIOError, TimeoutError):
                    raise subprocess.TimeoutExpired("keyfence", timeout or 0.0) from None
                self.returncode = os.waitstatus_to_exitcode(status)
                self._line.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self) -> int:
        read = self._line.recv(_NUMBER)
        assert len(read) == _NUMBER, "the nursery has ended"
        return int.from_bytes(read, "little")


def start(words: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> Process | None:
    """Start `keyfence WORDS…` in a session of its own. Its stdout is text, and its stdin is empty. None: only
    a new interpreter would see what this environment changes."""
    if _at_start(environment) != _at_start(os.environ | _UNBUFFERED):
        return None
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    order = json.dumps([list(words), dict(environment), os.getcwd()]).encode()
    with theirs, open(os.devnull, "rb") as nothing:
        try:
            given = (nothing.fileno(), write, stderr.fileno(), theirs.fileno())
            _nursery(_at_start(environment)).order(order, given)
        finally:
            os.close(write)
    return Process(ours, open(read, encoding="utf-8"))


def _at_start(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pair for pair in environment.items() if pair[0].startswith(_READ_AT_START)))


class _Nursery:
    """The process that forks, as the tests' process sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd=Path(__file__).parents[1],
                env=os.environ | _UNBUFFERED,
            )

    def order(self, order: bytes, given: Sequence[int]) -> None:
        """Have a keyfence forked, with these descriptors."""
        with self._lock:
            socket.send_fds(self._orders, [len(order).to_bytes(_NUMBER, "little")], given)
            for begin in range(0, len(order), _PIECE):
                self._orders.sendall(order[begin : begin + _PIECE])


@functools.cache
def _nursery(_: object) -> _Nursery:
    """The nursery of an environment at start. One is enough, unless a test changes what is read there."""
    return _Nursery()


# -- in the nursery


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those who wait for a keyfence end by themselves
    _import()
    while received := _received(orders):
        order, given = received
        if not os.fork():
            _become_keyfence(order, given)
        for one in given:
            os.close(one)


def _import() -> None:
    from keyfence.process.serving.garbage import importing

    with importing():
        for module in _IMPORTED:
            importlib.import_module(module)


def _received(orders: socket.socket) -> tuple[list[Any], list[int]] | None:
    """The next order and its descriptors; None once the tests have ended."""
    size, given, _, _ = socket.recv_fds(orders, _NUMBER, 4)
    if not size:
        return None
    order = b""
    while len(order) < int.from_bytes(size, "little"):
        order += orders.recv(_PIECE)
    return json.loads(order), given


def _become_keyfence(order: list[Any], given: list[int]) -> None:
    """Fork once more. The child is keyfence; its parent tells how it ends."""
    pid = os.fork()
    if pid:
        _tell(pid, given)
    words, environment, folder = order
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, one in enumerate(given[:3]):
        os.dup2(one, number)
    os.closerange(3, _MOST_DESCRIPTORS)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.argv = ["keyfence", *words]
    from keyfence.cli.main import main

    main()


def _tell(pid: int, given: list[int]) -> NoReturn:
    """Tell the process id, and later the status. Hold nothing else open."""
    line = os.dup2(given[-1], _MOST_DESCRIPTORS)
    os.closerange(0, _MOST_DESCRIPTORS)
    with contextlib.suppress(OSError):
        os.write(line, pid.to_bytes(_NUMBER, "little"))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, status = os.waitpid(pid, 0)
        os.write(line, status.to_bytes(_NUMBER, "little"))
    os._exit(0)


if __name__ == "__main__":
    main()
