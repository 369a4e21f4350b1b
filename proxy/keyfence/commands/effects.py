"""The effect of a command on each key: rights needed, type, time to live, content, and losses.

Rule: every effect is a table entry or a small function of argv, looked up by the command's name and the key's
*role*. The role is the index of the key spec that finds the key (see `table.json`); it separates sources from
destinations.

The facts come from the commands' documentation (https://redis.io/docs/latest/commands/), or from the source
file named next to them.
"""

from __future__ import annotations

from typing import NamedTuple

from .content import CONTENT_OF, ContentOf
from .losses import losses_of
from .model import DELETE, GROUP, READ, WRITE, Ttl
from .table import Row
from .ttl import TTL_OF, TtlOf, constant_ttl


class Effect(NamedTuple):
    """The effect of a command on the keys of one role."""

    needs: int  # from the key spec; where options decide, `exceptions.py` overrides it
    types: tuple[str, ...]
    ttl: Ttl | None  # if it is the same for every argv
    ttl_of: TtlOf | None  # if it depends on argv
    content_of: ContentOf | None
    losses: int  # REMOVES | DELETES | REPLACES | OVERWRITES


def effect_of(row: Row, role: int) -> Effect:
    """The effect of a command on the keys that its spec number `role` finds."""
    name = row.command.name
    spec = row.specs[role] if role < len(row.specs) else None
    needs = spec.needs if spec is not None else READ
    if not needs & (READ | WRITE) and name not in EXISTENCE:
        needs |= READ
    is_whole_key = (name, role) in WHOLE_KEY
    if is_whole_key:
        needs |= DELETE
    if name in GROUP_COMMANDS:
        needs |= GROUP
    return Effect(
        needs=needs,
        types=TYPES.get((name, role), _types_of(row)),
        ttl=None if is_whole_key else constant_ttl(row, role),
        ttl_of=TTL_OF.get((name, role)),
        content_of=CONTENT_OF.get((name, role)),
        losses=losses_of(name, role, spec, takes_key=is_whole_key or name in GROUP_COMMANDS),
    )


def all_types_of(row: Row) -> tuple[tuple[str, ...], ...]:
    """The types of the keys that a command is for, by the role of the key."""
    return tuple(effect_of(row, role).types for role in range(max(1, len(row.specs))))


# Commands whose replies show nothing of the value: only whether the key exists, its type, or when it was
# used. Servers flag more commands as not accessing the value (SISMEMBER, STRLEN, MEMORY USAGE), but their
# replies depend on it. So do those of OBJECT ENCODING and OBJECT REFCOUNT, which differ for small numbers.
EXISTENCE = frozenset({"EXISTS", "OBJECT FREQ", "OBJECT IDLETIME", "TOUCH", "TYPE", "WATCH"})

# Writes that only remove whole keys. (MIGRATE removes the keys that it has copied.)
WHOLE_KEY = frozenset(
    {
        ("DEL", 0),
        ("DELEX", 0),
        ("DELIFEQ", 0),
        ("GETDEL", 0),
        ("MIGRATE", 0),
        ("MIGRATE", 1),
        ("RENAME", 0),
        ("RENAMENX", 0),
        ("UNLINK", 0),
    }
)

# Commands that change a consumer group's bookkeeping. XPENDING and XINFO only read; XSETID and XACKDEL change
# the stream itself.
GROUP_COMMANDS = frozenset(
    {
        "XACK",
        "XAUTOCLAIM",
        "XCLAIM",
        "XGROUP",
        "XGROUP CREATE",
        "XGROUP CREATECONSUMER",
        "XGROUP DELCONSUMER",
        "XGROUP DESTROY",
        "XGROUP SETID",
        "XNACK",
        "XREADGROUP",
    }
)

# -- types

# By category, or by the part of a module command's name before the point.
_TYPE_OF_CATEGORY = {
    "array": "array",
    "bitmap": "string",
    "geo": "zset",
    "hash": "hash",
    "hyperloglog": "string",
    "list": "list",
    "set": "set",
    "sortedset": "zset",
    "stream": "stream",
    "string": "string",
    "BF": "bloom",
    "CF": "cuckoo",
    "CMS": "cms",
    "JSON": "json",
    "TDIGEST": "tdigest",
    "TOPK": "topk",
    "TS": "timeseries",
}
_VECTOR_SETS = "VADD VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VREM VSETATTR VSIM"

# The roles whose type does not follow from the command's categories.
TYPES: dict[tuple[str, int], tuple[str, ...]] = {
    ("SORT", 1): (),
    ("SORT", 2): ("list",),
    ("SORT_RO", 1): (),
    # `src/t_zset.c` accepts plain sets as sources too, with a score of 1 for each member.
    ("ZDIFF", 0): ("set", "zset"),
    ("ZDIFFSTORE", 1): ("set", "zset"),
    ("ZINTER", 0): ("set", "zset"),
    ("ZINTERCARD", 0): ("set", "zset"),
    ("ZINTERSTORE", 1): ("set", "zset"),
    ("ZUNION", 0): ("set", "zset"),
    ("ZUNIONSTORE", 1): ("set", "zset"),
}


def _types_of(row: Row) -> tuple[str, ...]:
    if row.command.name in _VECTOR_SETS.split():
        return ("vectorset",)
    module, point, _ = row.command.name.partition(".")
    categories = {module} if point else row.command.categories
    return tuple(sorted({_TYPE_OF_CATEGORY[one] for one in categories & _TYPE_OF_CATEGORY.keys()}))
