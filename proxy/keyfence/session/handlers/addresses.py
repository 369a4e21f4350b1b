"""Requests that ask for addresses of Redis: CLUSTER NODES, SHARDS and SLOTS, and CLIENT MAINT_NOTIFICATIONS.

Rule: only an answer that names addresses is a violation. Clients try these commands at connect, and most
servers answer with an error, which the client gets. So Redis is asked before anything is refused. Redis is
never asked for notices that would be refused: they may come at any time from its answer on.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.commands.arguments import word
from keyfence.resp.encode import command
from keyfence.session.conversation.executor import Argv, Executor

from .effects import inspect_effect
from .transactions import OK

_NOTICES = "CLIENT MAINT_NOTIFICATIONS"
_SWITCH_OFF = command(b"CLIENT", b"MAINT_NOTIFICATIONS", b"OFF")
_ERRORS = (b"-", b"!")


def topology(session: Executor, _argv: Argv) -> None:
    """CLUSTER NODES, SHARDS, SLOTS: the client gets the answer once it is known whether it may have it."""
    _outside_multi(session, lambda: _ask(session, session.request))


def notices(session: Executor, argv: Argv) -> None:
    """CLIENT MAINT_NOTIFICATIONS: managed servers then send notices, which name addresses (MOVING)."""
    if len(argv) < 3 or word(argv[2]) != b"ON":
        session.forward_one()
    elif _may_know_addresses(session):
        inspect_effect(session, lambda reply: _switched_on(session, reply))
    else:
        _outside_multi(session, lambda: _ask(session, _SWITCH_OFF))


def _outside_multi(session: Executor, ask: Callable[[], None]) -> None:
    """Ask Redis. Inside MULTI its answer comes only with EXEC's, so the command is judged without it."""
    if session.transaction is None:
        session.when_sure(ask)
        return
    refusal = session.rule_on_address(session.decided.command)
    if refusal is None:
        session.forward_one()
    else:
        session.refuse(refusal)


def _ask(session: Executor, request: bytes) -> None:
    def answered(reply: bytes) -> None:
        session.release()
        names_any = not reply.startswith(_ERRORS)
        refusal = session.rule_on_address(session.decided.command) if names_any else None
        if refusal is not None:
            session.refuse(refusal)
        else:
            session.count_forwarded()
            session.replies.local(reply)

    session.to_upstream.append(request)
    session.replies.drop(answered)
    session.hold()


def _switched_on(session: Executor, reply: bytes) -> None:
    """Redis may send notices at any time from now on."""
    if reply == OK:
        session.rule_on_address(_NOTICES)
        session.observer.upstream_shown("notices")
    if not reply.startswith(b"-"):
        session.route.pinned = _NOTICES


def _may_know_addresses(session: Executor) -> bool:
    """Whether the client may be told addresses of Redis, as the modes say. Nothing is reported."""
    ruling = session.current_authorizer().address(session.asker().service, session.decided.command)
    return ruling.refused_by is None
