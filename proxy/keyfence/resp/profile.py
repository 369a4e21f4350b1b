"""What a connection to Redis has been told about itself, so that another one can be told the same.

Rule: only what can be said again exactly is kept here (protocol version, login, database, names). A
connection with any other state is not replaced by another one.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from . import encode


class Profile(NamedTuple):
    """The settings of one client's connection, as Redis has confirmed them."""

    resp: int = 2
    database: int = 0
    user: bytes = b""  # "" with a password: the user `default`
    password: bytes = b""  # "" with a user: one that has none
    name: bytes = b""
    library: tuple[bytes, bytes] = (b"", b"")  # CLIENT SETINFO LIB-NAME and LIB-VER

    @property
    def pool(self) -> Profile:
        """The part that decides what a command answers, with what it takes to open such a connection."""
        return self._replace(name=b"", library=(b"", b""))

    @property
    def kind(self) -> Profile:
        """The same without the password: one user is one user, whichever of its passwords was given."""
        return self._replace(name=b"", library=(b"", b""), password=b"")

    @property
    def is_logged_in(self) -> bool:
        return bool(self.user or self.password)

    def __repr__(self) -> str:
        login = f", user={self.user!r}" if self.is_logged_in else ""
        return f"Profile(resp={self.resp}, database={self.database}{login})"

    def commands(self) -> list[bytes]:
        """What makes a fresh connection into such a one; one reply each."""
        said = []
        if self.is_logged_in:
            said.append(encode.command(b"AUTH", self.user or b"default", self.password))
        if self.resp != 2:
            said.append(encode.command(b"HELLO", self.resp))
        if self.database:
            said.append(encode.command(b"SELECT", self.database))
        if self.name:
            said.append(encode.command(b"CLIENT", b"SETNAME", self.name))
        for option, value in zip((b"LIB-NAME", b"LIB-VER"), self.library, strict=True):
            if value:
                said.append(encode.command(b"CLIENT", b"SETINFO", option, value))
        return said


@cache
def unchanged(database: int) -> Profile:
    """That of a connection on which nothing was said, of which there are many at a time."""
    return Profile(database=database)
