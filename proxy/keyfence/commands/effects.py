"""The effect of a command on each key: rights needed, type, time to live, content, and losses.

Rule: the command's row says it (`facts.OnKey`, by the key's role). Where the row says nothing, the key spec's
flags and the command's categories do.

Servers flag a key `OW` if the command overwrites it, and `delete` if the command takes elements out.
"""

from __future__ import annotations

from typing import NamedTuple

from .content import shown_by
from .facts import PLAIN_KEY, Connection, ContentOf, OnKey, TtlOf
from .families import FACTS
from .model import DELETE, GROUP, OVERWRITES, READ, REMOVES, WRITE, Access, Ttl
from .table import Row
from .ttl import EDITS, KEEPS


class Effect(NamedTuple):
    """The effect of a command on the keys of one role."""

    needs: int  # from the key spec; where options decide, the row's `rights` or `found` override it
    types: tuple[str, ...]
    ttl: Ttl | None  # if it is the same for every argv
    ttl_of: TtlOf | None  # if it depends on argv
    content_of: ContentOf | None
    losses: int  # REMOVES | DELETES | REPLACES | OVERWRITES


def effect_of(row: Row, role: int) -> Effect:
    """The effect of a command on the keys that its spec number `role` finds."""
    facts, on_key = row.facts, _on_key(row, role)
    needs = row.specs[role].needs if role < len(row.specs) else READ
    if not needs & (READ | WRITE) and not facts.shows_existence:
        needs |= READ
    if on_key.removes_key:
        needs |= DELETE
    if facts.keeps_group:
        needs |= GROUP
    return Effect(
        needs=needs,
        types=_types_of(row) if on_key.types is None else on_key.types,
        ttl=None if on_key.removes_key else constant_ttl(row, role),
        ttl_of=None if isinstance(on_key.ttl, Ttl) else on_key.ttl,
        content_of=on_key.content or (shown_by(facts.layout) if role == 0 else None),
        losses=_losses_of(row, role),
    )


def all_types_of(row: Row) -> tuple[tuple[str, ...], ...]:
    """The types of the keys that a command is for, by the role of the key."""
    return tuple(effect_of(row, role).types for role in range(max(1, len(row.specs))))


def _on_key(row: Row, role: int) -> OnKey:
    return row.facts.on_keys[role] if role < len(row.facts.on_keys) else PLAIN_KEY


def _flags(row: Row, role: int) -> frozenset[str]:
    return row.specs[role].flags if role < len(row.specs) else frozenset()


def constant_ttl(row: Row, role: int) -> Ttl | None:
    """The effect on the time to live if it does not depend on argv. For keys that are only read or removed it
    is not used."""
    known = _on_key(row, role).ttl
    if isinstance(known, Ttl):
        return known
    flags = _flags(row, role)
    if row.facts.connection is Connection.RUNS_SCRIPT and flags & _WRITES:
        return None  # argv does not show what a script does to its keys
    # HDEL, LPOP … never create the key.
    return EDITS if "delete" in flags and not flags & {"insert", "update"} else KEEPS


_WRITES = frozenset({"insert", "update", "delete"})


def _losses_of(row: Row, role: int) -> int:
    known = _on_key(row, role)
    if known.losses is not None:
        return known.losses
    flags = _flags(row, role)
    if "OW" in flags:
        return OVERWRITES
    return REMOVES if "delete" in flags and not known.removes_key and not row.facts.keeps_group else 0


# Commands that change a consumer group's bookkeeping.
GROUP_COMMANDS = frozenset(name for name, facts in FACTS.items() if facts.keeps_group)

# -- growth

# Commands that leave an integer as the value, and the length of the longest one in bytes.
COUNTERS = frozenset(name for name, facts in FACTS.items() if facts.leaves_integer)
LONGEST_INTEGER = 20
_GROWS = {name: facts.grows for name, facts in FACTS.items() if facts.grows is not None}


def may_grow(name: str, access: Access) -> bool:
    """Whether the command `name` may leave the accessed key larger than the access's content shows.

    Only the server knows the resulting size, so keyfence asks it after such a command.
    """
    if not access.needs & WRITE or access.needs & DELETE:
        return False
    ttl = access.ttl  # None for the key of a script
    return _GROWS.get(name, ttl is None or (ttl.creates and ttl.kind != "expires"))


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


def _types_of(row: Row) -> tuple[str, ...]:
    module, point, _ = row.command.name.partition(".")
    categories = {module} if point else row.command.categories
    return tuple(sorted({_TYPE_OF_CATEGORY[one] for one in categories & _TYPE_OF_CATEGORY.keys()}))
