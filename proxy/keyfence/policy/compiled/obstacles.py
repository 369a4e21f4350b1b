"""What a Redis Cluster refuses or does differently: one table, and which rows a command meets.

Rule: this table is the only list of obstacles. Their names are stable: JSON answers have them. An obstacle is
a fact about a command and its keys, so no right and no mode decides about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple

from keyfence.commands.facts import Connection, each
from keyfence.commands.model import MANY, Channel, Script, Touches
from keyfence.commands.table import COMMANDS
from keyfence.policy.patterns.globs import Glob

from .hash_tags import NOWHERE, Place
from .policy import CompiledPolicy
from .tenants import Values

# breaks: a cluster refuses the command. partial: it answers, but for the keys of one node. unknown: keyfence
# cannot tell. costs: it works, and takes more than today.
Level = Literal["breaks", "partial", "unknown", "costs"]


class Obstacle(NamedTuple):
    """One way in which a command meets a cluster."""

    name: str
    level: Level
    meaning: str  # completes "COMMAND …"
    remedy: str


COMMAND: Final = "slots.command"
TRANSACTION: Final = "slots.transaction"
SCRIPT: Final = "slots.script"
WATCH: Final = "slots.watch"
CHANNEL: Final = "slots.channel"
UNDECLARED: Final = "script.undeclared"
DATABASE: Final = "database"
SORT: Final = "sort.patterns"
ONE_NODE: Final = "one.node"
SCRIPTS: Final = "scripts.one.node"
SUBSCRIBERS: Final = "subscribers.one.node"
NOTIFICATIONS: Final = "notifications"
UNKNOWN: Final = "command.unknown"
PUBSUB: Final = "pubsub"

_TAG: Final = "give the keys one hash tag, as {tag}"
_ALL: Final = (
    Obstacle(COMMAND, "breaks", "has keys in different hash slots", f"{_TAG}, or split the command"),
    Obstacle(TRANSACTION, "breaks", "has a key in another hash slot than its transaction", _TAG),
    Obstacle(SCRIPT, "breaks", "runs a script with keys in different hash slots", _TAG),
    Obstacle(WATCH, "breaks", "watches a key in another hash slot than the others", _TAG),
    Obstacle(CHANNEL, "breaks", "names shard channels in different hash slots", _TAG),
    Obstacle(
        UNDECLARED,
        "breaks",
        "runs a script whose keys do not show in KEYS",
        "pass all of its keys as KEYS, with one hash tag",
    ),
    Obstacle(
        DATABASE,
        "breaks",
        "names a database, and a cluster has database 0 only",
        "use a prefix in place of the database, or set cluster-databases of Valkey 9",
    ),
    Obstacle(
        SORT, "breaks", "reads keys by BY or GET", "Redis 7.4 and later allow it, where one hash tag is shown"
    ),
    Obstacle(ONE_NODE, "partial", "reaches the keys of one node", "send it to every primary"),
    Obstacle(SCRIPTS, "partial", "reaches the scripts and functions of one node", "send it to every primary"),
    Obstacle(SUBSCRIBERS, "partial", "tells of the subscribers of one node", "ask every node"),
    Obstacle(
        NOTIFICATIONS, "partial", "hears of the keys of one node", "subscribe at every node, or use a stream"
    ),
    Obstacle(
        UNKNOWN,
        "unknown",
        "is not known, nor are its keys",
        "use a command that keyfence knows, or try it",
    ),
    Obstacle(
        PUBSUB,
        "costs",
        "goes to every node of a cluster",
        "SPUBLISH and SSUBSCRIBE use one shard",
    ),
)
OBSTACLES: Final[Mapping[str, Obstacle]] = {one.name: one for one in _ALL}
# The obstacles on which a hash tag decides, so that keys are evidence against them too.
OF_SLOTS: Final = (COMMAND, TRANSACTION, SCRIPT, WATCH, CHANNEL)
# Their channels have hash slots, as keys have.
SHARD_CHANNELS: Final = frozenset({"SPUBLISH", "SSUBSCRIBE"})

# Commands that the name alone decides about, however they are counted.
BY_NAME: Final[Mapping[str, str]] = {
    **each("KEYS SCAN RANDOMKEY DBSIZE FLUSHALL FLUSHDB", ONE_NODE),
    **each("SCRIPT|EXISTS SCRIPT|FLUSH SCRIPT|LOAD", SCRIPTS),
    **each("FUNCTION|DELETE FUNCTION|FLUSH FUNCTION|LOAD FUNCTION|RESTORE", SCRIPTS),
    **each(
        "PUBSUB|CHANNELS PUBSUB|NUMPAT PUBSUB|NUMSUB PUBSUB|SHARDCHANNELS PUBSUB|SHARDNUMSUB", SUBSCRIBERS
    ),
    "PUBLISH": PUBSUB,
}
RUNS_SCRIPT: Final = frozenset(
    row.command.name for row in COMMANDS.values() if row.facts.connection is Connection.RUNS_SCRIPT
)
# More than the name and the keys decides about these.
BY_EVALUATION: Final = RUNS_SCRIPT | SHARD_CHANNELS | {"COPY", "MOVE", "SORT", "SORT_RO", "SWAPDB"}
_OF_DATABASES: Final = frozenset({"MOVE", "SWAPDB"})
_NOTIFIES: Final = b"__key"  # the names of keyspace notifications, and patterns over them, begin so
_MAX_BEGINNING: Final = 64  # bytes of a pattern that are read for that; a long one would take seconds


def of_command(policy: CompiledPolicy, values: Values, touches: Touches) -> Iterator[str]:
    """Yields the names of the obstacles that a command meets whatever hash slots its keys have. `values` are
    the caller's."""
    command, problem = touches.command, touches.problem
    if command is None:
        yield UNKNOWN
        return
    name = command.name
    if name in BY_NAME:
        yield BY_NAME[name]
    if name in _OF_DATABASES or any(number for _, number in touches.databases):
        yield DATABASE
    if any(map(_hears_of_keys, islice(touches.channels, MANY))):
        yield NOTIFICATIONS
    if touches.script is not None and name in RUNS_SCRIPT:
        if _hides_keys(policy, values, touches.script):
            yield UNDECLARED
    elif problem is not None and problem.rule == "command.unknown":
        yield SORT if name.startswith("SORT") else UNKNOWN


def _hears_of_keys(channel: Channel) -> bool:
    """Whether a subscription is meant for keyspace notifications. A pattern such as `*` is not."""
    if channel.publish:
        return False
    if not channel.is_pattern:
        return channel.name.startswith(_NOTIFIES)
    known = Glob(channel.name[:_MAX_BEGINNING]).literal_prefix
    return known.startswith(_NOTIFIES) or (len(known) > 1 and _NOTIFIES.startswith(known))


def slot_obstacle(name: str, *, in_transaction: bool) -> str:
    """Returns the obstacle of a command of this name whose keys are in different hash slots."""
    if in_transaction:
        return TRANSACTION
    if name in RUNS_SCRIPT:
        return SCRIPT
    return WATCH if name == "WATCH" else COMMAND


def _hides_keys(policy: CompiledPolicy, values: Values, script: Script) -> bool:
    """Whether a script touches keys, or may, of which a client for a cluster cannot tell the node."""
    registration = policy.registration(script)
    if registration is None:
        return not script.keys
    touched = sum(1 for _ in registration.touches)
    if not script.keys:
        return touched > 0
    return sum(1 for _ in registration.made(script, values)) < touched


class Seen(NamedTuple):
    """How often a command met an obstacle, or (with `works`) would work."""

    obstacle: str
    command: str
    first: Place = NOWHERE
    second: Place = NOWHERE
    times: int = 1
    works: bool = False
    script: str = ""  # its SHA-1, or the function's name as reports show it
