"""CLIENT and its subcommands: name, library, notices, redirection.

Rule: a client redirects only to connections of its own service, and if there are tenants, of its own tenant.
"""

from __future__ import annotations

from keyfence.commands.arguments import word
from keyfence.policy.services import UNKNOWN
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.shown_ids import redirections

from .addresses import notices
from .auth import show_id
from .client_reply import client_reply
from .effects import inspect_effect


def client(executor: Executor, argv: Argv) -> None:
    subcommand = word(argv[1]) if len(argv) > 1 else b""
    if subcommand == b"REPLY" and len(argv) == 3:
        client_reply(executor, argv)
    elif subcommand == b"SETNAME" and len(argv) == 3:
        inspect_effect(executor, lambda reply: _if_ok(executor, reply, name=argv[2]))
    elif subcommand == b"SETINFO" and len(argv) == 4:
        _client_setinfo(executor, argv)
    elif subcommand == b"MAINT_NOTIFICATIONS":
        notices(executor, argv)
    elif subcommand in (b"ID", b"INFO"):
        show_id(executor)
    elif subcommand == b"TRACKING":
        _client_tracking(executor, argv)
    else:
        executor.forward_one()


def _client_tracking(executor: Executor, argv: Argv) -> None:
    """CLIENT TRACKING may redirect to a connection, but not to one of another service or another tenant."""
    client, ids = executor.client, executor.client.context.ids
    # If tenants share a service, a client of the service may belong to another tenant.
    caller = client.caller if client.asker().values else None
    foreign = [
        (position, number)
        for position, number in redirections(argv)
        if not ids.is_own(client, number) and not ids.may_name(client.service, number, caller)
    ]
    if not foreign:
        executor.forward_one()
    elif ids.is_all or caller is not None or client.service == UNKNOWN or len(foreign) > 1:
        _rule_on_foreign_connection(executor, foreign[0][0])
    else:
        executor.conversation.when_answered(lambda: _ask_others(executor, *foreign[0]))


def _ask_others(executor: Executor, position: int, number: int) -> None:
    client = executor.client

    def answered(is_own: object) -> None:
        if is_own:
            executor.forward_one()
        else:
            _rule_on_foreign_connection(executor, position)

    executor.ask("whose", (client.service, client.context.ids.node(), number), answered)


def _if_ok(executor: Executor, reply: bytes, name: bytes) -> None:
    if reply.startswith(b"+"):
        executor.conversation.note(name=name)


def _client_setinfo(executor: Executor, argv: Argv) -> None:
    if word(argv[2]) == b"LIB-NAME":
        executor.client.set_library(name=argv[3])
    elif word(argv[2]) == b"LIB-VER":
        executor.client.set_library(version=argv[3])

    def answered(reply: bytes) -> None:
        name, version = executor.conversation.profile.library
        if not reply.startswith(b"+"):
            return
        library = (argv[3], version) if word(argv[2]) == b"LIB-NAME" else (name, argv[3])
        executor.conversation.note(library=library)

    inspect_effect(executor, answered)


def _rule_on_foreign_connection(executor: Executor, position: int) -> None:
    """The current request names a connection that the client may not name: refuse it or send it on, as
    the modes say."""
    client, command = executor.client, executor.plan.command
    authorizer = client.current_authorizer()
    ruling = authorizer.strangers_connection(client.asker().service, command, position)
    executor.forward_unless(client.refusal_by(ruling, command, authorizer))
