"""The token of the admin listener, which a file holds.

Rule: configurations, arguments and messages name the token's file, and never hold the token.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from keyfence.net.addresses import is_this_machine
from keyfence.policy.diagnostics import FileError
from keyfence.policy.source.files import Unreadable, read_file

if TYPE_CHECKING:
    from keyfence.config.settings import Settings

TOKEN_VARIABLE = "KEYFENCE_ADMIN_TOKEN_FILE"  # the environment variable that names the file
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


def token_of(settings: Settings) -> bytes | None:
    """The token that the settings name; None: no token, or no admin listener. Raises FileError."""
    if settings.admin is None or not settings.admin_token_file:
        return None
    try:
        return read_token(settings.admin_token_file)
    except TokenError as exc:
        text = f"the token file {settings.admin_token_file} {exc}"
        raise FileError([settings.fault(("admin", "token_file"), text)]) from None


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
    if settings.admin_token_file:
        if is_open_to_others(settings.admin_token_file):
            file = settings.admin_token_file
            return [f"any user of this machine may read or change the token file {file}: chmod o= it"]
        return []
    if is_this_machine(settings.admin.host_port[0]):
        return []
    return [
        f"other machines reach the admin address {settings.admin}, and it has no token: only this machine "
        "may change something there; see admin: token_file in docs/configuration.md"
    ]
