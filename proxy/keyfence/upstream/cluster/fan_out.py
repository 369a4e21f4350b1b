"""Which nodes of a cluster get a command without keys, and how their replies become one reply. No I/O.

Rule: each command of the table has one row here. The servers' own tips decide (`request_policy` and
`response_policy` in COMMAND), except for the rows below, each with its reason.

A command with keys goes to the node that has their hash slot, and is not looked up here. A call that names no
keys, such as EVAL with none, is. What a client gets should be what one Redis would answer. Where that is not
possible, keyfence answers with an error that says so: an answer about one node that looks like one about all
keys is worse. Only what describes a server (INFO, MEMORY STATS) describes one of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from keyfence.commands.facts import each, together
from keyfence.commands.table import COMMANDS, Row, lookup
from keyfence.policy.compiled.hash_slots import SLOTS

from .topology import Node, Topology


class Reach(Enum):
    """Who answers a command, in the words of docs/differences.md."""

    ONE = "one primary"
    SHARDS = "all primaries"
    NODES = "all nodes"
    CHANNEL = "the primary that has the channel's hash slot"
    SCAN = "the primaries, one after the other"
    CLIENT = "keyfence, which follows the client's state"
    NOBODY = "nobody: an error"


class Join(Enum):
    """How replies become one, in the words of docs/differences.md. An error of one node is the answer, except
    with ONE_SUCCEEDS."""

    FIRST = "the reply"
    SUM = "the sum, place by place"
    MINIMUM = "the minimum, place by place"
    CONCATENATED = "all elements"
    DISTINCT = "all elements, each once"
    TEXTS = "all lines"
    ALL_SUCCEED = "the first reply, if all succeed"
    ONE_SUCCEEDS = "the reply of a node where it succeeds"
    RANDOM = "the reply of any node that has one"
    RUNNING = "the reply of the node that runs a script"


class FanOut(NamedTuple):
    """The row of a command."""

    reach: Reach
    join: Join = Join.FIRST
    refusal: str = ""  # the error of NOBODY
    why: str = ""  # it is not as the tips say, or what a client should know


NOT_SERVED = b"-CLUSTERDOWN Hash slot not served\r\n"  # as Redis words it
DISABLED = "ERR This instance has cluster support disabled"  # as Redis words it
NOT_QUEUED = (
    b"ERR %b is not supported in a transaction: keyfence serves a whole cluster, and this concerns "
    b"several nodes"
)
NOT_WHOLE = (
    b"ERR %b is not supported here: keyfence serves a whole cluster, and a client that has subscribed is "
    b"served by one node"
)

_REACHES = {"": Reach.ONE, "all_shards": Reach.SHARDS, "all_nodes": Reach.NODES}
_JOINS = {
    "": Join.CONCATENATED,
    "agg_sum": Join.SUM,
    "agg_min": Join.MINIMUM,
    "agg_logical_and": Join.MINIMUM,  # of 0 and 1
    "all_succeeded": Join.ALL_SUCCEED,
    "one_succeeded": Join.ONE_SUCCEEDS,
}


def _refused(names: str, because: str, why: str) -> dict[str, FanOut]:
    """Rows of commands that keyfence refuses."""
    rows = {}
    for name in each(names, None):
        refusal = f"ERR {name} is not supported: keyfence serves a whole cluster, and {because}"
        rows[name] = FanOut(Reach.NOBODY, refusal=refusal, why=why)
    return rows


_OF_ONE = FanOut(Reach.ONE, why="It describes one node.")
_NOT_IN_A_CLUSTER = FanOut(Reach.ONE, why="Redis itself answers that it is not allowed in cluster mode.")
_FOLLOWED = FanOut(Reach.CLIENT, why="As before one Redis.")
_NO_CLUSTER = FanOut(Reach.NOBODY, refusal=DISABLED, why="A plain client sees a Redis without a cluster.")
_CLUSTER_NAMES = " ".join(
    name.replace(" ", "|") for name in (row.command.name for row in COMMANDS.values()) if "CLUSTER" in name
)

# The rows that tips do not give: tips are missing or `special`, or something else is better.
_OWN: Final[Mapping[str, FanOut]] = together(
    each("PING", FanOut(Reach.ONE, why="It asks whether the client's connection works.")),
    each(
        """
        INFO LATENCY|DOCTOR LATENCY|GRAPH LATENCY|HISTOGRAM LATENCY|HISTORY LATENCY|LATEST MEMORY|DOCTOR
        MEMORY|MALLOC-STATS MEMORY|STATS
        """,
        _OF_ONE,
    ),
    each(
        "RANDOMKEY",
        FanOut(Reach.SHARDS, Join.RANDOM, why="All nodes are equally likely, whatever their number of keys."),
    ),
    each("SCAN", FanOut(Reach.SCAN, why="The cursor holds the place in the cluster.")),
    each("LASTSAVE", FanOut(Reach.SHARDS, Join.MINIMUM, why="All keys have been saved since then.")),
    each(
        "BGREWRITEAOF BGSAVE SAVE",
        FanOut(Reach.SHARDS, Join.ALL_SUCCEED, why="All keys are meant."),
    ),
    each("FUNCTION|STATS", FanOut(Reach.SHARDS, Join.RUNNING)),
    each("ACL|LOAD", FanOut(Reach.NODES, Join.ALL_SUCCEED, why="As ACL SAVE.")),
    each("ACL|LOG", FanOut(Reach.NODES, Join.CONCATENATED, why="As SLOWLOG GET.")),
    each(
        "PUBSUB|CHANNELS PUBSUB|SHARDCHANNELS",
        FanOut(Reach.NODES, Join.DISTINCT, why="A node knows only its own subscribers."),
    ),
    each(
        "PUBSUB|NUMPAT PUBSUB|NUMSUB PUBSUB|SHARDNUMSUB",
        FanOut(Reach.NODES, Join.SUM, why="A node knows only its own subscribers."),
    ),
    each(
        "PUBLISH",
        FanOut(
            Reach.ONE, why="The nodes pass it on. As in any cluster, the reply counts one node's clients."
        ),
    ),
    each("SPUBLISH SSUBSCRIBE SUNSUBSCRIBE", FanOut(Reach.CHANNEL)),
    each("CLIENT|LIST", FanOut(Reach.NODES, Join.TEXTS, why="Ids are a node's own, so they may repeat.")),
    each(
        "CLIENT|PAUSE CLIENT|UNPAUSE",
        FanOut(Reach.SHARDS, Join.ALL_SUCCEED, why="All keys are meant."),
    ),
    each(
        """
        AUTH CLIENT|CAPA CLIENT|GETNAME CLIENT|GETREDIR CLIENT|ID CLIENT|INFO CLIENT|MAINT_NOTIFICATIONS
        CLIENT|REPLY CLIENT|SETINFO CLIENT|SETNAME CLIENT|TRACKINGINFO DISCARD EXEC HELLO HOST: MULTI POST
        PSUBSCRIBE PUNSUBSCRIBE QUIT RESET SUBSCRIBE UNSUBSCRIBE UNWATCH
        """,
        _FOLLOWED,
    ),
    each(
        "SELECT",
        FanOut(Reach.CLIENT, why="Redis itself refuses all databases but 0, up to Valkey 8."),
    ),
    each("FAILOVER REPLICAOF SLAVEOF SWAPDB", _NOT_IN_A_CLUSTER),
    each(f"ASKING READONLY READWRITE {_CLUSTER_NAMES}", _NO_CLUSTER),
    _refused(
        """
        BACKUP|ABORT BACKUP|CLEANUP BACKUP|LIST BACKUP|SEAL BACKUP|START BACKUP|STATUS DEBUG HOTKEYS|GET
        HOTKEYS|RESET HOTKEYS|START HOTKEYS|STOP MODULE|LOAD MODULE|LOADEX MODULE|UNLOAD MONITOR PSYNC
        REPLCONF SCRIPT|DEBUG SHUTDOWN SYNC TRIMSLOTS
        """,
        "this concerns one node",
        "It concerns one node: ask the node itself.",
    ),
    _refused(
        "CLIENT|KILL CLIENT|UNBLOCK",
        "each node has ids and addresses of its own",
        "An id of another node's connection could be meant.",
    ),
    _refused(
        """
        CLIENT|CACHING CLIENT|IMPORT-SOURCE CLIENT|NO-EVICT CLIENT|NO-TOUCH CLIENT|TRACKING HIMPORT|DISCARD
        HIMPORT|DISCARDALL HIMPORT|PREPARE
        """,
        "this would hold for one node's connection",
        "It would hold for the connection to one node only.",
    ),
)


def _row(row: Row) -> FanOut:
    own = _OWN.get(row.command.name)
    if own is not None:
        return own
    if row.command.names_keys:  # and this call does not
        return FanOut(Reach.ONE)
    reach = _REACHES[row.tips.request]
    return FanOut(reach, _JOINS[row.tips.response]) if reach is not Reach.ONE else FanOut(reach)


# By full name: `CONFIG SET`.
ROWS: Final[Mapping[str, FanOut]] = {row.command.name: _row(row) for row in COMMANDS.values()}
_UNKNOWN = FanOut(Reach.ONE)  # the node answers, with an error or because a module has the command


def fan_out(argv: Sequence[bytes]) -> FanOut:
    """The row of a call that names no keys."""
    row = lookup(argv)
    return ROWS[row.command.name] if row is not None else _UNKNOWN


def asked(row: FanOut, topology: Topology) -> tuple[Node, ...]:
    """The nodes of a row with SHARDS or NODES. None if a hash slot has no node: the joined reply would lack
    its part.

    A primary that has hash slots is always asked, even if it seems to be down, for the same reason. Other
    nodes are left out while they are down.
    """
    if topology.covered < SLOTS:
        return ()
    owners = tuple(topology.owners())
    if row.reach is not Reach.NODES:
        return owners
    others = (one for one in topology.nodes if not one.slots and one.host and one.is_healthy)
    return (*owners, *others)
