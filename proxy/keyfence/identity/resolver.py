"""Which service a client is.

Rule: the best evidence wins: a user name whose password was right, then a TLS certificate, then the user at
the other end of a unix socket, then the source network, then the listener. Without any of them the client
is `unknown`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from keyfence.commands.arguments import word
from keyfence.policy.compiled.policy import UNKNOWN

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What Redis answers to AUTH (acl.c, authCommand; addAuthErrReply).
AUTHENTICATED = b"+OK\r\n"
WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a client before it has said a word."""

    listener_service: str = ""
    address: str = ""  # the IP address that it comes from; "" where there is none, as on a unix socket
    uid: int | None = None  # of the process at the other end of a unix socket
    names: Sequence[str] = ()  # whom its certificate was issued to, as `certificate_names` gives them


class Login(enum.Enum):
    """Where a user name and a password lead to no service."""

    WRONG = "the user is keyfence's own to check, and the password isn't the user's"
    NOT_MINE = "Redis knows the user, or nobody does"


@dataclasses.dataclass(frozen=True, slots=True)
class Password:
    """What a user that keyfence checks by itself has to know, and which service that makes of him."""

    sha256: Sequence[bytes] = dataclasses.field(repr=False)  # digests; any one will do
    service: str


@dataclasses.dataclass(frozen=True, slots=True)
class Identities:
    """What the configuration says about who is who."""

    services: frozenset[str]  # of the policy; a user or a certificate of such a name is that service
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Redis user → service
    networks: Sequence[tuple[Network, str]] = ()  # the narrowest network that holds an address decides
    passwords: Mapping[str, Password] = dataclasses.field(default_factory=dict)  # by user
    certificates: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # a certificate's name → service
    uids: Mapping[int, str] = dataclasses.field(default_factory=dict)  # Unix user id → service

    def at_connect(self, known: Evidence) -> str:
        """The service of a client that hasn't authenticated."""
        return (
            self._of_certificate(known.names)
            or ("" if known.uid is None else self.uids.get(known.uid, ""))
            or self._of_address(known.address)
            or known.listener_service
            or UNKNOWN
        )

    def _of_certificate(self, names: Sequence[str]) -> str:
        """A name that is mapped goes before one that merely equals a service's."""
        mapped = (self.certificates[name] for name in names if name in self.certificates)
        own = (name for name in names if name in self.services and name != UNKNOWN)
        return next(mapped, "") or next(own, "")

    def _of_address(self, address: str) -> str:
        try:
            ip = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
        except ValueError:
            return ""
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        holding = [(net.prefixlen, name) for net, name in self.networks if ip in net]
        return max(holding)[1] if holding else ""

    def of_user(self, user: bytes, at_connect: str) -> str:
        """The service of a client whose AUTH as `user` Redis accepted."""
        name = user.decode("utf-8", "replace")
        if name in self.users:
            return self.users[name]
        return name if name in self.services else at_connect

    def check(self, user: bytes, password: bytes) -> str | Login:
        """The service that `AUTH user password` leads to, where keyfence itself checks that user.

        How long it takes tells nothing of the password: what is compared is its hash, with each hash that the
        user has, in constant time.
        """
        kept = self.passwords.get(user.decode("utf-8", "surrogateescape"))
        if kept is None:
            return Login.NOT_MINE
        digest = hashlib.sha256(password).digest()
        fits = [hmac.compare_digest(digest, one) for one in kept.sha256]
        return kept.service if any(fits) else Login.WRONG


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Whom a verified certificate was issued to, best first: URIs (as SPIFFE ids), DNS names, else the CN.

    `certificate` is what `ssl.SSLSocket.getpeercert` gives. The subject's common name counts only where there
    is no alternative name (RFC 9525): authorities check alternative names with more care. For the same reason
    a DNS name or a CN that looks like a URI isn't taken for one.
    """
    if not certificate:
        return ()
    alternative = certificate.get("subjectAltName", ())
    uris = [value for kind, value in alternative if kind == "URI" and "://" in value]
    names = [value for kind, value in alternative if kind == "DNS"]
    if not uris and not names:
        parts = [part for group in certificate.get("subject", ()) for part in group]
        names = [value for kind, value in parts if kind == "commonName"]
    return (*uris, *(name for name in names if "://" not in name))


def hello_credentials(argv: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Users and passwords of `HELLO [protover [AUTH user password] [SETNAME name]]`, in turn.

    Redis (`networking.c`, helloCommand) carries out each option before it looks at the next one, so those
    that stand before a wrong one count.
    """
    return [(argv[at + 1], argv[at + 2]) for at in _auth_options(argv)]


def hello_users(argv: Sequence[bytes]) -> list[bytes]:
    """The users that HELLO authenticates as, in turn."""
    return [argv[at + 1] for at in _auth_options(argv)]


def hello_without_credentials(argv: Sequence[bytes]) -> list[bytes]:
    """HELLO as it goes to Redis where keyfence has checked its users by itself."""
    rest = list(argv)
    for at in reversed(_auth_options(argv)):
        del rest[at : at + 3]
    return rest


def _auth_options(argv: Sequence[bytes]) -> list[int]:
    """Where HELLO's AUTH options begin, as far as Redis gets in reading them."""
    found = []
    at = 2
    while at < len(argv):
        option = word(argv[at])
        if option == b"AUTH" and at + 2 < len(argv):
            found.append(at)
            at += 3
        elif option == b"SETNAME" and at + 1 < len(argv):
            at += 2
        else:
            break
    return found


# What Redis says before it has looked at any option, or where nobody is authenticated.
_BEFORE_OPTIONS = (b"-NOPROTO", b"-NOPERM", b"-NOAUTH", b"-ERR unknown command", b"-ERR Protocol version")


def hello_failed(users: Sequence[bytes], reply: bytes) -> bool:
    """Whether an error in answer to HELLO shows that none of the users was authenticated."""
    return reply.startswith(_BEFORE_OPTIONS) or (len(users) == 1 and reply.startswith(b"-WRONGPASS"))


def auth_user(argv: Sequence[bytes]) -> bytes | None:
    """The user in `AUTH [user] password`, or None where Redis will refuse the form."""
    credentials = auth_credentials(argv)
    return None if credentials is None else credentials[0]


def auth_credentials(argv: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """User and password of `AUTH [user] password`, or None where Redis will refuse the form."""
    if len(argv) == 2:
        return b"default", argv[1]
    return (argv[1], argv[2]) if len(argv) == 3 else None
