"""Reads files that people wrote (policies, configurations, waivers, tests, scripts, certificates), and
replaces them.

Rule: only a regular file of bounded size is read, so that no path makes keyfence wait or run out of memory.
An error says which file it is, why keyfence cannot read it, and what to do.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class Unreadable(Exception):
    """A file cannot be used. The message continues after the file's name."""


def read_file(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """Returns the bytes of a regular file; symbolic links are followed. Raises Unreadable."""
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
