"""Raw connections to live servers: argv in, reply out, without a client library's interpretation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ResponseError

from tests.servers import ServerBinary, all_server_binaries, running_redis


class Live:
    """A server and one connection to it."""

    def __init__(self, path: str, version: str) -> None:
        self.version = version
        self.connection = UnixDomainSocketConnection(path=path, protocol=2, socket_timeout=30)

    def __call__(self, *argv: bytes | str | int) -> Any:
        """The reply. An error is returned, not raised."""
        self.connection.send_packed_command(self.connection.pack_command(*argv))
        try:
            return self.connection.read_response()
        except ResponseError as error:
            return error

    def transacted(self, argv: list[bytes]) -> Any:
        """The reply of a command that may block. In a transaction it does not."""
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


@pytest.fixture(scope="session")
def _live_of() -> Iterator[Callable[[ServerBinary], Live]]:
    """Starts each server when it is first used."""
    with ExitStack() as running:

        @cache
        def live_of(binary: ServerBinary) -> Live:
            server = running.enter_context(running_redis(binary))
            live = Live(str(server.socket_path), binary.version)
            running.callback(live.connection.disconnect)
            return live

        yield live_of


def _each(binaries: Iterable[ServerBinary]) -> list[object]:
    return [pytest.param(binary, id=binary.id) for binary in binaries]


OLD = [binary for binary in all_server_binaries() if binary.version.startswith("6")]
NEWER = [binary for binary in all_server_binaries() if binary not in OLD]


@pytest.fixture(params=_each(NEWER))
def newer(request: pytest.FixtureRequest, _live_of: Callable[[ServerBinary], Live]) -> Live:
    """Each server at hand that has key specs, COMMAND GETKEYSANDFLAGS and ACL DRYRUN."""
    return _live_of(request.param)


@pytest.fixture(params=_each(OLD))
def redis6(request: pytest.FixtureRequest, _live_of: Callable[[ServerBinary], Live]) -> Live:
    """Redis 6.2."""
    return _live_of(request.param)


@pytest.fixture(params=_each(all_server_binaries()))
def redis(request: pytest.FixtureRequest, _live_of: Callable[[ServerBinary], Live]) -> Live:
    """Each server at hand."""
    return _live_of(request.param)
