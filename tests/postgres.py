"""A real PostgreSQL for tests: Debian's package, in a directory of its own, on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.servers import PATIENCE_SECONDS

NO_POSTGRESQL = "no PostgreSQL on this machine: apt install postgresql"


@cache
def binaries() -> Path | None:
    """The directory of the newest installed server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda one: int(one.parts[-3]))
    return found[-1].parent if found else None


def _owner() -> str | None:
    """Whom the server runs as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"


class PostgreSQL:
    """A running server. It can be ended and started again, with its data."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.url = f"postgresql://keyfence@127.0.0.1:{port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1"]
        options += ["-k", str(self.folder), "-c", "fsync=off", "-c", "max_connections=40"]
        bin_ = binaries()
        assert bin_ is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(bin_ / "postgres"), *options], stdout=log, stderr=log, user=_owner(), cwd=self.folder
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        ready = [str(bin_ / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode != 0:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """End it at once, as in an outage."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast": open connections are ended
            self._process.wait(PATIENCE_SECONDS)
            self._process = None


@contextlib.contextmanager
def running_postgresql() -> Iterator[PostgreSQL]:
    """A fresh server."""
    bin_ = binaries()
    assert bin_ is not None
    folder = Path(tempfile.mkdtemp(prefix="keyfence-pg-"))
    try:
        owner = _owner()
        if owner is not None:
            shutil.chown(folder, owner)
        folder.chmod(0o700)
        subprocess.run(
            [str(bin_ / "initdb"), "-D", str(folder / "data"), "-U", "keyfence", "-A", "trust", "-N"],
            check=True,
            capture_output=True,
            user=owner,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = PostgreSQL(folder, port)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
