"""Credentials of this machine: a file, a variable of the environment, a command.

Rule: a secret is in no argument and no message. What a command writes as its error is shown to operators
only, bounded, and only if it holds nothing that the command has printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import stat
import time
from pathlib import Path

from .model import Credentials, NoCredentials, Source
from .text import MAX_BYTES, read_text

_PIECE = re.compile(rb"[^\s\"',:{}=]{4,}")


@dataclasses.dataclass(frozen=True, slots=True)
class FromFile(Source):
    """A file that is read again when it changes."""

    path: str

    @property
    def shown(self) -> str:
        return f"file {self.path}"

    async def fetch(self, seconds: float) -> Credentials:
        async with asyncio.timeout(seconds):
            return await asyncio.to_thread(self._read)

    def _read(self) -> Credentials:
        try:
            found = os.stat(self.path)
            if not stat.S_ISREG(found.st_mode):  # a pipe would wait for a writer
                raise NoCredentials(f"{self.path} is not a regular file; name one")
            with Path(self.path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as exc:
            raise NoCredentials(f"{self.path} cannot be read: {exc.strerror}") from None
        try:
            return read_text(data, self.username, found.st_mtime)
        except NoCredentials as exc:
            raise NoCredentials(f"{self.path} {exc}") from None

    def mark(self) -> object:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size


@dataclasses.dataclass(frozen=True, slots=True)
class FromEnvironment(Source):
    """A variable of keyfence's environment."""

    name: str

    @property
    def shown(self) -> str:
        return f"variable {self.name}"

    async def fetch(self, seconds: float) -> Credentials:  # noqa: ARG002 - it is there at once
        try:
            return read_text(os.fsencode(os.environ.get(self.name, "")), self.username, time.time())
        except NoCredentials as exc:
            raise NoCredentials(f"the variable {self.name} {exc}") from None


@dataclasses.dataclass(frozen=True, slots=True)
class FromCommand(Source):
    """A command that prints credentials. It gets keyfence's environment, and no input."""

    argv: tuple[str, ...]

    @property
    def shown(self) -> str:
        return f"command {self.argv[0]}"

    async def fetch(self, seconds: float) -> Credentials:
        name = f"the command {self.argv[0]!r}"
        try:
            async with asyncio.timeout(seconds):
                status, out, error = await self._run()
        except TimeoutError:
            raise NoCredentials(f"{name} has not ended within {seconds:g} s, and was killed") from None
        except OSError as exc:
            raise NoCredentials(f"{name} cannot be run: {exc.strerror}") from None
        if status:
            how = f"status {status}" if status > 0 else f"signal {-status}"
            raise NoCredentials(
                f"{name} ended with {how}; run it by hand as keyfence's user", _detail(out, error)
            )
        try:
            return read_text(out, self.username, time.time())
        except NoCredentials as exc:
            raise NoCredentials(f"{name} {exc}") from None

    async def _run(self) -> tuple[int, bytes, bytes]:
        """The command's status, output and error, both bounded."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self.argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.ensure_future(_bounded(process.stderr))
        try:
            out = await _bounded(process.stdout)
            if len(out) > MAX_BYTES:
                return 0, out, b""
            return await process.wait(), out, await reading
        finally:
            reading.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it has started too
                await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # a grandchild may hold the pipes


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    """What a stream has, up to one byte more than is allowed."""
    found = bytearray()
    while len(found) <= MAX_BYTES and (piece := await stream.read(MAX_BYTES + 1 - len(found))):
        found += piece
    return bytes(found)


def _detail(out: bytes, error: bytes) -> str:
    """The last line of a command's error; "" if it holds something that the command has printed."""
    pieces = _PIECE.findall(out) or [out.strip()]
    if out.strip() and any(piece in error for piece in pieces):
        return ""
    lines = error.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
