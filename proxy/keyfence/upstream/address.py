"""The address of Redis: what it consists of, its URL, and URLs without their secrets.

Rule: no text from this module contains a password, not even an error about an invalid URL.
"""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from typing import Literal

from keyfence.net.host_port import is_host
from keyfence.resp import encode

from .credentials.model import Source
from .own_commands import SELECT


@dataclasses.dataclass(frozen=True, slots=True)
class Sentinels:
    """The Sentinels that name the primary. They may have a login of their own."""

    hosts: tuple[tuple[str, int], ...]  # each with its port
    name: str  # of the primary, as `sentinel monitor` has it
    username: str = ""
    password: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """The address of Redis. `shown` is its text for people, without the password; it stays the same when
    Sentinels name another primary."""

    kind: Literal["tcp", "tls", "unix"]
    host: str = ""
    port: int = 6379
    path: str = ""
    username: str = ""
    password: str = dataclasses.field(default="", repr=False)
    database: int = 0
    shown: str = ""
    server_name: str = ""  # the name that its TLS certificate must have; "": the host
    sentinels: Sentinels | None = None  # who name the host and port; None: they do not change
    cluster: tuple[tuple[str, int], ...] = ()  # it is a node of the cluster that these are nodes of
    credentials: Source | None = None  # what gives username and password; None: they do not change

    def login(self) -> list[bytes]:
        """The command that logs keyfence in, if there are credentials."""
        if self.username:
            return [encode.command(b"AUTH", self.username, self.password)]
        return [encode.command(b"AUTH", self.password)] if self.password else []

    @property
    def has_login(self) -> bool:
        """Whether keyfence logs in, also if what it logs in with is not known yet."""
        return self.credentials is not None or bool(self.login())

    def without_login(self) -> UpstreamAddress:
        """The same address without credentials."""
        return dataclasses.replace(self, username="", password="", shown="", credentials=None)

    def greeting(self) -> list[bytes]:
        """The commands sent first on a connection. None may be answered with an error."""
        select = [SELECT.request(self.database)] if self.database else []
        return self.login() + select

    @property
    def selects_later(self) -> bool:
        """Whether the database may only be selectable after the client has logged in."""
        return bool(self.database) and not self.has_login


def parse_upstream(url: str) -> UpstreamAddress:
    """Parse `redis://[user:password@]host[:port][/db]`, `rediss://…` or `unix:///path[?db=n]`.

    Raises ValueError; its text never contains the password.
    """
    shown = without_password(url)
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise ValueError(f"{shown!r} is not a URL") from None
    username = urllib.parse.unquote(parts.username or "")
    password = urllib.parse.unquote(parts.password or "")
    query = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    # An unescaped character of the password may have ended its part of the URL.
    misread = ValueError(f"{shown!r}: write / ? # of a user or password as %2F %3F %23")
    if parts.scheme in ("redis", "rediss", "unix") and ("@" in parts.query or parts.fragment):
        raise misread
    if parts.scheme == "unix":
        if not parts.path or parts.hostname:
            raise ValueError(f"{shown!r} does not name a socket; write unix:///path/to/redis.sock")
        _only(query, ("db",), shown)
        return UpstreamAddress(
            "unix",
            path=urllib.parse.unquote(parts.path),
            username=username,
            password=password,
            database=_database(dict(query).get("db", "0"), shown),
            shown=shown,
        )
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError(
            f"{shown!r} is not an upstream URL; write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH"
        )
    if "@" in parts.path:
        raise misread
    if not parts.hostname or not is_host(parts.hostname):
        raise ValueError(f"{shown!r} names no host; write redis://HOST:PORT")
    _only(query, (), shown)
    database = _database(parts.path.strip("/") or "0", shown)
    kind: Literal["tcp", "tls"] = "tls" if parts.scheme == "rediss" else "tcp"
    return UpstreamAddress(
        kind, parts.hostname, _port(parts, shown), "", username, password, database, shown=shown
    )


def _port(parts: urllib.parse.SplitResult, shown: str) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the upstream's port is not a number from 1 to 65535: {shown!r}")
    return port or 6379


def _only(query: list[tuple[str, str]], known: tuple[str, ...], shown: str) -> None:
    for name, _ in query:
        if name not in known:
            raise ValueError(f"{shown!r}: there is no parameter {name!r} here")


def _database(text: str, shown: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{shown!r}: {text!r} is not a database number")
    return int(text)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OTHER_QUERY = re.compile(r"\?(?!db=\d*$).*", re.DOTALL)


def without_password(text: str) -> str:
    """The URL, or any other text, without anything that may be a password."""
    scheme = found[0] if (found := _SCHEME.match(text)) else ""
    credentials, at, rest = text[len(scheme) :].rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = f"{user}:***@" if user and colon else f"***{at}" if at else ""
    return scheme + shown + _OTHER_QUERY.sub("?…", rest)
