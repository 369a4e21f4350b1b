"""The URL of a Redis that stores policies: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][/PREFIX]`.

Rule: no message holds the URL, which may hold a password.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SCHEMES = ("redis", "rediss")
DEFAULT_PREFIX = "keyfence"
MAX_URL = 2000  # characters
_FORM = "write redis://HOST:PORT or rediss://HOST:PORT, with /DATABASE or /PREFIX behind it if needed"
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)


class RedisPlace(NamedTuple):
    """A Redis, and where in it the policies are."""

    host: str
    port: int
    is_tls: bool
    username: str
    password: str
    database: int
    prefix: str  # of the keys

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        parts = [f"{'rediss' if self.is_tls else 'redis'}://{host}:{self.port}"]
        parts += [str(self.database)] if self.database else []
        return "/".join([*parts, self.prefix])


def parse_redis_url(text: str) -> RedisPlace:
    """Raises ValueError."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError(f"this is not the URL of a Redis; {_FORM}") from None
    if parts.scheme not in SCHEMES or not host or len(text) > MAX_URL:
        raise ValueError(f"this is not the URL of a Redis; {_FORM}")
    if parts.query or parts.fragment or "@" in parts.path or port == 0:
        raise ValueError("write / ? # of a user or password as %2F %3F %23, and a port from 1 to 65535")
    path = [unquote(one) for one in parts.path.split("/") if one]
    has_database = bool(path) and re.fullmatch("[0-9]{1,5}", path[0]) is not None
    database = int(path.pop(0)) if has_database else 0
    prefix = path.pop(0) if path else DEFAULT_PREFIX
    if path or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"what follows the host is neither a database nor a prefix of keys; {_FORM}")
    login = unquote(parts.username or ""), unquote(parts.password or "")
    return RedisPlace(host, port or 6379, parts.scheme == "rediss", *login, database, prefix)
