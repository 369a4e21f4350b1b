"""Commands about the server and its cluster."""

from __future__ import annotations

from keyfence.commands.arguments import word
from keyfence.commands.facts import Argv, Connection, Facts, KeyFinder, Named, each, together
from keyfence.commands.key_runs import Keys, Run, one
from keyfence.commands.model import ANY_KEY, READ, Problem
from keyfence.commands.resources import every_name

_DEBUG_ONE_KEY = frozenset({b"OBJECT", b"SDSLEN", b"ZIPLIST", b"LISTPACK", b"QUICKLIST", b"HTSTATS-KEY"})
_DEBUG_NO_KEY = frozenset({b"HELP", b"SLEEP", b"JMAP", b"ERROR", b"LOG", b"PROTOCOL", b"STRUCTSIZE"})


def _debug(argv: Argv) -> Keys:
    """DEBUG: some subcommands name keys, some touch none, and the others may touch any (`src/debug.c`)."""
    if len(argv) < 2:
        return Keys([])
    name = word(argv[1])
    if name in _DEBUG_ONE_KEY:
        return Keys([Run(one(2), READ)] if len(argv) > 2 else [])
    if name == b"DIGEST-VALUE":
        return Keys([Run(range(2, len(argv)), READ)])
    if name in _DEBUG_NO_KEY:
        return Keys([])
    return Keys([], Problem("command.unknown", 1, "this DEBUG subcommand may touch any key", ANY_KEY))


_OWN = Facts(connection=Connection.OWN)
_GREETING = _OWN._replace(greets=True)

SERVER = together(
    {
        "CLUSTER GETKEYSINSLOT": _OWN._replace(named=Named(every_name, "key pattern", "all keys")),
        "DEBUG": Facts(
            found=KeyFinder(_debug, "argument 2 of OBJECT and its like; with others any key", "read")
        ),
        "TIME": Facts(connection=Connection.ANY),
    },
    each(
        "ACL|WHOAMI CLUSTER|INFO CLUSTER|SHARDS CLUSTER|SLOTS INFO ROLE",
        _GREETING._replace(has_fixed_shape=True),
    ),
    each("CONFIG|GET MODULE|LIST", _GREETING),
    each(
        """
        ACL ACL|CAT ACL|DELUSER ACL|DRYRUN ACL|GENPASS ACL|GETUSER ACL|HELP ACL|LIST ACL|LOAD ACL|LOG ACL|SAVE
        ACL|SETUSER ACL|USERS BGREWRITEAOF BGSAVE CLUSTER|COUNTKEYSINSLOT CLUSTER|HELP CLUSTER|KEYSLOT
        CLUSTER|LINKS CLUSTER|MYID CLUSTER|MYSHARDID CLUSTER|NODES CONFIG|HELP CONFIG|RESETSTAT CONFIG|REWRITE
        CONFIG|SET LASTSAVE LATENCY|DOCTOR LATENCY|GRAPH LATENCY|HELP LATENCY|HISTOGRAM LATENCY|HISTORY
        LATENCY|LATEST LATENCY|RESET LOLWUT MEMORY|DOCTOR MEMORY|HELP MEMORY|MALLOC-STATS MEMORY|PURGE
        MEMORY|STATS MODULE|HELP SAVE SLOWLOG|GET SLOWLOG|HELP SLOWLOG|LEN SLOWLOG|RESET
        """,
        _OWN,
    ),
)
