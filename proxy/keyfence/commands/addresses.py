"""Which answers of Redis name an address, and what becomes of each where the rule redis.address is enforced.

Rule: no client leaves keyfence by itself. An answer is withheld only if client libraries connect to what it
names; all others pass byte for byte. Every command of the categories admin and connection has a row here.

What clients do with an answer comes from their sources (redis-py, go-redis, node-redis, ioredis, Lettuce,
StackExchange.Redis, Predis), what an answer holds from the commands' documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from .facts import each, together


class Fate(Enum):
    """What becomes of an answer where the rule is enforced, in the words of docs/differences.md."""

    NO_ADDRESS = "passes, for it names no address"
    PASSES = "passes"
    EDITED = "`?` in place of each address and port"
    NEVER_ASKED = "keyfence answers `+OK` with RESP3, and otherwise `-ERR unknown subcommand`"
    DROPPED = "dropped"
    REFUSED = "`-NOPERM [redis.address]`"


class Answer(NamedTuple):
    """An answer, and what clients do with it."""

    fate: Fate
    names: str = ""  # the addresses that it names
    why: str = ""


_GRANTED = "It is administrative, so a policy must grant it."
_ADMINISTRATIVE = f"No client asks by itself. {_GRANTED}"

# The command by which a client asks a managed Redis for notices, and the first words of these pushes. MOVING
# and SMIGRATED name addresses; without them the others are of no use to a client.
NOTICES: Final = "CLIENT MAINT_NOTIFICATIONS"
NOTICE_WORDS: Final = frozenset(
    (b"MOVING", b"MIGRATING", b"MIGRATED", b"FAILING_OVER", b"FAILED_OVER", b"SMIGRATING", b"SMIGRATED")
)

# By full name: `CLUSTER SLOTS`. A command without a row names no address.
ANSWERS: Final[Mapping[str, Answer]] = together(
    each(
        "CLUSTER|NODES CLUSTER|SHARDS CLUSTER|SLOTS",
        Answer(Fate.REFUSED, "all nodes", "Clients for a cluster connect to every node."),
    ),
    {
        NOTICES: Answer(
            Fate.NEVER_ASKED,
            "none; the pushes that follow name the place to which Redis moves",
            "redis-py, go-redis, node-redis and Lettuce ask when they connect, and follow these pushes. "
            "keyfence [sends its own](operations.md#draining). Redis is not asked in observe either, unless "
            "the [policy](policy.md#commands-scans-and-grants) allows the command by name.",
        ),
    },
    each(
        "INFO",
        Answer(
            Fate.EDITED,
            "replicas (`slave0:ip=…,port=…`), or the primary (`master_host`, `master_port`)",
            "Clients need it to start. Lettuce (`MasterReplica`) and Predis (`autodiscovery`) connect to the "
            "addresses; without them they stay with keyfence. Inside MULTI it passes.",
        ),
    ),
    each(
        "ROLE",
        Answer(
            Fate.PASSES,
            "replicas, or the primary",
            f"Clients read no more than the role and the state. {_GRANTED}",
        ),
    ),
    each(
        "SENTINEL",
        Answer(
            Fate.PASSES,
            "the primary, replicas and Sentinels",
            "Only a Sentinel knows the command; elsewhere it is unknown. keyfence warns of a Sentinel "
            "([operations](operations.md#redis-cluster-and-sentinel)).",
        ),
    ),
    each("CLUSTER|REPLICAS CLUSTER|SLAVES", Answer(Fate.PASSES, "a node's replicas", _ADMINISTRATIVE)),
    each(
        "CLIENT|INFO",
        Answer(
            Fate.PASSES,
            "both ends of the connection to Redis, which is keyfence's",
            "No client connects to them.",
        ),
    ),
    each("CLIENT|LIST", Answer(Fate.PASSES, "both ends of every connection to Redis", _ADMINISTRATIVE)),
    each(
        "CONFIG|GET",
        Answer(
            Fate.PASSES,
            "`bind`, `port`, `replicaof`, `cluster-announce-ip` and similar settings",
            f"Clients ask for other settings (`databases`, `timeout`). {_GRANTED}",
        ),
    ),
    each(
        "ACL|LOG COMMANDLOG|GET MONITOR SLOWLOG|GET",
        Answer(Fate.PASSES, "clients of Redis, which are keyfence", _ADMINISTRATIVE),
    ),
    each(
        "CLIENT|KILL CLUSTER|MEET CONFIG|SET FAILOVER MIGRATE REPLCONF REPLICAOF SLAVEOF",
        Answer(Fate.PASSES, "none; its arguments do", "Redis uses the address, not the client."),
    ),
    each(
        "CLIENT|CAPA",
        Answer(
            Fate.PASSES,
            "none; after `CLIENT CAPA redirect` replicas of Valkey answer with the error REDIRECT",
            "Only the error leads away.",
        ),
    ),
    each(
        """
        ACL ACL|DELUSER ACL|DRYRUN ACL|GETUSER ACL|LIST ACL|LOAD ACL|SAVE ACL|SETUSER ACL|USERS ASKING AUTH
        BACKUP|ABORT BACKUP|CLEANUP BACKUP|LIST BACKUP|SEAL BACKUP|START BACKUP|STATUS BGREWRITEAOF BGSAVE
        CLIENT CLIENT|CACHING CLIENT|GETNAME CLIENT|GETREDIR CLIENT|HELP CLIENT|ID CLIENT|IMPORT-SOURCE
        CLIENT|NO-EVICT CLIENT|NO-TOUCH CLIENT|PAUSE CLIENT|REPLY CLIENT|SETINFO CLIENT|SETNAME
        CLIENT|TRACKING CLIENT|TRACKINGINFO CLIENT|UNBLOCK CLIENT|UNPAUSE CLUSTER CLUSTER|ADDSLOTS
        CLUSTER|ADDSLOTSRANGE CLUSTER|BUMPEPOCH CLUSTER|CANCELSLOTMIGRATIONS CLUSTER|COUNT-FAILURE-REPORTS
        CLUSTER|COUNTKEYSINSLOT CLUSTER|DELSLOTS CLUSTER|DELSLOTSRANGE CLUSTER|FAILOVER CLUSTER|FLUSHSLOT
        CLUSTER|FLUSHSLOTS CLUSTER|FORGET CLUSTER|GETKEYSINSLOT CLUSTER|GETSLOTMIGRATIONS CLUSTER|HELP
        CLUSTER|INFO CLUSTER|KEYSLOT CLUSTER|LINKS CLUSTER|MIGRATESLOTS CLUSTER|MIGRATION CLUSTER|MYID
        CLUSTER|MYSHARDID CLUSTER|REPLICATE CLUSTER|RESET CLUSTER|SAVECONFIG CLUSTER|SET-CONFIG-EPOCH
        CLUSTER|SETSLOT CLUSTER|SLOT-STATS CLUSTER|SYNCSLOTS COMMAND COMMAND|COUNT COMMAND|DOCS
        COMMAND|GETKEYS COMMAND|GETKEYSANDFLAGS COMMAND|HELP COMMAND|INFO COMMAND|LIST COMMANDLOG|LEN
        COMMANDLOG|RESET CONFIG CONFIG|RESETSTAT CONFIG|REWRITE DEBUG ECHO FT.CONFIG HELLO HOTKEYS|GET
        HOTKEYS|RESET HOTKEYS|START HOTKEYS|STOP LASTSAVE LATENCY LATENCY|DOCTOR LATENCY|GRAPH
        LATENCY|HISTOGRAM LATENCY|HISTORY LATENCY|LATEST LATENCY|RESET MODULE MODULE|LIST MODULE|LOAD
        MODULE|LOADEX MODULE|UNLOAD PFDEBUG PFSELFTEST PING PSYNC QUIT READONLY READWRITE RESET SAVE SELECT
        SHUTDOWN SLOWLOG SLOWLOG|LEN SLOWLOG|RESET SYNC WAIT WAITAOF
        """,
        Answer(Fate.NO_ADDRESS),
    ),
)

# Errors and pushes that name an address, whatever command they follow.
UNASKED: Final[Mapping[str, Answer]] = together(
    {
        "an error MOVED or ASK": Answer(
            Fate.REFUSED, "the node that has the key", "Clients for a cluster go there."
        ),
        "an error REDIRECT": Answer(
            Fate.REFUSED,
            "the primary",
            "Clients that have sent `CLIENT CAPA redirect` go there (rueidis, Jedis, Relay, valkey-swift).",
        ),
        "a push MOVING, MIGRATING, MIGRATED, FAILING_OVER, FAILED_OVER, SMIGRATING or SMIGRATED": Answer(
            Fate.DROPPED,
            "the place to which Redis moves",
            "Clients that have asked for notices go there. Others are not sent any.",
        ),
    },
)


def commands_with(fate: Fate) -> frozenset[str]:
    """The commands whose answers have this fate."""
    return frozenset(name for name, answer in ANSWERS.items() if answer.fate is fate)
