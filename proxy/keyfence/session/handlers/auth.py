"""Commands that say who the client is: AUTH and HELLO.

Rule: a password is verified by Redis, or here for those users that the configuration has. The client is
somebody else only once the reply is in that says so, and no earlier request could have shaped it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keyfence.commands.arguments import integer
from keyfence.identity.credentials import (
    AUTHENTICATED,
    WRONGPASS,
    auth_credentials,
    hello_credentials,
    hello_failed,
    hello_users,
    hello_without_credentials,
)
from keyfence.identity.passwords import Login
from keyfence.resp import encode

if TYPE_CHECKING:
    from keyfence.session.actor import Actor

Argv = Sequence[bytes]


def auth(session: Actor, argv: Argv) -> None:
    credentials = auth_credentials(argv)
    if credentials is None:
        session.pass_one()
        return
    user, password = credentials
    service = session.identities.check(user, password)
    if service is not Login.NOT_MINE:
        _checked_here(session, service, user)
        return

    def answered(reply: bytes) -> None:
        if reply == AUTHENTICATED:
            _accepted(session, user, password)

    if session.transaction is None:
        session.when_sure(lambda: session.hold_for(answered))
    else:
        session.effect(answered, is_login=True, decides=True)


def auth_shared(session: Actor, argv: Argv) -> bool:
    """Redis isn't asked about a user that keyfence knows."""
    credentials = auth_credentials(argv)
    if credentials is None:
        return False
    service = session.identities.check(*credentials)
    if service is Login.NOT_MINE:
        return False
    _checked_here(session, service, credentials[0])
    return True


def _checked_here(session: Actor, service: str | Login, user: bytes) -> None:
    """keyfence knows the user, and Redis is not to see the password. Inside MULTI this isn't queued."""
    session.told_forwarded()
    if isinstance(service, Login):
        session.told_login_failed()
        session.answers.local(WRONGPASS)
    else:
        session.become(service, user)
        session.answers.local(AUTHENTICATED)


def _accepted(session: Actor, user: bytes, password: bytes) -> None:
    """Redis has accepted a login. Where the client's text could have shaped a reply before, Redis is asked
    who the client is; where it may not be asked, the barrier before the login has to do."""
    if not session.was_doubtful or session.transaction is not None:
        _logged_in(session, user, password)
        return

    def told(reply: bytes) -> None:
        session.held = False
        if reply.startswith(b"-") or _whoami(reply) == user:
            _logged_in(session, user, password)
        else:
            session.closing = "identity: Redis takes the client for another user"

    session.held = True
    session.to_upstream.append(_WHOAMI)
    session.answers.drop(told)


def _whoami(reply: bytes) -> bytes:
    """The user's name in the answer to ACL WHOAMI."""
    return reply.partition(b"\r\n")[2].removesuffix(b"\r\n")


def _logged_in(session: Actor, user: bytes, password: bytes) -> None:
    session.profile = session.profile._replace(user=user, password=password)
    if session.selects_later:
        session.to_upstream.append(encode.command(b"SELECT", session.profile.database))
        session.answers.drop(lambda reply: _selected(session, reply))
    session.become(session.identities.of_user(user, session.at_connect), user)


def _selected(session: Actor, reply: bytes) -> None:
    if reply.startswith(b"-"):
        session.closing = "upstream doesn't let the client's user select the database"


def hello(session: Actor, argv: Argv) -> None:
    credentials = hello_credentials(argv)
    services = [session.identities.check(user, password) for user, password in credentials]
    if any(service is not Login.NOT_MINE for service in services):
        _hello_checked_here(session, argv, services)
        return
    users = hello_users(argv)
    session.route.knows_id = True
    if len(argv) == 1:
        show_id(session)
    elif session.transaction is not None:
        session.effect(
            lambda reply: _hello_answered(session, argv, reply), is_login=bool(users), decides=True
        )
    elif users:
        session.when_sure(lambda: session.hold_for(lambda reply: _hello_answered(session, argv, reply)))
    else:
        session.when_sure(lambda: session.inspect(lambda reply: _hello_answered(session, argv, reply)))


# Errors, and the `+QUEUED` of a transaction that keyfence knows nothing of.
_NO_HELLO = (b"-", b"!", b"+")


def _hello_checked_here(session: Actor, argv: Argv, services: Sequence[str | Login]) -> None:
    """As `_checked_here`; what is left of the HELLO goes to Redis, and its answer is the client's."""
    rest = hello_without_credentials(argv)
    service = next((one for one in services if isinstance(one, Login)), services[-1])
    user = hello_credentials(argv)[-1][0]
    if isinstance(service, Login) and integer(argv[1]) in (2, 3):
        _checked_here(session, service, user)
        return

    def answered(reply: bytes) -> None:
        _hello_answered(session, rest, reply)
        if not reply.startswith(_NO_HELLO) and not isinstance(service, Login):
            session.become(service, user)

    session.route.knows_id = True
    session.request = encode.command(*rest)
    if session.transaction is None:
        session.when_sure(lambda: session.hold_for(answered))
    else:
        session.effect(answered, decides=True)


def _hello_answered(session: Actor, argv: Argv, reply: bytes) -> None:
    """Redis takes one option after the other: an error may come after AUTH was carried out."""
    session.shown(reply)
    users = hello_users(argv)
    failed = reply.startswith(_NO_HELLO)
    if not failed:
        version = integer(argv[1])
        if version in (2, 3):
            session.answers.resp = version
        name = _hello_name(argv)
        session.profile = session.profile._replace(
            resp=session.answers.resp, name=session.profile.name if name is None else name
        )
    if users and not failed:
        _accepted(session, users[-1], hello_credentials(argv)[-1][1])
    elif users and not hello_failed(users, reply):
        _ask_who_it_is(session, argv)


def _ask_who_it_is(session: Actor, argv: Argv) -> None:
    """A HELLO failed that may have authenticated before: Redis 7.2 looks at all options first, 7.0 does
    not."""

    def told(reply: bytes) -> None:
        session.held = False
        user = _whoami(reply)
        credentials = dict(hello_credentials(argv))
        if reply.startswith((b"-NOAUTH", b"$")) and user not in credentials:
            return
        if user in credentials:
            _logged_in(session, user, credentials[user])
            session.route.pinned = "HELLO"  # which of several passwords was taken, nobody knows
        else:
            session.closing = "identity: a HELLO failed that may have authenticated"

    session.held = True
    session.to_upstream.append(_WHOAMI)
    session.answers.drop(told)


_WHOAMI = encode.command(b"ACL", b"WHOAMI")


def _hello_name(argv: Argv) -> bytes | None:
    """What the last SETNAME sets; as `identity` reads the options, which Redis has accepted."""
    rest = hello_without_credentials(argv)[2:]
    return rest[-1] if rest else None


def show_id(session: Actor) -> None:
    """The reply tells the connection's id, which the client may name from then on."""
    if session.transaction is None:
        session.when_sure(lambda: session.inspect(session.shown))
    else:
        session.effect(session.shown)
