"""CLIENT and its subcommands: name, library, notices, redirection.

Rule: a client redirects only to connections of its own service, and if there are tenants, of its own tenant.
"""

from __future__ import annotations

from keyfence.commands.arguments import word
from keyfence.policy.services import UNKNOWN
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.refusal import refusal
from keyfence.session.conversation.shown_ids import redirections

from .addresses import notices
from .auth import show_id
from .client_reply import client_reply
from .effects import inspect_effect


def client(session: Executor, argv: Argv) -> None:
    subcommand = word(argv[1]) if len(argv) > 1 else b""
    if subcommand == b"REPLY" and len(argv) == 3:
        client_reply(session, argv)
    elif subcommand == b"SETNAME" and len(argv) == 3:
        inspect_effect(session, lambda reply: _if_ok(session, reply, name=argv[2]))
    elif subcommand == b"SETINFO" and len(argv) == 4:
        _client_setinfo(session, argv)
    elif subcommand == b"MAINT_NOTIFICATIONS":
        notices(session, argv)
    elif subcommand in (b"ID", b"INFO"):
        show_id(session)
    elif subcommand == b"TRACKING":
        _client_tracking(session, argv)
    else:
        session.forward_one()


def _client_tracking(session: Executor, argv: Argv) -> None:
    """CLIENT TRACKING may redirect to a connection, but not to one of another service or another tenant."""
    ids = session.context.ids
    # If tenants share a service, a client of the service may belong to another tenant.
    caller = session.caller if session.asker().values else None
    foreign = [
        (position, number)
        for position, number in redirections(argv)
        if not ids.is_own(session, number) and not ids.is_of(session.service, number, caller)
    ]
    if not foreign:
        session.forward_one()
    elif ids.is_all or caller is not None or session.service == UNKNOWN or len(foreign) > 1:
        _rule_on_foreign_connection(session, foreign[0][0])
    else:
        session.when_answered(lambda: _ask_others(session, *foreign[0]))


def _ask_others(session: Executor, position: int, number: int) -> None:
    def answered(is_own: object) -> None:
        if is_own:
            session.forward_one()
        else:
            _rule_on_foreign_connection(session, position)

    session.ask("whose", (session.service, number), answered)


def _if_ok(session: Executor, reply: bytes, name: bytes) -> None:
    if reply.startswith(b"+"):
        session.profile = session.profile._replace(name=name)


def _client_setinfo(session: Executor, argv: Argv) -> None:
    if word(argv[2]) == b"LIB-NAME":
        session.set_library(name=argv[3])
    elif word(argv[2]) == b"LIB-VER":
        session.set_library(version=argv[3])

    def answered(reply: bytes) -> None:
        name, version = session.profile.library
        if not reply.startswith(b"+"):
            return
        library = (argv[3], version) if word(argv[2]) == b"LIB-NAME" else (name, argv[3])
        session.profile = session.profile._replace(library=library)

    inspect_effect(session, answered)


def _rule_on_foreign_connection(session: Executor, position: int) -> None:
    """The current request names a connection that the client may not name: refuse it or send it on, as
    the modes say."""
    authorizer, command = session.current_authorizer(), session.decided.command
    ruling = authorizer.strangers_connection(session.asker().service, command, position)
    decision = session.report(ruling, command, authorizer)
    if ruling.refused_by is None:
        session.forward_one()
    else:
        session.refuse(refusal(ruling.refused_by, authorizer.policy.contact, decision))
