"""Commands that concern the client's own connection, and transactions."""

from __future__ import annotations

from keyfence.commands.arguments import each_option, glob_escape
from keyfence.commands.facts import Argv, Connection, Facts, Named, each, together
from keyfence.commands.key_runs import bounded
from keyfence.commands.model import READ, Pattern, Problem, Unseen
from keyfence.commands.resources import ALL_NAMES, NO_RESOURCES, Resources, databases


def _tracking(argv: Argv) -> Resources:
    """CLIENT TRACKING ON … BCAST: the server sends the names of all changed keys that begin with a PREFIX.

    Without BCAST it sends only names of keys that this client has read (`src/tracking.c`).
    """
    prefixes: list[int] = []
    broadcasts = False
    for name, index in each_option(argv, 3, {b"PREFIX": 1, b"REDIRECT": 1}):
        if name == b"PREFIX":
            prefixes.append(index + 1)
        broadcasts = broadcasts or name == b"BCAST"
    if not broadcasts:
        return NO_RESOURCES
    if not prefixes:
        return ALL_NAMES
    if len(prefixes) > 1:
        unseen = bounded(Unseen(glob_escape(argv[at]) + b"*", READ) for at in prefixes)
        return Resources(problem=Problem("scan.scope", prefixes[0], "it names several prefixes", unseen))
    return Resources(pattern=Pattern(prefixes[0], glob_escape(argv[prefixes[0]]) + b"*"))


_FOLLOWED = Facts(connection=Connection.FOLLOWED)
_OWN = Facts(connection=Connection.OWN)
_SHAPED = _OWN._replace(has_fixed_shape=True)

CONNECTION = together(
    each("AUTH CLIENT|MAINT_NOTIFICATIONS HELLO", _FOLLOWED._replace(greets=True)),
    each("CLIENT|REPLY DISCARD EXEC MONITOR MULTI QUIT RESET UNWATCH", _FOLLOWED),
    each("CLIENT|CAPA CLIENT|GETNAME CLIENT|ID CLIENT|INFO", _SHAPED._replace(greets=True)),
    each("CLIENT|SETINFO CLIENT|SETNAME COMMAND COMMAND|DOCS COMMAND|INFO", _SHAPED._replace(greets=True)),
    each("CLIENT|LIST CLIENT|UNBLOCK COMMAND|COUNT WAIT WAITAOF", _SHAPED),
    each("CLIENT|GETREDIR CLIENT|HELP CLIENT|KILL CLIENT|PAUSE CLIENT|TRACKINGINFO CLIENT|UNPAUSE", _OWN),
    each("COMMAND|GETKEYS COMMAND|GETKEYSANDFLAGS COMMAND|HELP COMMAND|LIST", _OWN),
    each("ECHO PING", Facts(connection=Connection.ANY)),
    {
        "CLIENT TRACKING": Facts(
            named=Named(_tracking, "key pattern", "with BCAST all keys, or those that begin as its PREFIX"),
            connection=Connection.STAYS,
            has_fixed_shape=True,
        ),
        "SELECT": Facts(
            named=Named(databases(1), "database", "the database in 1"),
            connection=Connection.FOLLOWED,
            greets=True,
        ),
        "WATCH": Facts(shows_existence=True, connection=Connection.FOLLOWED),
    },
)
