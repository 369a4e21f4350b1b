"""Parses the URL of an upstream, and shows URLs without their secrets.

Rule: no text from this module contains a password, not even an error about an invalid URL.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Literal

from .health import UpstreamAddress


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
    if not parts.hostname:
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
