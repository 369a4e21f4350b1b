"""Raw connections to live servers: argv in, reply out, no client library's opinion in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ResponseError

from tests.servers import running_redis, server_binaries


class Live:
    """A server and one connection to it."""

    def __init__(self, path: str, version: str) -> None:
        self.version = version
        self.connection = UnixDomainSocketConnection(path=path, protocol=2, socket_timeout=30)

    def __call__(self, *argv: bytes | str | int) -> Any:
        """The reply; an error is returned, not raised."""
        self.connection.send_packed_command(self.connection.pack_command(*argv))
        try:
            return self.connection.read_response()
        except ResponseError as error:
            return error

    def transacted(self, argv: list[bytes]) -> Any:
        """The reply of a command that may block, which it doesn't in a transaction."""
        self("MULTI")
        self(*argv)
        reply = self("EXEC")
        return reply[0] if isinstance(reply, list) else reply

    def names(self) -> set[bytes]:
        """Upper-case names of the commands and subcommands (`XGROUP CREATE`) that this server has."""

        def walk(rows: list[Any]) -> Iterator[bytes]:
            for row in rows:
                yield row[0].upper().replace(b"|", b" ")
                yield from walk(row[9] if len(row) > 9 else [])

        return set(walk(self("COMMAND")))


def _live(major: int) -> Iterator[Live]:
    binary = next((b for b in server_binaries() if int(b.version.split(".")[0]) == major), None)
    if binary is None:
        pytest.skip(f"no redis-server {major}.x here")
    with running_redis(binary) as server:
        live = Live(str(server.socket_path), binary.version)
        try:
            yield live
        finally:
            live.connection.disconnect()


@pytest.fixture(scope="session")
def redis7() -> Iterator[Live]:
    """Redis 7: it has key specs, COMMAND GETKEYSANDFLAGS and ACL DRYRUN."""
    yield from _live(7)


@pytest.fixture(scope="session")
def redis6() -> Iterator[Live]:
    """Redis 6.2."""
    yield from _live(6)


@pytest.fixture(scope="session", params=[6, 7], ids=["redis-6", "redis-7"])
def redis(request: pytest.FixtureRequest) -> Live:
    """Each of the two."""
    live: Live = request.getfixturevalue(f"redis{request.param}")
    return live
