"""Connections to the Redis that is audited: requests in pipelines, replies as values.

Rule: everything that can be wrong with a connection is one LinkError with one sentence, without the password.
A reply that is an error is a value, because each key has an answer of its own.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Literal

import hiredis
import redis
from redis.exceptions import AskError, MovedError, RedisError, ResponseError, TryAgainError

from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.handshake import describe

Word = bytes | str | int
Request = tuple[Word, ...]

_pack: Any = hiredis.pack_command  # redis-py's own way takes twice as long

# Error replies of a cluster's server about a key whose hash slot moves. redis-py takes the first word off.
SLOT_MOVES = (MovedError, AskError, TryAgainError)

READ_SECONDS = 60.0  # a reply that takes longer does not come


class LinkError(Exception):
    """Redis cannot be asked; the message is one sentence for the user."""


class CannotAsk(Exception):
    """Redis refuses TYPE, PTTL or SCAN; the message is one sentence for the user."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """How to connect: the address and login of Redis, and its TLS."""

    address: UpstreamAddress
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0

    def at(self, host: str, port: int) -> Endpoint:
        """The same login at another server of the same Redis."""
        kind: Literal["tcp", "tls"] = "tls" if self.address.kind == "tls" else "tcp"
        scheme = "rediss" if kind == "tls" else "redis"
        shown = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        name = self.address.server_name or (self.address.host if kind == "tls" else "")
        address = dataclasses.replace(
            self.address, kind=kind, host=host, port=port, path="", database=0, shown=shown, server_name=name
        )
        return dataclasses.replace(self, address=address)


class Link:
    """One connection. Used from one thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Connects and logs in. Raises LinkError."""
        self.endpoint = endpoint
        self.shown = endpoint.address.shown
        self._connection = _connection(endpoint)
        try:
            self._connection.connect()
        except (RedisError, OSError) as exc:
            raise LinkError(f"{self.shown} cannot be reached: {_reason(exc)}") from None
        self.attempt("CLIENT", "SETNAME", f"keyfence-audit-{os.getpid()}")

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """The reply to each request, in order; an error reply is a ResponseError. Raises LinkError."""
        connection = self._connection
        try:
            connection.send_packed_command([b"".join(map(_pack, requests))])
            return [self._reply() for _ in requests]
        except (RedisError, OSError) as exc:
            raise LinkError(f"{self.shown} does not answer any more: {_reason(exc)}") from None

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as exc:
            return exc

    def one(self, *request: Word) -> Any:
        """The reply to a request that must succeed. Raises LinkError."""
        reply = self.ask([request])[0]
        if isinstance(reply, ResponseError):
            raise LinkError(f"{self.shown} refuses {request[0]!s}: {reply}")
        return reply

    def attempt(self, *request: Word) -> Any:
        """The reply to a request that may fail: None if it does."""
        reply = self.ask([request])[0]
        return None if isinstance(reply, ResponseError) else reply

    def scan(self, cursor: bytes | str, count: int) -> tuple[bytes, Sequence[bytes]]:
        """The next cursor and keys of a SCAN. Raises LinkError, CannotAsk."""
        reply = self.ask([(b"SCAN", cursor, b"COUNT", count)])[0]
        if isinstance(reply, ResponseError):
            raise CannotAsk(f"{self.shown} refuses SCAN: {reply}")
        return reply[0], reply[1]

    def close(self) -> None:
        self._connection.disconnect()


class _TlsConnection(redis.Connection):
    """Over TLS, with a context that keyfence has made and checked."""

    def __init__(self, *, context: ssl.SSLContext, server_name: str, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._context = context
        self._server_name = server_name

    def _connect(self) -> socket.socket:
        sock: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        try:
            sock.settimeout(self.socket_connect_timeout)  # a server without TLS may wait for more
            secured = self._context.wrap_socket(sock, server_hostname=self._server_name)
            secured.settimeout(self.socket_timeout)
            return secured
        except BaseException:
            sock.close()
            raise


def _connection(endpoint: Endpoint) -> Any:
    address = endpoint.address
    options: dict[str, Any] = {
        "db": address.database,
        "username": address.username or None,
        "password": address.password or None,
        "socket_timeout": READ_SECONDS,
        "socket_connect_timeout": endpoint.connect_timeout,
        "protocol": 2,
        "retry_on_timeout": False,
    }
    if address.kind == "unix":
        unix: Any = redis.UnixDomainSocketConnection
        return unix(path=address.path, **options)
    options |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    if endpoint.tls is None:
        return redis.Connection(**options)  # type: ignore[no-untyped-call]
    return _TlsConnection(context=endpoint.tls, server_name=address.server_name or address.host, **options)


def _reason(exc: BaseException) -> str:
    """Why a connection failed. redis-py wraps the system's errors in its own words."""
    cause = exc.__cause__ or exc.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return describe(cause)
    text = describe(exc) if isinstance(exc, OSError) else " ".join(str(exc).split())
    return text.rstrip(".") or type(exc).__name__
