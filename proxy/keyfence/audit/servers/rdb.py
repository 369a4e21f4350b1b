"""An RDB file, loaded into a redis-server of keyfence's own.

Rule: the file is read and never written: the server saves nothing, and ends with this process. None of the
file's code runs, and loading ends within a time that depends on the file's size.

A server runs the code of a function library when it loads it. Servers write libraries before the first key.
So a file with libraries there is copied without them. A library in any other place meets the time limit.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from keyfence.upstream.address import parse_upstream
from keyfence.upstream.embedded import SERVERS, EmbeddedRedis, EmbeddedRedisError, find_server

from .links import Endpoint, Link
from .nodes import info_of

# A server loads some 100 MB a second. The limit is for a slow disk and a busy machine.
LEAST_SECONDS = 60.0
BYTES_PER_SECOND = 5_000_000
_MAGIC, _VALKEYS_MAGIC = b"REDIS", b"VALKEY"  # the latter from Valkey 9 on
_HEADER = 9  # bytes: either magic, and the version in the digits that are left
# Opcodes of the file format (`src/rdb.h`): a fact about the file, and the code of a function library.
_AUX, _FUNCTION = 250, 245
_LONGEST = 1 << 40  # bytes of a string; more than any file has


@contextlib.contextmanager
def loaded(path: str, binary: Path | None = None) -> Iterator[Endpoint]:
    """A server that holds the keys of a file. Raises EmbeddedRedisError."""
    file = Path(path).absolute()
    try:
        with file.open("rb") as opened:
            header = opened.read(_HEADER)
            is_rdb = header.startswith((_MAGIC, _VALKEYS_MAGIC))
            libraries = _libraries(opened) if is_rdb else []
        size = file.stat().st_size
    except OSError as exc:
        raise EmbeddedRedisError(f"{path} cannot be read: {(exc.strerror or str(exc)).lower()}") from None
    if not is_rdb:
        raise EmbeddedRedisError(f"{path} is not an RDB file; SAVE and redis-cli --rdb write such files")
    if header.startswith(_VALKEYS_MAGIC):
        binary = binary or find_server(*reversed(SERVERS))
    seconds = LEAST_SECONDS + size / BYTES_PER_SECOND
    with contextlib.ExitStack() as stack:
        arguments = []
        if libraries:
            file = _copied(file, libraries, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            arguments += ["--rdbchecksum", "no"]  # the sum at the end of the file is that of the original
        arguments += ["--dir", str(file.parent), "--dbfilename", file.name]
        server = EmbeddedRedis(binary, arguments, start_seconds=seconds, stop_seconds=1.0)
        deadline = time.monotonic() + seconds
        try:
            stack.enter_context(server)
        except EmbeddedRedisError as exc:
            if "Wrong signature" in str(exc):
                raise EmbeddedRedisError(
                    f"{path} is a file of Valkey, which {binary} does not read: install valkey-server"
                ) from None
            if time.monotonic() < deadline:
                raise
            raise EmbeddedRedisError(
                f"{path} is not loaded within {seconds:.0f} s, the limit for its size: its code may not end. "
                "Load it into a Redis of your own, and audit that one"
            ) from None
        yield Endpoint(parse_upstream(server.url))


def _libraries(file: BinaryIO) -> list[range]:
    """Returns where the function libraries before the first key are, with their opcodes."""
    found: list[range] = []
    at = file.seek(_HEADER)
    while opcode := file.read(1):
        if opcode[0] not in (_AUX, _FUNCTION):
            break
        for _ in range(2 if opcode[0] == _AUX else 1):
            if not _skip_string(file):
                return found
        if opcode[0] == _FUNCTION:
            found.append(range(at, file.tell()))
        at = file.tell()
    return found


def _skip_string(file: BinaryIO) -> bool:
    """Skips a string (`src/rdb.c`, rdbGenericLoadStringObject). Returns whether it is one."""
    first = file.read(1)
    if first[:1] >= b"\xc0":  # an integer of 1, 2 or 4 bytes, or compressed text
        kind = first[0] & 0x3F
        if kind < 3:
            return file.seek(1 << kind, 1) > 0
        size = _length(file, file.read(1)) if kind == 3 else -1
        if size < 0 or _length(file, file.read(1)) < 0:
            return False
    else:
        size = _length(file, first)
    return 0 <= size < _LONGEST and file.seek(size, 1) > 0


def _length(file: BinaryIO, first: bytes) -> int:
    """Returns a length that begins with this byte (`src/rdb.c`, rdbLoadLenByRef); -1 if it is none."""
    if not first:
        return -1
    kind, low = first[0] >> 6, first[0] & 0x3F
    if kind == 0:
        return low
    if kind == 1:
        return low << 8 | int.from_bytes(file.read(1), "big")
    if first[0] in (0x80, 0x81):
        return int.from_bytes(file.read(8 if first[0] == 0x81 else 4), "big")
    return -1


def _copied(file: Path, without: list[range], folder: Path) -> Path:
    """Returns a copy of a file without some of its bytes. Raises EmbeddedRedisError."""
    copy = folder / "copy.rdb"
    try:
        with file.open("rb") as source, copy.open("wb") as target:
            for part in without:
                target.write(source.read(part.start - source.tell()))
                source.seek(part.stop)
            shutil.copyfileobj(source, target, 1 << 20)
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        raise EmbeddedRedisError(
            f"{file} has function libraries, and cannot be copied without them to {folder}: {why}; "
            "make room there, or set TMPDIR to a folder that has room"
        ) from None
    return copy


def expired_keys(endpoint: Endpoint) -> int:
    """How many keys of the file had expired when it was loaded, so that the server has left them out; 0 if it
    does not say (before Redis 7)."""
    with contextlib.closing(Link(endpoint)) as link:
        return int(info_of(link, "persistence").get("rdb_last_load_keys_expired", 0))
