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
from keyfence.session.conversation.conversation import Doubt
from keyfence.session.conversation.executor import Argv, Executor

from .effects import ask_redis, inspect_effect
from .transactions import OK

_ERRORS = (b"-", b"!")
# Lines of INFO, with what comes before the addresses and between address and port (`src/server.c`,
# genRedisInfoString).
_REPLICA = re.compile(rb"^(slave\d+:ip=)[^,\r\n]*(,port=)\d+", re.MULTILINE)
_PRIMARY = re.compile(rb"^(master_(?:host|port):)[^\r\n]*", re.MULTILINE)
_BULK = re.compile(rb"([$=])\d+\r\n(.*)\r\n", re.DOTALL)


def topology(executor: Executor, _argv: Argv) -> None:
    """CLUSTER NODES, SHARDS, SLOTS: the client gets the answer once it is known whether it may have it, or
    with keyfence's addresses. Inside MULTI it comes only with EXEC's, where these are put in. If there are
    none, or the client's text may have shaped what comes before, the ruling is made without it."""
    cluster, conversation = executor.client.context.cluster, executor.conversation
    transaction, command = conversation.transaction, executor.plan.command
    if transaction is None:
        conversation.when_sure(lambda: _ask(executor))
        return
    is_shapeable = conversation.doubt == Doubt.OPEN or transaction.is_shapeable
    if cluster is None or is_shapeable or transaction.is_full:
        executor.forward_unless(executor.client.rule_on_address(command))
        return
    answer = cluster.answer
    transaction.edit_when_executed(lambda reply: answer(command, reply))
    executor.forward_one()


def replicas(executor: Executor, argv: Argv) -> None:
    """CLUSTER REPLICAS, SLAVES: no client connects to what it reads there, unless it knows clusters."""
    if executor.client.context.cluster is not None:
        topology(executor, argv)
    else:
        executor.forward_one()


def _ask(executor: Executor) -> None:
    cluster, command = executor.client.context.cluster, executor.plan.command

    def answered(reply: bytes) -> None:
        if cluster is not None:
            executor.count_forwarded()
            executor.conversation.replies.local(cluster.answer(command, reply))
            return
        names_any = not reply.startswith(_ERRORS)
        refusal = executor.client.rule_on_address(executor.plan.command) if names_any else None
        if refusal is not None:
            executor.refuse(refusal)
        else:
            executor.count_forwarded()
            executor.conversation.replies.local(reply)

    ask_redis(executor, executor.request, answered, answers=True)


def info(executor: Executor, _argv: Argv) -> None:
    """INFO: the addresses of replicas or of the primary are hidden from a client that may not know them.
    Inside MULTI the answer comes only with EXEC's, and no client connects to what it reads there."""
    client, conversation = executor.client, executor.conversation
    may_know = client.current_authorizer().admits_address(client.asker().service, "INFO")
    if may_know or conversation.transaction is not None:
        executor.forward_one()
        return

    def edited(reply: bytes) -> bytes:
        hidden = without_addresses(reply)
        if hidden != reply:
            client.observer.address_hidden("INFO")
        return hidden

    executor.count_forwarded()
    conversation.to_upstream.append(executor.request)
    conversation.replies.edit(edited)


def without_addresses(reply: bytes) -> bytes:
    """Returns INFO's reply with `?` for each address and port. The reply to a client of RESP3 is a verbatim
    string. Nothing else changes."""
    bulk = _BULK.fullmatch(reply)
    if bulk is None:
        return reply
    text = _PRIMARY.sub(rb"\1?", _REPLICA.sub(rb"\1?\2?", bulk[2]))
    return b"%b%d\r\n%b\r\n" % (bulk[1], len(text), text)


def notices(executor: Executor, argv: Argv) -> None:
    """CLIENT MAINT_NOTIFICATIONS: managed servers then send notices, which name addresses (MOVING). keyfence
    sends notices of its own, which name none (`resp.notices`)."""
    wanted = word(argv[2]) if len(argv) > 2 else b""
    conversation = executor.conversation
    if _may_ask_for_notices(executor):
        if wanted == b"ON":
            inspect_effect(executor, lambda reply: _switched_on(executor, reply))
        else:
            executor.forward_one()
    elif wanted not in (b"ON", b"OFF") or conversation.transaction is not None:
        _answer_as_without_notices(executor, argv)
    elif conversation.replies.resp == 3:
        _switch(executor, argv, wanted)
    else:  # node-redis sends it in one piece with HELLO 3, whose reply may be due
        conversation.when_answered(lambda: _switch(executor, argv, wanted))


def _switch(executor: Executor, argv: Argv, wanted: bytes) -> None:
    """Switch keyfence's own notices on or off, now that the reply to any HELLO is known."""
    replies = executor.conversation.replies
    if replies.resp != 3:
        _answer_as_without_notices(executor, argv)
        return
    replies.takes_notices = wanted == b"ON"
    executor.client.observer.command(executor.client.service, NOTICES, "local")
    replies.local(OK)


def _may_ask_for_notices(executor: Executor) -> bool:
    authorizer, service = executor.client.current_authorizer(), executor.client.asker().service
    return authorizer.spells_out(service, NOTICES) and authorizer.admits_address(service, NOTICES)


def _answer_as_without_notices(executor: Executor, argv: Argv) -> None:
    """As Redis from 7.0 on, which marks an open transaction, too (`src/server.c`, commandCheckExistence)."""
    name = argv[1].partition(b"\0")[0].decode()  # `word` has read it, so it is ASCII
    executor.client.observer.command(executor.client.service, NOTICES, "local")
    executor.answer_refusal(encode.error(f"ERR unknown subcommand '{name}'. Try CLIENT HELP."))


def _switched_on(executor: Executor, reply: bytes) -> None:
    """Redis may send notices at any time from now on."""
    if reply == OK:
        executor.client.rule_on_address(NOTICES)
        executor.client.upstream_shown("notices")
    if not reply.startswith(b"-"):
        executor.conversation.route.pinned = NOTICES
