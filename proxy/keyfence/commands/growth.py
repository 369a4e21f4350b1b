"""Commands that may make a value longer, or add more elements to a key, than argv shows.

Rule: what argv shows is in `Access.content`. Only the server knows the resulting size, so keyfence asks it
after each command for which `may_grow` is true.

The facts come from the commands' documentation, as in `effects`.
"""

from __future__ import annotations

from .model import DELETE, WRITE, Access

# Commands that add to an existing key only (`effects`).
_ADD_TO_EXISTING = frozenset({"LINSERT", "LPUSHX", "RPUSHX", "XADD"})
# Commands that create the key without adding elements, or whose argv shows the whole value or its maximum
# length.
_ADD_NOTHING = frozenset(
    {
        "GETSET",
        "MSET",
        "MSETEX",
        "MSETNX",
        "PSETEX",
        "SET",
        "SETBIT",
        "SETEX",
        "SETNX",
        "SETRANGE",
        "XAUTOCLAIM",
        "XCLAIM",
        "XGROUP CREATE",
    }
)
# Commands that leave an integer as the value, and the length of the longest one in bytes.
COUNTERS = frozenset({"DECR", "DECRBY", "INCR", "INCRBY"})
LONGEST_INTEGER = 20


def may_grow(name: str, access: Access) -> bool:
    """Whether the command `name` may leave the accessed key larger than the access's content shows."""
    if not access.needs & WRITE or access.needs & DELETE or name in _ADD_NOTHING:
        return False
    ttl = access.ttl
    if ttl is None:
        return True  # the key of a script
    return (ttl.creates and ttl.kind != "expires") or name in _ADD_TO_EXISTING
