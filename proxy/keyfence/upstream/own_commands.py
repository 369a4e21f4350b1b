"""The commands that keyfence sends on its own behalf, and so the permissions that its own Redis user needs.

Rule: all of keyfence's own requests are made by the entries of this list (and INFO, READONLY), so the list is
complete. AUTH and HELLO are not in it, because Redis allows them to every user.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.resp import encode


class OwnCommand(NamedTuple):
    """A command, its purpose, and the effect if Redis forbids it."""

    name: bytes
    purpose: str  # completes "keyfence needs it to …"
    without: str  # the effect if it is forbidden
    trial: tuple[bytes, ...] = ()  # arguments for a cheap trial

    @property
    def permission(self) -> str:
        """The ACL rule that allows the command."""
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
    b"PTTL", "ask for times to live that no command shows", "times to live are not checked late", (_NO_KEY,)
)
ECHO = OwnCommand(
    b"ECHO",
    "prove the order of replies on shared connections",
    "a more expensive proof is used",
    (b"keyfence",),
)

# Only for reads from replicas, so it is not one of OWN_COMMANDS, which every upstream's user needs.
INFO = OwnCommand(b"INFO", "ask how far replicas are", "no command is read from a replica", (b"replication",))

# The same, before a cluster.
READONLY = OwnCommand(b"READONLY", "read from a cluster's replicas", "no command is read from a replica")

# For policies that limit sizes: one command for each type of key.
SIZES = {
    name: OwnCommand(name, "ask how large keys are", "sizes are not checked late", (_NO_KEY,))
    for name in (b"STRLEN", b"HLEN", b"LLEN", b"SCARD", b"ZCARD", b"XLEN")
}

# Before a cluster only, so not one of OWN_COMMANDS.
CLUSTER = OwnCommand(
    b"CLUSTER", "learn the nodes of a cluster", "no node of a cluster can be reached", (b"NODES",)
)

OWN_COMMANDS = (PING, COMMAND, SELECT, PTTL, *SIZES.values(), ECHO)


def acl_rules() -> str:
    """The ACL rules for keyfence's own user, without its password, for Redis 6.2 and later and Valkey."""
    return " ".join(["resetchannels", "~*", "-@all", *(one.permission for one in OWN_COMMANDS)])
