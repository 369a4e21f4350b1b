"""Which service a client is.

Rule: the best evidence wins: a user name that Redis accepted, then the client's network, then the listener.
Without any of them the client is `unknown`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping, Sequence

from proxy.policy.compiled import UNKNOWN

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclasses.dataclass(frozen=True, slots=True)
class Identities:
    """What the configuration says about who is who."""

    services: frozenset[str]  # of the policy; a user with such a name is that service
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Redis user → service
    networks: Sequence[tuple[Network, str]] = ()  # the narrowest network that holds an address decides

    def at_connect(self, address: str, listener_service: str) -> str:
        """The service of a client that hasn't authenticated. `address` is an IP address, or empty."""
        try:
            ip = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
        except ValueError:
            return listener_service or UNKNOWN
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        holding = [(net.prefixlen, name) for net, name in self.networks if ip in net]
        return max(holding)[1] if holding else listener_service or UNKNOWN

    def of_user(self, user: bytes, at_connect: str) -> str:
        """The service of a client whose AUTH as `user` Redis accepted."""
        name = user.decode("utf-8", "replace")
        if name in self.users:
            return self.users[name]
        return name if name in self.services else at_connect


def hello_users(argv: Sequence[bytes]) -> list[bytes]:
    """The users that `HELLO [protover [AUTH user password] [SETNAME name]]` authenticates as, in turn.

    Redis (`networking.c`, helloCommand) carries out each option before it looks at the next one, so those
    that stand before a wrong one count.
    """
    users = []
    at = 2
    while at < len(argv):
        option = argv[at].upper()
        if option == b"AUTH" and at + 2 < len(argv):
            users.append(argv[at + 1])
            at += 3
        elif option == b"SETNAME" and at + 1 < len(argv):
            at += 2
        else:
            break
    return users


# What Redis says before it has looked at any option, or where nobody is authenticated.
_BEFORE_OPTIONS = (b"-NOPROTO", b"-NOPERM", b"-NOAUTH", b"-ERR unknown command", b"-ERR Protocol version")


def hello_failed(users: Sequence[bytes], reply: bytes) -> bool:
    """Whether an error in answer to HELLO shows that none of the users was authenticated."""
    return reply.startswith(_BEFORE_OPTIONS) or (len(users) == 1 and reply.startswith(b"-WRONGPASS"))


def auth_user(argv: Sequence[bytes]) -> bytes | None:
    """The user in `AUTH [user] password`, or None where Redis will refuse the form."""
    if len(argv) == 2:
        return b"default"
    return argv[1] if len(argv) == 3 else None
