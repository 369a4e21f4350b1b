"""Commands that log a client in: AUTH and HELLO.

Rule: Redis verifies a password, or keyfence does for the users of its configuration. The client's identity
changes only when the reply to the login has arrived, and if no earlier request could have shaped that reply.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from keyfence.net.closures import IDENTITY, UPSTREAM_LOST
from keyfence.resp import encode
from keyfence.resp.role import role_in
from keyfence.session.conversation.executor import Argv, Executor

from .effects import hold_for, inspect, inspect_effect


def auth(session: Executor, argv: Argv) -> None:
    credentials = auth_credentials(argv)
    if credentials is None:
        session.forward_one()
        return
    user, password = credentials
    service = session.context.identities.check(user, password)
    if service is not Login.NOT_MINE:
        _checked_here(session, service, user)
        return

    def answered(reply: bytes) -> None:
        if reply == AUTHENTICATED:
            _accepted(session, user, password)

    if session.transaction is None:
        session.when_sure(lambda: hold_for(session, answered))
    else:
        inspect_effect(session, answered, is_login=True, decides=True)


def auth_shared(session: Executor, argv: Argv) -> bool:
    """Answers a login as a user that keyfence checks itself. Returns False for any other user."""
    credentials = auth_credentials(argv)
    if credentials is None:
        return False
    service = session.context.identities.check(*credentials)
    if service is Login.NOT_MINE:
        return False
    _checked_here(session, service, credentials[0])
    return True


def _checked_here(session: Executor, service: str | Login, user: bytes) -> None:
    """Answers the login here, because Redis must not see the password. Inside MULTI it is not queued."""
    session.count_forwarded()
    if isinstance(service, Login):
        session.observer.login_failed(session.service)
        session.replies.local(WRONGPASS)
    else:
        session.become(service, user)
        session.replies.local(AUTHENTICATED)


def _accepted(session: Executor, user: bytes, password: bytes) -> None:
    """Redis has accepted a login. If the client's text could have shaped an earlier reply, ask Redis for the
    client's user. If the client may not ask that, the barrier before the login must suffice."""
    if not session.was_doubtful or session.transaction is not None:
        _logged_in(session, user, password)
        return

    def answered(reply: bytes) -> None:
        session.release()
        if reply.startswith(b"-") or _whoami(reply) == user:
            _logged_in(session, user, password)
        else:
            session.closing = IDENTITY.because("identity: Redis takes the client for another user")

    session.hold()
    session.to_upstream.append(_WHOAMI)
    session.replies.drop(answered)


def _whoami(reply: bytes) -> bytes:
    """Returns the user's name in the reply to ACL WHOAMI."""
    return reply.partition(b"\r\n")[2].removesuffix(b"\r\n")


def _logged_in(session: Executor, user: bytes, password: bytes) -> None:
    session.profile = session.profile._replace(user=user, password=password)
    if session.context.selects_later:
        session.to_upstream.append(encode.command(b"SELECT", session.profile.database))
        session.replies.drop(lambda reply: _selected(session, reply))
    session.become(session.context.identities.of_user(user, session.origin.service), user)


def _selected(session: Executor, reply: bytes) -> None:
    if reply.startswith(b"-"):
        session.closing = UPSTREAM_LOST.because("upstream does not let the client's user select the database")


def hello(session: Executor, argv: Argv) -> None:
    credentials = hello_credentials(argv)
    services = [session.context.identities.check(user, password) for user, password in credentials]
    if any(service is not Login.NOT_MINE for service in services):
        _hello_checked_here(session, argv, services)
        return
    users = hello_users(argv)
    session.route.knows_id = True
    if len(argv) == 1:
        show_id(session)
    elif session.transaction is not None:
        inspect_effect(
            session, lambda reply: _hello_answered(session, argv, reply), is_login=bool(users), decides=True
        )
    elif users:
        session.when_sure(lambda: hold_for(session, lambda reply: _hello_answered(session, argv, reply)))
    else:
        session.when_sure(lambda: inspect(session, lambda reply: _hello_answered(session, argv, reply)))


# Errors, and the `+QUEUED` of a transaction that keyfence does not know of.
_NO_HELLO = (b"-", b"!", b"+")


def _hello_checked_here(session: Executor, argv: Argv, services: Sequence[str | Login]) -> None:
    """Like `_checked_here`, but the rest of the HELLO goes to Redis, and the client gets Redis' reply."""
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
        session.when_sure(lambda: hold_for(session, answered))
    else:
        inspect_effect(session, answered, decides=True)


def _hello_answered(session: Executor, argv: Argv, reply: bytes) -> None:
    """Redis carries out one option after another, so AUTH may have succeeded in spite of an error."""
    _note_id(session, reply)
    users = hello_users(argv)
    failed = reply.startswith(_NO_HELLO)
    if not failed:
        if role := role_in(reply):
            session.observer.upstream_shown(role)
        version = integer(argv[1])
        if version in (2, 3):
            session.replies.resp = version
        name = _hello_name(argv)
        session.profile = session.profile._replace(
            resp=session.replies.resp, name=session.profile.name if name is None else name
        )
    if users and not failed:
        _accepted(session, users[-1], hello_credentials(argv)[-1][1])
    elif users and not hello_failed(users, reply):
        _ask_who_it_is(session, argv)


def _ask_who_it_is(session: Executor, argv: Argv) -> None:
    """A HELLO has failed, but may have logged the client in: Redis 7.2 checks all options first, 7.0 does
    not."""

    def answered(reply: bytes) -> None:
        session.release()
        user = _whoami(reply)
        credentials = dict(hello_credentials(argv))
        if reply.startswith((b"-NOAUTH", b"$")) and user not in credentials:
            return
        if user in credentials:
            _logged_in(session, user, credentials[user])
            session.route.pinned = "HELLO"  # Redis may have accepted any of several passwords
        else:
            session.closing = IDENTITY.because("identity: a HELLO failed that may have authenticated")

    session.hold()
    session.to_upstream.append(_WHOAMI)
    session.replies.drop(answered)


_WHOAMI = encode.command(b"ACL", b"WHOAMI")


def _hello_name(argv: Argv) -> bytes | None:
    """Returns the name that the last SETNAME sets. Redis has accepted the options; `identity` reads them."""
    rest = hello_without_credentials(argv)[2:]
    return rest[-1] if rest else None


def show_id(session: Executor) -> None:
    """Sends a command whose reply contains the connection's id. From then on the client may name it."""
    if session.transaction is None:
        session.when_sure(lambda: inspect(session, lambda reply: _note_id(session, reply)))
    else:
        inspect_effect(session, lambda reply: _note_id(session, reply))


def _note_id(session: Executor, reply: bytes) -> None:
    session.context.ids.show(session, reply)
