"""KEYFENCE: what keyfence tells the services to which the policy grants it.

Rule: keyfence answers in the command's place among the replies, and changes nothing. What the session does
not know itself, it asks of its owner; until the answer is in, nothing more is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfence.commands.arguments import word
from keyfence.commands.own import KEYFENCE, OWN_COMMANDS, OwnCommand, own_name
from keyfence.policy.rules import RULES
from keyfence.policy.show import printable
from keyfence.resp import encode
from keyfence.resp.values import answer, lines
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.known_client import KnownClient
from keyfence.session.conversation.owner_questions import Kind

# Arguments of a command to explain, and their bytes. Explaining takes longer than authorizing, and is done
# for one client after the other.
MAX_EXPLAINED = 100
MAX_EXPLAINED_BYTES = 65_536

# Redis' own words for such commands (`src/server.c`, processCommand).
_IN_MULTI = encode.error("ERR Command not allowed inside a transaction")
_SUBSCRIBED = encode.error(
    "ERR Can't execute 'keyfence': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed "
    "in this context"
)
TOO_LONG = encode.error("ERR keyfence: this command is too long to be explained; use keyfence explain --file")
_NO_ANSWER = encode.error("ERR keyfence: no answer in time from keyfence's other processes; try again")
_OF_TENANTS = encode.error(
    "ERR keyfence: this would show other tenants' keys and clients; "
    "use a service that the policy lists under across"
)


def keyfence(executor: Executor, argv: Argv) -> None:
    name = own_name(argv)
    if executor.conversation.transaction is not None:
        executor.refuse(_IN_MULTI)
    else:
        executor.client.observer.command(executor.client.service, name, "local")
        # Replies that are due may still change the protocol, or what the client is subscribed to.
        executor.conversation.when_answered(lambda: _answer(executor, argv, name))


def _answer(executor: Executor, argv: Argv, name: str) -> None:
    client, replies = executor.client, executor.conversation.replies
    own = OWN_COMMANDS.get(name)
    fault = _SUBSCRIBED if executor.conversation.is_subscriber else _fault(argv, own)
    if fault or own is None:
        replies.local(fault)
        return
    subcommand = name.removeprefix(KEYFENCE + " ")
    if subcommand == "HELP":
        replies.local(_HELP)
    elif subcommand == "WHOAMI":
        _reply(executor, _whoami(client))
    elif subcommand == "MODES":
        _reply(executor, _modes(client))
    elif subcommand == "EXPLAIN":
        _ask(executor, "explain", (client.service, tuple(argv[2:]), client.caller))
    elif subcommand == "UPSTREAMS":
        _ask(executor, "upstreams", ())
    elif subcommand in ("FINDINGS", "SHOW") and _has_tenants(client):
        replies.local(_OF_TENANTS)
    else:
        _ask(executor, _ABOUT_THE_SERVICE[subcommand], (client.service,))


def _has_tenants(client: KnownClient) -> bool:
    """Whether clients of this service may be different tenants, of which none may learn the others' keys."""
    number = client.asker().service
    return any(number not in one.across for one in client.current_authorizer().policy.bindings)


_ABOUT_THE_SERVICE: Mapping[str, Kind] = {
    "FINDINGS": "findings",
    "READINESS": "readiness",
    "STATS": "stats",
    "SHOW": "clients",
}


def _fault(argv: Argv, own: OwnCommand | None) -> bytes:
    """The error for a call of the wrong form, as Redis words it; empty for the right one."""
    if len(argv) < 2:
        return encode.error("ERR wrong number of arguments for 'keyfence' command")
    if own is None:
        return _unknown(f"subcommand '{printable(argv[1])}'")
    count = len(argv) - 2
    if count < own.least or (own.most is not None and count > own.most):
        name = own.name.lower().replace(" ", "|")
        return encode.error(f"ERR wrong number of arguments for '{name}' command")
    if own.arguments == "CLIENTS" and word(argv[2]) != b"CLIENTS":
        return _unknown(f"argument '{printable(argv[2])}'")
    if own.name == "KEYFENCE EXPLAIN" and (
        count > MAX_EXPLAINED or sum(map(len, argv)) > MAX_EXPLAINED_BYTES
    ):
        return TOO_LONG
    return b""


def _unknown(what: str) -> bytes:
    return encode.error(f"ERR unknown {what}. Try KEYFENCE HELP.")


def _help() -> bytes:
    texts = ["KEYFENCE <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for own in OWN_COMMANDS.values():
        form = own.name.removeprefix(KEYFENCE + " ")
        texts += [f"{form} {own.arguments}".rstrip(), f"    {own.meaning}"]
    return lines(texts)


_HELP = _help()


# -- what the session knows itself


def _whoami(client: KnownClient) -> dict[str, object]:
    policy = client.current_authorizer().policy
    user = client.caller.user
    return {
        "service": client.service,
        "identified_by": _identified_by(client) or "nothing",
        "user": None if user is None else printable(user),
        "address": client.peer.address,
        "policy": policy.name,
        "revision": policy.revision,
        "contact": policy.contact,
    }


def _identified_by(client: KnownClient) -> str:
    """The source of identity that the service is from; "" if there is none."""
    user = client.caller.user
    if user is not None and client.context.identities.names_service(user):
        return "user"
    return client.origin.known_by


def _modes(client: KnownClient) -> dict[str, object]:
    modes, number = client.current_authorizer().modes, client.asker().service
    return {rule: modes.mode(rule, number) for rule in RULES}


def _reply(executor: Executor, fields: Mapping[str, object]) -> None:
    replies = executor.conversation.replies
    replies.local(answer(fields, replies.resp))


# -- what the session asks


def _ask(executor: Executor, kind: Kind, content: tuple[object, ...]) -> None:
    def answered(fields: Mapping[str, object] | None) -> None:
        if fields is None:
            executor.conversation.replies.local(_NO_ANSWER)
        elif "error" in fields:
            executor.conversation.replies.local(encode.error(f"ERR keyfence: {fields['error']}"))
        else:
            _reply(executor, fields)

    executor.ask(kind, content, answered)
