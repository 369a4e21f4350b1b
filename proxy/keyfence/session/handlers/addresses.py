"""Requests whose answers may lead past keyfence (`commands.addresses`).

Rule: only an answer that names addresses is a violation. Clients try these commands at connect, and most
servers answer with an error, which the client gets. So Redis is asked before anything is refused. Redis is
not asked for notices, which may come at any time from its answer on, unless the policy names the command.
INFO is never a violation, because clients need it to start: what it names is hidden.
"""

from __future__ import annotations

import re

from keyfence.commands.addresses import NOTICES
from keyfence.commands.arguments import word
from keyfence.resp import encode
from keyfence.session.conversation.conversation import ABORT_MARKER
from keyfence.session.conversation.executor import Argv, Executor

from .effects import inspect_effect
from .transactions import OK

_ERRORS = (b"-", b"!")
# Lines of INFO, with what comes before the addresses and between address and port (`src/server.c`,
# genRedisInfoString).
_REPLICA = re.compile(rb"^(slave\d+:ip=)[^,\r\n]*(,port=)\d+", re.MULTILINE)
_PRIMARY = re.compile(rb"^(master_(?:host|port):)[^\r\n]*", re.MULTILINE)
_BULK = re.compile(rb"([$=])\d+\r\n(.*)\r\n", re.DOTALL)


def topology(session: Executor, _argv: Argv) -> None:
    """CLUSTER NODES, SHARDS, SLOTS: the client gets the answer once it is known whether it may have it.
    Inside MULTI the answer comes only with EXEC's, so the command is judged without it."""
    if session.transaction is None:
        session.when_sure(lambda: _ask(session))
        return
    refusal = session.rule_on_address(session.decided.command)
    if refusal is None:
        session.forward_one()
    else:
        session.refuse(refusal)


def _ask(session: Executor) -> None:
    def answered(reply: bytes) -> None:
        session.release()
        names_any = not reply.startswith(_ERRORS)
        refusal = session.rule_on_address(session.decided.command) if names_any else None
        if refusal is not None:
            session.refuse(refusal)
        else:
            session.count_forwarded()
            session.replies.local(reply)

    session.to_upstream.append(session.request)
    session.replies.drop(answered)
    session.hold()


def info(session: Executor, _argv: Argv) -> None:
    """INFO: the addresses of replicas or of the primary are hidden from a client that may not know them.
    Inside MULTI the answer comes only with EXEC's, and no client connects to what it reads there."""
    may_know = session.current_authorizer().admits_address(session.asker().service, "INFO")
    if may_know or session.transaction is not None:
        session.forward_one()
        return

    def edited(reply: bytes) -> bytes:
        hidden = without_addresses(reply)
        if hidden != reply:
            session.observer.address_hidden("INFO")
        return hidden

    session.count_forwarded()
    session.to_upstream.append(session.request)
    session.replies.edit(edited)


def without_addresses(reply: bytes) -> bytes:
    """Returns INFO's reply with `?` for each address and port. The reply to a client of RESP3 is a verbatim
    string. Nothing else changes."""
    bulk = _BULK.fullmatch(reply)
    if bulk is None:
        return reply
    text = _PRIMARY.sub(rb"\1?", _REPLICA.sub(rb"\1?\2?", bulk[2]))
    return b"%b%d\r\n%b\r\n" % (bulk[1], len(text), text)


def notices(session: Executor, argv: Argv) -> None:
    """CLIENT MAINT_NOTIFICATIONS: managed servers then send notices, which name addresses (MOVING). keyfence
    sends notices of its own, which name none (`resp.notices`)."""
    wanted = word(argv[2]) if len(argv) > 2 else b""
    if _may_ask_for_notices(session):
        if wanted == b"ON":
            inspect_effect(session, lambda reply: _switched_on(session, reply))
        else:
            session.forward_one()
    elif wanted in (b"ON", b"OFF") and session.profile.resp == 3 and session.transaction is None:
        session.takes_notices = wanted == b"ON"
        session.observer.command(session.service, NOTICES, "local")
        session.replies.local(OK)
    else:
        _answer_as_without_notices(session, argv)


def _may_ask_for_notices(session: Executor) -> bool:
    authorizer, service = session.current_authorizer(), session.asker().service
    return authorizer.spells_out(service, NOTICES) and authorizer.admits_address(service, NOTICES)


def _answer_as_without_notices(session: Executor, argv: Argv) -> None:
    """As Redis from 7.0 on, which marks an open transaction, too (`src/server.c`, commandCheckExistence)."""
    name = argv[1].partition(b"\0")[0].decode()  # `word` has read it, so it is ASCII
    error = encode.error(f"ERR unknown subcommand '{name}'. Try CLIENT HELP.")
    session.observer.command(session.service, NOTICES, "local")
    if session.transaction is None:
        session.replies.local(error)
    else:
        session.to_upstream.append(ABORT_MARKER)
        session.replies.replace(error)


def _switched_on(session: Executor, reply: bytes) -> None:
    """Redis may send notices at any time from now on."""
    if reply == OK:
        session.rule_on_address(NOTICES)
        session.observer.upstream_shown("notices")
    if not reply.startswith(b"-"):
        session.route.pinned = NOTICES
