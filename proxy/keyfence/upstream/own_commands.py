"""The commands that keyfence sends to Redis for itself, and so the permissions that its own user needs.

Rule: one list. Its members make the requests of keyfence's own, so that the list misses none. Another
command is another line. AUTH and HELLO are not in it: Redis allows them to every user.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.resp import encode


class OwnCommand(NamedTuple):
    """A command, and what becomes of keyfence without it."""

    name: bytes
    purpose: str  # what it is for, behind "keyfence needs it to"
    without: str  # what is so where it is forbidden
    trial: tuple[bytes, ...] = ()  # arguments with which it asks for next to nothing

    @property
    def permission(self) -> str:
        """The rule of an ACL that allows it."""
        return f"+{self.name.decode().lower()}"

    def request(self, *arguments: bytes | str | int) -> bytes:
        return encode.command(self.name, *arguments)


_NO_KEY = b"keyfence:permissions"

PING = OwnCommand(b"PING", "ask each second whether Redis is there", "Redis logs a refusal each second")
COMMAND = OwnCommand(
    b"COMMAND", "learn the commands of modules", "commands of modules stay unknown", (b"COUNT",)
)
SELECT = OwnCommand(b"SELECT", "ask in other databases than 0", "only database 0 can be used", (b"0",))
PTTL = OwnCommand(
    b"PTTL", "ask for times to live that no command shows", "times to live aren't checked late", (_NO_KEY,)
)
ECHO = OwnCommand(
    b"ECHO", "prove the order of replies on shared connections", "a dearer proof is used", (b"keyfence",)
)

# Where a policy limits sizes: one for each type of key.
SIZES = {
    name: OwnCommand(name, "ask how large keys are", "sizes aren't checked late", (_NO_KEY,))
    for name in (b"STRLEN", b"HLEN", b"LLEN", b"SCARD", b"ZCARD", b"XLEN")
}

OWN_COMMANDS = (PING, COMMAND, SELECT, PTTL, *SIZES.values(), ECHO)


def acl_rules() -> str:
    """The rules of an ACL for keyfence's own user, its password aside: Redis 6.2 and later, and Valkey."""
    return " ".join(["resetchannels", "~*", "-@all", *(one.permission for one in OWN_COMMANDS)])
