"""Users whose passwords keyfence checks itself; Redis never sees them.

Rule: the time of a check reveals nothing about the password. Its hash is compared with each hash of the user,
in constant time.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
from collections.abc import Mapping, Sequence


class Login(enum.Enum):
    """The result of a login that leads to no service."""

    WRONG = "keyfence checks this user, and the password is wrong"
    NOT_MINE = "keyfence does not check this user; Redis may know it"


@dataclasses.dataclass(frozen=True, slots=True)
class Password:
    """The passwords of one user, as hashes, and the user's service."""

    sha256: Sequence[bytes] = dataclasses.field(repr=False)  # digests; each of them is accepted
    service: str


def check(passwords: Mapping[str, Password], user: bytes, password: bytes) -> str | Login:
    """The service that `AUTH user password` leads to, if keyfence checks this user."""
    kept = passwords.get(user.decode("utf-8", "surrogateescape"))
    if kept is None:
        return Login.NOT_MINE
    digest = hashlib.sha256(password).digest()
    fits = [hmac.compare_digest(digest, one) for one in kept.sha256]
    return kept.service if any(fits) else Login.WRONG
