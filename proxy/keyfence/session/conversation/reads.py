"""The commands that may be read from a replica.

Rule: a positive list. Each of them only reads, may take any connection, and gets at a replica the answer that
the primary has given a moment before. `upstream.replicas` says when a client is sent there.
"""

from __future__ import annotations

from keyfence.commands.extract import ONE_KEY
from keyfence.commands.table import COMMANDS

from .routing import SHAREABLE

_CURSOR = "a cursor belongs to the node that gave it"
_OF_NODE = "the answer is about one node, not about the data"
# Commands that only read, and stay at the primary: why.
AT_PRIMARY = {
    "SCAN": _CURSOR,
    "HSCAN": _CURSOR,
    "SSCAN": _CURSOR,
    "ZSCAN": _CURSOR,
    "DBSIZE": "replicas count keys that have expired and that the primary has not removed yet",
    "KEYS": "as DBSIZE, and it holds a node up for as long as it takes",
    "RANDOMKEY": "as DBSIZE",
    "DUMP": "the format is that of the node's version, and a replica may have a later one",
    "TOUCH": "it sets when a key was used last, which replicas do not pass on",
    "XPENDING": "replicas do not have all times of delivery",
    "MEMORY USAGE": _OF_NODE,
    "OBJECT ENCODING": _OF_NODE,
    "OBJECT FREQ": _OF_NODE,
    "OBJECT IDLETIME": _OF_NODE,
    "OBJECT REFCOUNT": _OF_NODE,
    "XINFO CONSUMERS": "as XPENDING",
    "XINFO GROUPS": "as XPENDING",
    "XINFO STREAM": _OF_NODE,
}


def _only_read() -> frozenset[str]:
    """Those that the servers flag as reading, and not as writing a note of what they found (PFCOUNT)."""
    return frozenset(
        row.command.name
        for row in COMMANDS.values()
        if "readonly" in row.command.flags
        and not row.command.flags & {"write", "may_replicate", "blocking", "pubsub"}
        and row.command.name in SHAREABLE
    )


def _of_one_key(name: bytes) -> bool:
    """Whether a command names one key, so that its reply shows whether that is there."""
    one = ONE_KEY.get(name)
    return one is not None and not one.may_have_more


READS = frozenset(name.encode() for name in _only_read() - AT_PRIMARY.keys())
# Those that may be read from a cluster's replicas. A reply has to show whether all keys are there
# (`upstream.single.missing`): for those with several keys this is known of two only.
READS_OF_CLUSTER = frozenset(name for name in READS if _of_one_key(name)) | (READS & {b"MGET", b"EXISTS"})
