"""Starts further Python processes of keyfence.

Rule: the child runs the same interpreter and the same packages as its parent. It is a fresh interpreter and
not a fork: a fork of a process with an event loop and threads inherits the state of both. It gets its orders
through descriptors, so that its arguments hold no secret.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from . import garbage

PR_SET_PDEATHSIG = 1  # prctl(2)
_HELD = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}


def start_python(
    module: str,
    *arguments: str,
    pass_fds: Sequence[int] = (),
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] | None = None,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `main()` of a module. Raises OSError.

    The signals that keyfence handles stay blocked in the child until it calls `admit_signals`.
    """
    path = [entry or os.getcwd() for entry in sys.path]
    code = (
        f"import sys; sys.path[:] = {path!r}\nfrom {garbage.__name__} import importing\n"
        f"with importing(): from {module} import main\nmain()"
    )
    with _signals_held():
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            pass_fds=pass_fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=own_session,
        )


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """A signal to the whole process group must not end a child that has no handlers yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def admit_signals() -> None:
    """In the child: unblock the signals, once it has handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def end_with_parent(parent: int) -> None:
    """In the child: get SIGTERM when the parent (its process id) ends for any reason. Linux only.

    Linux watches the *thread* that started the child, so that thread must last as long as the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)
