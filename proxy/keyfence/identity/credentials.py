"""The credentials in AUTH and HELLO, and the replies to them.

Rule: both commands are read exactly as Redis reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.commands.arguments import word

# Redis' replies to AUTH (acl.c, authCommand; addAuthErrReply).
AUTHENTICATED = b"+OK\r\n"
WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"


def hello_credentials(argv: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Users and passwords of `HELLO [protover [AUTH user password] [SETNAME name]]`, in order.

    Redis (`networking.c`, helloCommand) carries out each option before it looks at the next one, so the
    options before a wrong one count.
    """
    return [(argv[at + 1], argv[at + 2]) for at in _auth_options(argv)]


def hello_users(argv: Sequence[bytes]) -> list[bytes]:
    """The users that HELLO authenticates as, in order."""
    return [argv[at + 1] for at in _auth_options(argv)]


def hello_without_credentials(argv: Sequence[bytes]) -> list[bytes]:
    """HELLO as Redis gets it after keyfence has checked its users."""
    rest = list(argv)
    for at in reversed(_auth_options(argv)):
        del rest[at : at + 3]
    return rest


def _auth_options(argv: Sequence[bytes]) -> list[int]:
    """The positions of HELLO's AUTH options, up to the first option that Redis refuses."""
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


# Errors that Redis sends before it looks at any option, or to a client without a login.
_BEFORE_OPTIONS = (b"-NOPROTO", b"-NOPERM", b"-NOAUTH", b"-ERR unknown command", b"-ERR Protocol version")


def hello_failed(users: Sequence[bytes], reply: bytes) -> bool:
    """Whether an error reply to HELLO shows that none of the users was authenticated."""
    return reply.startswith(_BEFORE_OPTIONS) or (len(users) == 1 and reply.startswith(b"-WRONGPASS"))


def auth_credentials(argv: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """User and password of `AUTH [user] password`; None if Redis refuses the form."""
    if len(argv) == 2:
        return b"default", argv[1]
    return (argv[1], argv[2]) if len(argv) == 3 else None
