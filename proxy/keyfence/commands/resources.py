"""Finds the resources that a command names besides keys: channels, key patterns, databases and scripts.

Rule: one function per command returns the fields of `Touches` that the command fills. Commands that touch the
whole key space without naming anything (FLUSHALL, DBSIZE, MONITOR, SLOWLOG GET …) have no function here; the
policy decides about them by name and category.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .arguments import glob_escape, integer, option, options
from .exceptions import bounded, numkeys
from .model import READ, Channel, Pattern, Problem, Script, Unseen, part_of, sequence

Argv = Sequence[bytes]


class Resources(NamedTuple):
    """The fields of `Touches` with the same names."""

    channels: Sequence[Channel] = ()
    pattern: Pattern | None = None
    script: Script | None = None
    databases: tuple[tuple[int, int], ...] = ()
    problem: Problem | None = None


ResourceFinder = Callable[[Argv], Resources]

_ALL_NAMES = Resources(pattern=Pattern(0, b"*"))
_NOTHING = Resources()


def publish(argv: Argv) -> Resources:
    """PUBLISH, SPUBLISH channel message."""
    return Resources(channels=tuple(Channel(1, name, True, False) for name in argv[1:2]))


def subscribe(argv: Argv) -> Resources:
    """SUBSCRIBE, SSUBSCRIBE channel …"""
    return Resources(channels=_channels(argv, is_pattern=False))


def psubscribe(argv: Argv) -> Resources:
    """PSUBSCRIBE pattern …"""
    return Resources(channels=_channels(argv, is_pattern=True))


def counted_channels(argv: Argv) -> Resources:
    """PUBSUB NUMSUB, SHARDNUMSUB [channel …]: the reply counts the subscribers of each channel."""
    return Resources(channels=_channels(argv, 2, is_pattern=False))


def _channels(argv: Argv, first: int = 1, *, is_pattern: bool) -> Sequence[Channel]:
    """All arguments from this one on, as channels to subscribe to."""
    found = range(first, len(argv))
    return sequence(len(found), lambda: (Channel(i, argv[i], False, is_pattern) for i in found), [found])


def active_channels(argv: Argv) -> Resources:
    """PUBSUB CHANNELS, SHARDCHANNELS [pattern]: the reply names the channels that have subscribers, all of
    them without a pattern. Channel names can contain keys (`__keyspace@0__:key`)."""
    pattern = Channel(2, argv[2], False, True) if len(argv) > 2 else Channel(0, b"*", False, True)
    return Resources(channels=(pattern,))


def keys(argv: Argv) -> Resources:
    """KEYS pattern."""
    return Resources(pattern=Pattern(1, argv[1])) if len(argv) > 1 else _NOTHING


def scan(argv: Argv) -> Resources:
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
            return _ALL_NAMES
        index += 2
    return Resources(pattern=pattern)


def every_name(_argv: Argv) -> Resources:
    """RANDOMKEY, CLUSTER GETKEYSINSLOT: the reply can name any key."""
    return _ALL_NAMES


def tracking(argv: Argv) -> Resources:
    """CLIENT TRACKING ON … BCAST: the server sends the names of all changed keys that begin with a PREFIX.

    Without BCAST it sends only names of keys that this client has read (`src/tracking.c`).
    """
    prefixes: list[int] = []
    broadcasts = False
    index = 3
    while index < len(argv):
        name = option(argv, index)
        if name in (b"PREFIX", b"REDIRECT") and index + 1 < len(argv):
            index += 1
            if name == b"PREFIX":
                prefixes.append(index)
        broadcasts = broadcasts or name == b"BCAST"
        index += 1
    if not broadcasts:
        return _NOTHING
    if not prefixes:
        return _ALL_NAMES
    if len(prefixes) > 1:
        unseen = bounded(Unseen(glob_escape(argv[at]) + b"*", READ) for at in prefixes)
        return Resources(problem=Problem("scan.scope", prefixes[0], "it names several prefixes", unseen))
    return Resources(pattern=Pattern(prefixes[0], glob_escape(argv[prefixes[0]]) + b"*"))


def databases(*positions: int) -> ResourceFinder:
    """SELECT db, MOVE key db, SWAPDB db db. The server answers an error if an argument is not an integer."""

    def find(argv: Argv) -> Resources:
        numbers = [(i, integer(argv[i])) for i in positions if i < len(argv)]
        return Resources(databases=tuple((i, number) for i, number in numbers if number is not None))

    return find


def copy(argv: Argv) -> Resources:
    """COPY source destination [DB db] [REPLACE]: every DB is listed, although only the last one counts."""
    after = [i for i, name in enumerate(options(argv, 3), 4) if name == b"DB" and i < len(argv)]
    return databases(*after)(argv)


def script(kind: Literal["text", "sha1", "function"]) -> ResourceFinder:
    """EVAL script numkeys key … arg …, and the similar commands."""

    def find(argv: Argv) -> Resources:
        if len(argv) < 3:
            return _NOTHING
        declared = range(3, 3) if integer(argv[2]) == 0 else numkeys(argv, 2, 3)
        return Resources(
            script=Script(kind, 1, argv[1], part_of(argv, 3, declared.stop), part_of(argv, declared.stop))
        )

    return find


def script_load(argv: Argv) -> Resources:
    """SCRIPT LOAD text: the server stores the text under its SHA-1 and does not run it."""
    return Resources(script=Script("text", 2, argv[2], (), ())) if len(argv) > 2 else _NOTHING


RESOURCE_FINDERS: dict[str, ResourceFinder] = {
    "CLIENT TRACKING": tracking,
    "CLUSTER GETKEYSINSLOT": every_name,
    "CLUSTERSCAN": scan,
    "COPY": copy,
    "EVAL": script("text"),
    "EVALSHA": script("sha1"),
    "EVALSHA_RO": script("sha1"),
    "EVAL_RO": script("text"),
    "FCALL": script("function"),
    "FCALL_RO": script("function"),
    "KEYS": keys,
    "MOVE": databases(2),
    "PSUBSCRIBE": psubscribe,
    "PUBLISH": publish,
    "PUBSUB CHANNELS": active_channels,
    "PUBSUB NUMSUB": counted_channels,
    "PUBSUB SHARDCHANNELS": active_channels,
    "PUBSUB SHARDNUMSUB": counted_channels,
    "RANDOMKEY": every_name,
    "SCAN": scan,
    "SCRIPT LOAD": script_load,
    "SELECT": databases(1),
    "SPUBLISH": publish,
    "SSUBSCRIBE": subscribe,
    "SUBSCRIBE": subscribe,
    "SWAPDB": databases(1, 2),
}
