"""Commands on the whole key space."""

from __future__ import annotations

from keyfence.commands.arguments import option
from keyfence.commands.facts import Argv, Connection, Facts, Named
from keyfence.commands.model import Pattern
from keyfence.commands.resources import ALL_NAMES, NO_RESOURCES, Resources, databases, every_name


def _scan(argv: Argv) -> Resources:
    """SCAN, CLUSTERSCAN cursor …: the last MATCH counts (`src/db.c`, scanGenericCommand).

    Without MATCH, or with an unknown option, the command reaches all keys: a server that knows the option may
    read the rest differently.
    """
    pattern = Pattern(0, b"*")
    index = 2
    while index < len(argv):
        name = option(argv, index)
        if name == b"MATCH" and index + 1 < len(argv):
            pattern = Pattern(index + 1, argv[index + 1])
        elif name not in (b"COUNT", b"SLOT", b"TYPE"):
            return ALL_NAMES
        index += 2
    return Resources(pattern=pattern)


def _keys(argv: Argv) -> Resources:
    """KEYS pattern."""
    return Resources(pattern=Pattern(1, argv[1])) if len(argv) > 1 else NO_RESOURCES


_SCANNED = Named(_scan, "key pattern", "the keys that the last MATCH admits, or all")
KEY_SPACE = {
    "CLUSTERSCAN": Facts(named=_SCANNED),
    "KEYS": Facts(
        named=Named(_keys, "key pattern", "the keys that the pattern in 1 matches"),
        decides=(1, 0),
        connection=Connection.ANY,
    ),
    "RANDOMKEY": Facts(named=Named(every_name, "key pattern", "all keys"), connection=Connection.ANY),
    "SCAN": Facts(named=_SCANNED, decides=(2, 0), connection=Connection.ANY),
    "SWAPDB": Facts(
        named=Named(databases(1, 2), "database", "the databases in 1 and 2"), connection=Connection.OWN
    ),
    "DBSIZE": Facts(connection=Connection.ANY),
    "FLUSHALL": Facts(connection=Connection.OWN),
    "FLUSHDB": Facts(connection=Connection.OWN),
}
