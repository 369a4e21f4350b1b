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
from keyfence.session.conversation.conversation import Conversation, Doubt
from keyfence.session.conversation.executor import Argv, Executor

from .effects import ask_redis, change, inspect, inspect_effect


def auth(executor: Executor, argv: Argv) -> None:
    credentials = auth_credentials(argv)
    if credentials is None:
        executor.forward_one()
        return
    if auth_shared(executor, argv):
        return
    user, password = credentials

    def answered(reply: bytes) -> None:
        if reply == AUTHENTICATED:
            _accepted(executor, user, password)

    change(executor, answered, is_login=True)


def auth_shared(executor: Executor, argv: Argv) -> bool:
    """Answers a login as a user that keyfence checks itself, once no reply is due: what is due may come over
    connections of the service before. Returns False for any other user."""
    credentials = auth_credentials(argv)
    if credentials is None:
        return False
    service = executor.client.context.identities.check(*credentials)
    if service is Login.NOT_MINE:
        return False
    user = credentials[0]
    executor.conversation.when_answered(lambda: _checked_here(executor, service, user))
    return True


def _checked_here(executor: Executor, service: str | Login, user: bytes) -> None:
    """Answers the login here, because Redis must not see the password. Inside MULTI it is not queued."""
    executor.count_forwarded()
    if isinstance(service, Login):
        executor.client.observer.login_failed(executor.client.service)
        executor.conversation.replies.local(WRONGPASS)
    else:
        executor.client.become(service, user)
        executor.conversation.replies.local(AUTHENTICATED)


def _accepted(executor: Executor, user: bytes, password: bytes) -> None:
    """Redis has accepted a login. If the client's text could have shaped an earlier reply, ask Redis for the
    client's user. If the client may not ask that, the barrier before the login must suffice."""
    if executor.conversation.doubt == Doubt.NONE or executor.conversation.transaction is not None:
        _logged_in(executor, user, password)
        return

    def answered(reply: bytes) -> None:
        if reply.startswith(b"-") or _whoami(reply) == user:
            _logged_in(executor, user, password)
        else:
            executor.conversation.end(IDENTITY.because("identity: Redis takes the client for another user"))

    ask_redis(executor, _WHOAMI, answered)


def _whoami(reply: bytes) -> bytes:
    """Returns the user's name in the reply to ACL WHOAMI."""
    return reply.partition(b"\r\n")[2].removesuffix(b"\r\n")


def _logged_in(executor: Executor, user: bytes, password: bytes) -> None:
    client, conversation = executor.client, executor.conversation
    conversation.note(user=user, password=password)
    if client.context.selects_later:
        conversation.to_upstream.append(encode.command(b"SELECT", conversation.profile.database))
        conversation.replies.drop(lambda reply: _selected(conversation, reply))
    client.become(client.context.identities.of_user(user, client.origin.service), user)


def _selected(conversation: Conversation, reply: bytes) -> None:
    if reply.startswith(b"-"):
        reason = "upstream does not let the client's user select the database"
        conversation.end(UPSTREAM_LOST.because(reason))


def hello(executor: Executor, argv: Argv) -> None:
    conversation, identities = executor.conversation, executor.client.context.identities
    services = [identities.check(user, password) for user, password in hello_credentials(argv)]
    if any(service is not Login.NOT_MINE for service in services):
        _hello_checked_here(executor, argv, services)
        return

    def answered(reply: bytes) -> None:
        _hello_answered(executor, argv, reply)

    conversation.route.knows_id = True
    if len(argv) == 1:
        show_id(executor)
    elif conversation.transaction is None and not hello_users(argv):
        conversation.when_sure(lambda: inspect(executor, answered))
    else:
        change(executor, answered, is_login=bool(hello_users(argv)))


# Errors, and the `+QUEUED` of a transaction that keyfence does not know of.
_NO_HELLO = (b"-", b"!", b"+")


def _hello_checked_here(executor: Executor, argv: Argv, services: Sequence[str | Login]) -> None:
    """Like `_checked_here`, but the rest of the HELLO goes to Redis, and the client gets Redis' reply."""
    rest = hello_without_credentials(argv)
    service = next((one for one in services if isinstance(one, Login)), services[-1])
    user = hello_credentials(argv)[-1][0]
    if isinstance(service, Login) and integer(argv[1]) in (2, 3):
        _checked_here(executor, service, user)
        return

    def answered(reply: bytes) -> None:
        _hello_answered(executor, rest, reply)
        if not reply.startswith(_NO_HELLO) and not isinstance(service, Login):
            executor.client.become(service, user)

    executor.conversation.route.knows_id = True
    executor.request = encode.command(*rest)
    change(executor, answered)


def _hello_answered(executor: Executor, argv: Argv, reply: bytes) -> None:
    """Redis carries out one option after another, so AUTH may have succeeded in spite of an error."""
    conversation = executor.conversation
    _note_id(executor, reply)
    users = hello_users(argv)
    failed = reply.startswith(_NO_HELLO)
    if not failed:
        if role := role_in(reply):
            executor.client.upstream_shown(role)
        version = integer(argv[1])
        if version in (2, 3):
            conversation.replies.resp = version
        name = _hello_name(argv)
        conversation.note(resp=conversation.replies.resp)
        if name is not None:
            conversation.note(name=name)
    if users and not failed:
        _accepted(executor, users[-1], hello_credentials(argv)[-1][1])
    elif users and not hello_failed(users, reply):
        _ask_who_it_is(executor, argv)


def _ask_who_it_is(executor: Executor, argv: Argv) -> None:
    """A HELLO has failed, but may have logged the client in: Redis 7.2 checks all options first, 7.0 does
    not."""

    def answered(reply: bytes) -> None:
        user = _whoami(reply)
        credentials = dict(hello_credentials(argv))
        if reply.startswith((b"-NOAUTH", b"$")) and user not in credentials:
            return
        if user in credentials:
            _logged_in(executor, user, credentials[user])
            executor.conversation.route.pinned = "HELLO"  # Redis may have accepted any of several passwords
        else:
            executor.conversation.end(
                IDENTITY.because("identity: a HELLO failed that may have authenticated")
            )

    ask_redis(executor, _WHOAMI, answered)


_WHOAMI = encode.command(b"ACL", b"WHOAMI")


def _hello_name(argv: Argv) -> bytes | None:
    """Returns the name that the last SETNAME sets. Redis has accepted the options; `identity` reads them."""
    rest = hello_without_credentials(argv)[2:]
    return rest[-1] if rest else None


def show_id(executor: Executor) -> None:
    """Sends a command whose reply contains the connection's id. From then on the client may name it."""
    if executor.conversation.transaction is None:
        executor.conversation.when_sure(lambda: inspect(executor, lambda reply: _note_id(executor, reply)))
    else:
        inspect_effect(executor, lambda reply: _note_id(executor, reply))


def _note_id(executor: Executor, reply: bytes) -> None:
    executor.client.context.ids.show(executor.client, reply)
