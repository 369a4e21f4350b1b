"""The commands that change the session itself, and the handler of each.

Rule: Redis decides whether such a command succeeds, and only its reply changes the session. A request whose
evaluation depends on that reply waits for it. A command that changes the client's identity or database is
sent only when no reply is due and no earlier request could have shaped its reply (`when_sure`).
"""

from __future__ import annotations

from keyfence.commands.addresses import Fate, commands_with
from keyfence.commands.arguments import word
from keyfence.session.conversation.executor import Handler

from . import addresses, auth, connection, inband, pubsub, transactions
from .client import client

HANG_UP = Handler(connection.hang_up, is_immediate=True, awaits_multi=False)
_SUBSCRIPTION = Handler(pubsub.subscription)
_REPLICATION = Handler(connection.replication)
_WAIT = Handler(connection.wait)

HANDLERS: dict[bytes, Handler] = {
    b"AUTH": Handler(auth.auth, auth.auth_shared),
    b"CLIENT": Handler(client),
    b"DISCARD": Handler(transactions.discard),
    b"EXEC": Handler(transactions.execute, awaits_multi=False),
    b"HELLO": Handler(auth.hello),
    b"HOST:": HANG_UP,
    b"INFO": Handler(addresses.info),
    b"MONITOR": Handler(connection.monitor),
    b"MULTI": Handler(transactions.multi),
    b"POST": HANG_UP,
    b"PSUBSCRIBE": _SUBSCRIPTION,
    b"PSYNC": _REPLICATION,
    b"PUNSUBSCRIBE": _SUBSCRIPTION,
    b"QUIT": Handler(connection.quit, connection.quit_shared),
    b"REPLCONF": _REPLICATION,
    b"RESET": Handler(connection.reset),
    b"SELECT": Handler(connection.select),
    b"SSUBSCRIBE": _SUBSCRIPTION,
    b"SUBSCRIBE": _SUBSCRIPTION,
    b"SUNSUBSCRIBE": _SUBSCRIPTION,
    b"SYNC": _REPLICATION,
    b"UNSUBSCRIBE": _SUBSCRIPTION,
    b"UNWATCH": Handler(transactions.unwatch),
    b"WAIT": _WAIT,
    b"WAITAOF": _WAIT,
    b"WATCH": Handler(transactions.watch),
}
_LONGEST_NAME = max(map(len, HANDLERS))
# Subcommands whose container has no handler, by their full names.
SUBCOMMAND_HANDLERS = {
    "SCRIPT DEBUG": Handler(connection.script_debug),
    **dict.fromkeys(commands_with(Fate.REFUSED), Handler(addresses.topology)),
    **dict.fromkeys(("CLUSTER REPLICAS", "CLUSTER SLAVES"), Handler(addresses.replicas)),
}

# The commands that keyfence answers itself. Only the policy says whether a service may use them.
OWN = Handler(inband.keyfence)

# For a large request that a handler would need in full, but of which only the beginning is held.
TOO_LARGE = Handler(
    lambda executor, _argv: executor.become_opaque("its deciding argument is too long to be evaluated")
)
# For a name with a NUL in it (`arguments.word`). If Redis knows the command, the session changes.
UNCERTAIN = Handler(lambda executor, _argv: executor.become_opaque("only Redis knows which command it is"))


def handler_of(name: bytes) -> Handler | None:
    """Returns the handler of a command; None for most commands, which go upstream as they are."""
    found = HANDLERS.get(name.upper()) if len(name) <= _LONGEST_NAME else None
    return UNCERTAIN if found is None and b"\0" in name and word(name) in HANDLERS else found
