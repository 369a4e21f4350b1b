"""The settings of a connection to Redis, kept so that another connection can be given the same ones.

Rule: a profile holds only settings that can be repeated exactly (protocol version, login, database, names). A
connection with any other state is never replaced by another connection.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from . import encode

NO_LIBRARY = (b"", b"")


class Profile(NamedTuple):
    """The settings of one client's connection, as Redis has confirmed them."""

    resp: int = 2
    database: int = 0
    user: bytes = b""  # empty with a password: the user `default`
    password: bytes = b""  # empty with a user: a user without a password
    name: bytes = b""
    library: tuple[bytes, bytes] = NO_LIBRARY  # CLIENT SETINFO LIB-NAME and LIB-VER

    @property
    def pool(self) -> Profile:
        """The settings that affect replies, and those needed to open such a connection."""
        return (
            self._replace(name=b"", library=NO_LIBRARY) if self.name or self.library != NO_LIBRARY else self
        )

    @property
    def kind(self) -> Profile:
        """`pool` without the password, because a user may have several passwords."""
        pool = self.pool
        return pool._replace(password=b"") if pool.password else pool

    @property
    def is_logged_in(self) -> bool:
        return bool(self.user or self.password)

    def __repr__(self) -> str:
        login = f", user={self.user!r}" if self.is_logged_in else ""
        return f"Profile(resp={self.resp}, database={self.database}{login})"

    def commands(self) -> list[bytes]:
        """The requests that give a new connection this profile. Redis sends one reply to each.

        A Redis that a script keeps busy takes AUTH and HELLO, so HELLO sets the name. It refuses SELECT and
        CLIENT with BUSY.
        """
        requests = []
        if self.is_logged_in:
            requests.append(encode.command(b"AUTH", self.user or b"default", self.password))
        if self.name:
            requests.append(encode.command(b"HELLO", self.resp, b"SETNAME", self.name))
        elif self.resp != 2:
            requests.append(encode.command(b"HELLO", self.resp))
        if self.database:
            requests.append(encode.command(b"SELECT", self.database))
        for option, value in zip((b"LIB-NAME", b"LIB-VER"), self.library, strict=True):
            if value:
                requests.append(encode.command(b"CLIENT", b"SETINFO", option, value))
        return requests


@cache
def unchanged(database: int) -> Profile:
    """The profile of a connection on which no setting was changed. Cached, because most clients share it."""
    return Profile(database=database)
