"""Reads files that people wrote (policies, configurations, waivers, tests, scripts, certificates), and
replaces them.

Rule: only a regular file of bounded size is read, so that no path makes keyfence wait or run out of memory.
An error says which file it is, why keyfence cannot read it, and what to do. Within a `Reading`, each file is
read once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from typing import NamedTuple, Self

MAX_BYTES = 4 * 1024 * 1024
POLICY_ENDS = (".yaml", ".yml")
TEST_ENDS = (".test.yaml", ".test.yml")

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class Unreadable(Exception):
    """A file cannot be used. The message continues after the file's name."""


class Given(NamedTuple):
    """The content of a file that is not on this machine, or not as it is given here."""

    content: bytes
    name: str  # of its origin, which messages show in place of the path


class Seen(NamedTuple):
    """What one reading has read: where, and a hash over all that was there."""

    files: tuple[tuple[str, int], ...] = ()  # each with the limit of its size
    folders: tuple[str, ...] = ()
    digest: str = ""

    def look(self) -> str:
        """Returns the hash over what is there now. A file or folder that is missing is part of it."""
        with Reading() as reading:
            for path, limit in self.files:
                with contextlib.suppress(Unreadable):
                    read_file(path, limit)
            for folder in self.folders:
                with contextlib.suppress(OSError):
                    policy_names(folder)
        return reading.seen().digest


NOTHING_SEEN = Seen()


class Reading:
    """Reads each file once while it is entered. A second reader of a file gets the same bytes, or the same
    fault. So one content of each file is used. A reading within another one reads through that one, and knows
    which files were read since it began."""

    def __init__(self, given: Mapping[str, Given] | None = None) -> None:
        """`given`: contents that stand for files, by path."""
        self._given = given or {}
        self._files: dict[tuple[str, int], bytes | Unreadable] = {}
        self._folders: dict[str, list[str] | None] = {}  # None: it cannot be read
        self._token: Token[Reading | None] | None = None
        self._outer: Reading | None = None

    def __enter__(self) -> Self:
        self._outer = _reading.get()
        self._token = _reading.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _reading.reset(self._token)

    def seen(self) -> Seen:
        """Returns what was read on this machine so far."""
        files, folders = sorted(self._files), sorted(self._folders)
        total = hashlib.sha256()
        for key in files:
            found = self._files[key]
            content = b"" if isinstance(found, Unreadable) else hashlib.sha256(found).digest()
            total.update(repr((key, content)).encode())
        for folder in folders:
            total.update(repr((folder, self._folders[folder])).encode())
        return Seen(tuple(files), tuple(folders), total.hexdigest())

    def file(self, path: str, limit: int) -> bytes:
        """Returns the content of a file. Raises Unreadable."""
        if path in self._given:
            return self._given[path].content
        if (path, limit) not in self._files:
            outer = self._outer
            try:
                self._files[path, limit] = (
                    _read_now(path, limit) if outer is None else outer.file(path, limit)
                )
            except Unreadable as exc:
                self._files[path, limit] = exc
        found = self._files[path, limit]
        if isinstance(found, Unreadable):
            raise found
        return found

    def folder(self, path: str) -> list[str]:
        """Returns the names of the policy files in a folder. Raises OSError."""
        names = self._folders.setdefault(path, None)
        if names is None:
            outer = self._outer
            names = _policy_names_now(path) if outer is None else outer.folder(path)
            self._folders[path] = names
        return names

    def contents(self) -> dict[str, bytes]:
        """Returns the files that could be read so far, by path."""
        return {path: found for (path, _), found in self._files.items() if isinstance(found, bytes)}

    def name(self, path: str) -> str:
        """Returns the name of a file for messages."""
        if path in self._given:
            return self._given[path].name
        return path if self._outer is None else self._outer.name(path)


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


def read_file(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """Returns the bytes of a regular file; symbolic links are followed. Raises Unreadable."""
    reading = _reading.get()
    return _read_now(path, limit) if reading is None else reading.file(str(path), limit)


def shown_name(path: str | Path) -> str:
    """Returns the name of a file for messages: its path, unless its content came from elsewhere."""
    reading = _reading.get()
    return str(path) if reading is None else reading.name(str(path))


def policy_names(folder: str) -> list[str]:
    """Returns the names of the policy files in a folder, in order. Raises OSError."""
    reading = _reading.get()
    return _policy_names_now(folder) if reading is None else reading.folder(folder)


def _policy_names_now(folder: str) -> list[str]:
    return sorted(
        name
        for name in os.listdir(folder)
        if name.endswith(POLICY_ENDS) and not name.endswith(TEST_ENDS) and not name.startswith(".")
    )


def _read_now(path: str | Path, limit: int) -> bytes:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return _read(fd, limit)
        finally:
            os.close(fd)
    except OSError as exc:
        raise Unreadable(f"cannot be read: {exc.strerror}") from None
    except ValueError as exc:  # a NUL byte in the name
        raise Unreadable(f"cannot be read: {exc}") from None


def _read(fd: int, limit: int) -> bytes:
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise Unreadable(f"cannot be read: it is {kind}; name a regular file")
    found = bytearray()
    while piece := os.read(fd, limit + 1 - len(found)):  # the reported size may be wrong, as under /proc
        found += piece
        if len(found) > limit:
            raise Unreadable(f"cannot be read: it has more than {limit} bytes; name a smaller file")
    return bytes(found)


@contextlib.contextmanager
def replacing(path: Path, text: str) -> Iterator[str]:
    """Writes a text beside a file, and puts it in the file's place after the body. If that fails or raises,
    the file stays as it is. Yields the name of the new file, for its mode and owner. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield name
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
