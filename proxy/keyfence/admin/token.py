"""The tokens of the admin listener, each in a file, and their roles.

Rule: configurations, arguments and messages name a token's file, and never hold the token.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from keyfence.net.addresses import is_this_machine
from keyfence.policy.diagnostics import FileError
from keyfence.policy.source.files import Unreadable, read_file

if TYPE_CHECKING:
    from keyfence.config.settings import Settings
    from keyfence.policy.source.yaml import PathKey

TOKEN_VARIABLE = "KEYFENCE_ADMIN_TOKEN_FILE"  # the environment variable that names the file
Role = Literal["read", "waive", "operate"]
ROLES: tuple[Role, ...] = ("read", "waive", "operate")  # each may do what the ones before may
SHORTEST = 16
LONGEST = 1024
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # what a Bearer header can carry: RFC 6750, section 2.1


class TokenError(Exception):
    """A token file cannot be used; the message says why and follows the file's name."""


def read_token(path: str) -> bytes:
    """The token in a file: its only line. Raises TokenError."""
    try:
        text = read_file(path, LONGEST + 2)
    except Unreadable as exc:
        raise TokenError(str(exc)) from None
    token = text.strip()
    if not token:
        raise TokenError("is empty; openssl rand -hex 32 makes a token")
    if not SHORTEST <= len(token) <= LONGEST:
        raise TokenError(f"must hold {SHORTEST} to {LONGEST} characters")
    if not _TOKEN.fullmatch(token):
        raise TokenError("must hold one line of letters, digits and . _ ~ + / - and nothing else")
    return token


def is_open_to_others(path: str) -> bool:
    """Whether any user of the machine may read or change a file."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH))
    except OSError:
        return False


class Token(NamedTuple):
    """A token, and what it allows."""

    name: str  # "" is the one of `token_file`: who uses it is not known
    role: Role
    secret: bytes

    def may(self, role: Role) -> bool:
        """Whether it allows what needs a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


def tokens_of(settings: Settings) -> tuple[Token, ...]:
    """The tokens that the settings name; empty: there are none, or there is no admin listener. Raises
    FileError."""
    if settings.admin is None:
        return ()
    found: list[Token] = []
    faults = []
    for path, name, file, role in _named(settings):
        try:
            one = Token(name, role, read_token(file))
        except TokenError as exc:
            faults.append(settings.fault((*path, "token_file"), f"the token file {file} {exc}"))
            continue
        same = [other for other in found if other.secret == one.secret]
        if same:
            text = f"the token file {file} holds the token of {same[0].name or 'token_file'}; make another"
            faults.append(settings.fault((*path, "token_file"), text))
        if name and name in [other.name for other in found]:
            faults.append(settings.fault((*path, "name"), f"there is another token with the name {name}"))
        found.append(one)
    if faults:
        raise FileError(faults)
    return tuple(found)


def _named(settings: Settings) -> Iterator[tuple[PathKey, str, str, Role]]:
    """The tokens of the settings: place, name, file and role of each."""
    if settings.admin_token_file:
        yield ("admin",), "", settings.admin_token_file, "operate"
    for index, one in enumerate(settings.admin_tokens):
        yield ("admin", "tokens", index), one.name, one.token_file, one.role


def token_warnings(settings: Settings) -> list[str]:
    """Warnings about secrets that others can read, and about an admin listener that others can reach."""
    open_files = [
        f"any user of this machine may read or change the secret in {file}: chmod o= it"
        for file in settings.secret_files
        if is_open_to_others(file)
    ]
    return open_files + _admin_warnings(settings)


def _admin_warnings(settings: Settings) -> list[str]:
    if settings.admin is None:
        return []
    files = [file for _, _, file, _ in _named(settings)]
    if files:
        return [
            f"any user of this machine may read or change the token file {file}: chmod o= it"
            for file in files
            if is_open_to_others(file)
        ]
    if is_this_machine(settings.admin.host_port[0]):
        return []
    return [
        f"other machines reach the admin address {settings.admin}, and it has no token: only this machine "
        "may change something there; see admin: token_file in docs/configuration.md"
    ]
