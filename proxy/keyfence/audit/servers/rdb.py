"""An RDB file, loaded into a redis-server of keyfence's own.

Rule: the file is read and never written: the server saves nothing, and ends with this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from keyfence.upstream.embedded import EmbeddedRedis, EmbeddedRedisError
from keyfence.upstream.url import parse_upstream

from .links import Endpoint, Link

LOAD_SECONDS = 3600.0  # a file of many gigabytes takes minutes
_MAGIC = b"REDIS"


@contextlib.contextmanager
def loaded(path: str, binary: Path | None = None) -> Iterator[Endpoint]:
    """A server that holds the keys of a file. Raises EmbeddedRedisError."""
    file = Path(path).absolute()
    try:
        with file.open("rb") as opened:
            is_rdb = opened.read(len(_MAGIC)) == _MAGIC
    except OSError as exc:
        raise EmbeddedRedisError(f"{path} cannot be read: {(exc.strerror or str(exc)).lower()}") from None
    if not is_rdb:
        raise EmbeddedRedisError(f"{path} is not an RDB file; SAVE and redis-cli --rdb write such files")
    arguments = ["--dir", str(file.parent), "--dbfilename", file.name]
    with EmbeddedRedis(binary, arguments, start_seconds=LOAD_SECONDS) as server:
        yield Endpoint(parse_upstream(server.url))


def expired_keys(endpoint: Endpoint) -> int:
    """How many keys of the file had expired when it was loaded, so that the server has left them out; 0 if it
    does not say (before Redis 7)."""
    link = Link(endpoint)
    try:
        for line in link.one("INFO", "persistence").decode("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name == "rdb_last_load_keys_expired":
                return int(value)
        return 0
    finally:
        link.close()
