"""Rule: whether a command may make a value longer, or give a key more elements, than argv shows.

What it shows is in its content; of the rest only the server knows, so it is asked. Facts are from the
commands' documentation, as in `effects`.
"""

from __future__ import annotations

from .model import DELETE, WRITE, Access

# They never create the key (`effects`), and add to one that is there.
_ADD_TO_WHAT_IS_THERE = frozenset({"LINSERT", "LPUSHX", "RPUSHX", "XADD"})
# They create the key and add no elements to it, or show the whole value, or how long it is made at most.
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
# They leave an integer, which is so many bytes long at most.
COUNTERS = frozenset({"DECR", "DECRBY", "INCR", "INCRBY"})
LONGEST_INTEGER = 20


def may_grow(name: str, access: Access) -> bool:
    """Whether the command `name` may leave the key of an access larger than the access's content shows."""
    if not access.needs & WRITE or access.needs & DELETE or name in _ADD_NOTHING:
        return False
    ttl = access.ttl
    if ttl is None:
        return True  # a script's
    return (ttl.creates and ttl.kind != "expires") or name in _ADD_TO_WHAT_IS_THERE
