"""Rule: a command's effect on a key's type, time to live and content is data, or a small function of argv.

Keyed by the command's name and by *role*: the index of the key spec that finds the key (see
`table.json`), so that a source and a destination stay apart. Facts are from the commands' documentation
(https://redis.io/docs/latest/commands/) and, where it is silent, from the source that is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .arguments import LONG_LONG_MAX, integer, word
from .carried import CARRIED_OF
from .losses import losses_of
from .model import DELETE, GROUP, READ, WRITE, Content, Field, Members, Streamed, Ttl, sequence
from .table import Row

Argv = Sequence[bytes]
TtlOf = Callable[[Argv], Ttl | None]
ContentOf = Callable[[Argv, int], Content | None]


class Effect(NamedTuple):
    """What one role of a command means for the keys in it."""

    needs: int  # of the key spec; where options decide, `exceptions.py` says otherwise
    types: tuple[str, ...]
    ttl: Ttl | None  # if it is the same for every argv
    ttl_of: TtlOf | None  # if it isn't
    content_of: ContentOf | None
    does: int  # to what the key holds, whatever argv says


def effect_of(row: Row, role: int) -> Effect:
    """The effect of a command on the keys that its spec number `role` finds."""
    name = row.command.name
    spec = row.specs[role] if role < len(row.specs) else None
    needs = spec.needs if spec is not None else READ
    if not needs & (READ | WRITE) and name not in EXISTENCE:
        needs |= READ
    if (name, role) in WHOLE_KEY:
        needs |= DELETE
    if name in GROUP_COMMANDS:
        needs |= GROUP
    return Effect(
        needs=needs,
        types=TYPES.get((name, role), _types_of(row)),
        ttl=_constant_ttl(row, role),
        ttl_of=TTL_OF.get((name, role)),
        content_of=CONTENT_OF.get((name, role)),
        does=losses_of(name, role, spec, takes_key=(name, role) in WHOLE_KEY or name in GROUP_COMMANDS),
    )


# What answers nothing of the value: whether the key is there, its type, when it was used. Servers flag more
# commands as not accessing it (SISMEMBER, STRLEN, MEMORY USAGE), but their replies depend on what the key
# holds; so do those of OBJECT ENCODING and OBJECT REFCOUNT, which tell small numbers from other strings.
EXISTENCE = frozenset({"EXISTS", "OBJECT FREQ", "OBJECT IDLETIME", "TOUCH", "TYPE", "WATCH"})

# Writes that do nothing but remove whole keys. (MIGRATE removes what it has copied.)
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

# A consumer group's bookkeeping. XPENDING and XINFO only read; XSETID is the stream's own, and so is what
# XACKDEL deletes.
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

# By category, or by what stands before the point in the name of a module's command.
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

# Where the command's categories don't tell the type of this role.
TYPES: dict[tuple[str, int], tuple[str, ...]] = {
    ("SORT", 1): (),
    ("SORT", 2): ("list",),
    ("SORT_RO", 1): (),
    # `src/t_zset.c` takes plain sets as sources too, with a score of 1 for each member.
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
    told = {module} if point else row.command.categories
    return tuple(sorted({_TYPE_OF_CATEGORY[one] for one in told & _TYPE_OF_CATEGORY.keys()}))


# -- time to live

KEEPS = Ttl("keeps")
EDITS = Ttl("keeps", creates=False)
DROPS = Ttl("drops")
STORES = Ttl("drops", follows=True)  # replaces the key, and has no option for a time
CARRIES = Ttl("carries")

# A stored result replaces the key, its time to live with it (`src/db.c`, setKey and dbDelete).
TTL: dict[tuple[str, int], Ttl | None] = {
    ("BITOP", 0): STORES,
    ("GEORADIUS", 1): STORES,
    ("GEORADIUS", 2): STORES,
    ("GEORADIUSBYMEMBER", 1): STORES,
    ("GEORADIUSBYMEMBER", 2): STORES,
    ("GEOSEARCHSTORE", 0): STORES,
    ("GETSET", 0): STORES,
    ("MSET", 0): STORES,
    ("MSETNX", 0): Ttl("drops", condition="NX", follows=True),
    ("PERSIST", 0): Ttl("drops", creates=False),
    ("SDIFFSTORE", 0): STORES,
    ("SETNX", 0): Ttl("drops", condition="NX", follows=True),
    ("SINTERSTORE", 0): STORES,
    ("SORT", 2): STORES,
    ("SUNIONSTORE", 0): STORES,
    ("ZDIFFSTORE", 0): STORES,
    ("ZINTERSTORE", 0): STORES,
    ("ZRANGESTORE", 0): STORES,
    ("ZUNIONSTORE", 0): STORES,
    # The time to live moves or is copied with the value.
    ("MOVE", 0): CARRIES,
    ("RENAME", 1): CARRIES,
    ("RENAMENX", 1): Ttl("carries", condition="NX"),
    # What a script does to its keys is not in argv.
    ("EVAL", 0): None,
    ("EVALSHA", 0): None,
    ("FCALL", 0): None,
}

# Writes that never create the key, besides those whose key spec only deletes (HDEL, LPOP …).
_EDITORS = frozenset(
    {
        "HEXPIRE",
        "HEXPIREAT",
        "HGETEX",
        "HPERSIST",
        "HPEXPIRE",
        "HPEXPIREAT",
        "LINSERT",
        "LPUSHX",
        "LSET",
        "PFDEBUG",
        "RPUSHX",
        "VREM",
        "VSETATTR",
        "XACK",
        "XACKDEL",
        "XCFGSET",
        "XCLAIM",
        "XGROUP CREATECONSUMER",
        "XGROUP SETID",
        "XIDMPRECORD",
        "XNACK",
        "XREADGROUP",
        "XSETID",
    }
)


def _constant_ttl(row: Row, role: int) -> Ttl | None:
    """The effect where argv doesn't decide it; for a key that is only read it is never used."""
    name = row.command.name
    if (name, role) in WHOLE_KEY:
        return None
    if (name, role) in TTL:
        return TTL[name, role]
    flags = row.specs[role].flags if role < len(row.specs) else frozenset()
    if name in _EDITORS or ("delete" in flags and not flags & {"insert", "update"}):
        return EDITS
    return KEEPS


def milliseconds(argument: bytes, unit: int) -> int | None:
    """A time of units that have `unit` milliseconds. None for no integer, or one too large for Redis."""
    number = integer(argument)
    if number is None or abs(number) * unit > LONG_LONG_MAX:
        return None
    return number * unit


# The options of SET and GETEX: how many milliseconds the unit has, and whether the time is absolute.
_TIMES = {b"EX": (1000, False), b"PX": (1, False), b"EXAT": (1000, True), b"PXAT": (1, True)}


def _set_ttl(argv: Argv) -> Ttl:
    """SET (`src/t_string.c`, parseExtendedStringArgumentsOrReply)."""
    if len(argv) == 3:
        return DROPS
    keeps, condition, time = False, "", 0
    index = 3
    while index < len(argv):
        name = word(argv[index])
        if name in _TIMES and index + 1 < len(argv):
            time = index = index + 1
        elif name == b"KEEPTTL":
            keeps = True
        elif name in (b"NX", b"XX"):
            condition = name.decode()
        elif name in _SET_COMPARES:
            condition = name.decode()
            index += 1
        index += 1
    creates = condition != "XX"
    if time:
        unit, absolute = _TIMES[word(argv[time - 1])]
        return Ttl("sets", milliseconds(argv[time], unit), absolute, time, condition, creates)
    return Ttl("keeps" if keeps else "drops", None, False, 0, condition, creates)


# What follows is a value, whatever it reads like (Valkey 8.1, Redis 8.4).
_SET_COMPARES = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})


def _getex_ttl(argv: Argv) -> Ttl | None:
    """GETEX: a time, PERSIST, or nothing but the value. Of a repeated option the last one counts."""
    effect = EDITS
    index = 2
    while index < len(argv):
        name = word(argv[index])
        if name == b"PERSIST":
            effect = Ttl("drops", creates=False)
        elif name in _TIMES and index + 1 < len(argv):
            unit, absolute = _TIMES[name]
            index += 1
            effect = Ttl("expires", milliseconds(argv[index], unit), absolute, index, creates=False)
        index += 1
    return effect


def _setex_ttl(unit: int) -> TtlOf:
    """SETEX key seconds value, PSETEX key milliseconds value."""
    return lambda argv: Ttl("sets", milliseconds(argv[2], unit), position=2) if len(argv) > 2 else KEEPS


def _expire_ttl(unit: int, absolute: bool) -> TtlOf:
    """EXPIRE and its kin: key, time, then NX, XX, GT or LT since Redis 7.0 (`src/expire.c`)."""

    def ttl(argv: Argv) -> Ttl:
        if len(argv) < 3:
            return EDITS
        words = [word(argument) for argument in argv[3:5]]
        condition = " ".join(name.decode() for name in words if name in _EXPIRE_CONDITIONS)
        return Ttl("expires", milliseconds(argv[2], unit), absolute, 2, condition, creates=False)

    return ttl


_EXPIRE_CONDITIONS = frozenset({b"NX", b"XX", b"GT", b"LT"})


def _restore_ttl(argv: Argv) -> Ttl:
    """RESTORE key ttl value: milliseconds, 0 for none; ABSTTL makes it a Unix time (`src/cluster.c`)."""
    if len(argv) < 3:
        return KEEPS
    options = {word(argument) for argument in argv[4:]}
    condition = "" if b"REPLACE" in options else "NX"
    time = milliseconds(argv[2], 1)
    if time == 0:
        return Ttl("drops", position=2, condition=condition)
    return Ttl("sets", time, b"ABSTTL" in options, 2, condition)


def _copy_ttl(argv: Argv) -> Ttl:
    """COPY: the time to live comes along; without REPLACE only to a key that doesn't exist."""
    replaces = any(word(argument) == b"REPLACE" for argument in argv[3:])
    return CARRIES if replaces else Ttl("carries", condition="NX")


def _unless(option: bytes, start: int) -> TtlOf:
    """Creates the key unless this option stands among the leading options, from `start` on."""

    def ttl(argv: Argv) -> Ttl:
        for argument in argv[start:]:
            name = word(argument)
            if name == option:
                return EDITS
            if name not in _LEADING:
                break
        return KEEPS

    return ttl


_LEADING = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})


def _xadd_ttl(argv: Argv) -> Ttl:
    return EDITS if _xadd_options(argv).nomkstream else KEEPS


def _xgroup_create_ttl(argv: Argv) -> Ttl:
    return KEEPS if any(word(argument) == b"MKSTREAM" for argument in argv[5:]) else EDITS


def _msetex_ttl(argv: Argv) -> Ttl:
    """MSETEX numkeys key value … [options of SET]: Redis 8.4 (`src/t_string.c`, msetexCommand)."""
    pairs = integer(argv[1]) if len(argv) > 1 else None
    behind = 2 + 2 * pairs if pairs is not None and 0 < pairs < len(argv) else len(argv)
    ttl = _set_ttl([b"SET", b"", b"", *argv[behind:]])
    return ttl if not ttl.position else ttl._replace(position=ttl.position - 3 + behind)


def _increx_ttl(argv: Argv) -> Ttl:
    """INCREX key [BYINT n] [LBOUND n] … [EX seconds | … | PERSIST] [ENX] (Redis 8.8)."""
    effect, index = KEEPS, 2
    while index < len(argv):
        name = word(argv[index])
        if name in _TIMES and index + 1 < len(argv):
            index += 1
            unit, absolute = _TIMES[name]
            effect = Ttl("sets", milliseconds(argv[index], unit), absolute, index)
        elif name == b"PERSIST":
            effect = DROPS
        elif name in _INCREX_NUMBERS:
            index += 1
        index += 1
    return effect


_INCREX_NUMBERS = frozenset({b"BYFLOAT", b"BYINT", b"LBOUND", b"UBOUND"})


def _hsetex_ttl(argv: Argv) -> Ttl:
    """HSETEX key [FXX] …: with FXX, or XX of Valkey 9.1, the key is there. Its times are those of fields."""
    for argument in argv[2:]:
        name = word(argument)
        if name in (b"FXX", b"XX"):
            return EDITS
        if name == b"FIELDS":
            break
    return KEEPS


TTL_OF: dict[tuple[str, int], TtlOf] = {
    ("COPY", 1): _copy_ttl,
    ("EXPIRE", 0): _expire_ttl(1000, False),
    ("EXPIREAT", 0): _expire_ttl(1000, True),
    ("GEOADD", 0): _unless(b"XX", 2),
    ("GETEX", 0): _getex_ttl,
    ("HSETEX", 0): _hsetex_ttl,
    ("INCREX", 0): _increx_ttl,
    ("MSETEX", 0): _msetex_ttl,
    ("PEXPIRE", 0): _expire_ttl(1, False),
    ("PEXPIREAT", 0): _expire_ttl(1, True),
    ("PSETEX", 0): _setex_ttl(1),
    ("RESTORE", 0): _restore_ttl,
    ("RESTORE-ASKING", 0): _restore_ttl,
    ("SET", 0): _set_ttl,
    ("SETEX", 0): _setex_ttl(1000),
    ("XADD", 0): _xadd_ttl,
    ("XGROUP CREATE", 0): _xgroup_create_ttl,
    ("ZADD", 0): _unless(b"XX", 2),
}

# -- content


def _value_at(offset: int) -> ContentOf:
    """The whole value, so many arguments behind its key."""

    def content(argv: Argv, position: int) -> Content | None:
        at = position + offset
        return Content(argv[at], at) if at < len(argv) else None

    return content


def _appended(argv: Argv, position: int) -> Content | None:
    """APPEND key value."""
    at = position + 1
    return Content(least=_length(argv[at]), value_position=at) if at < len(argv) else None


def _overwritten(argv: Argv, position: int) -> Content | None:
    """SETRANGE key offset value; an empty value changes nothing (`src/t_string.c`, setrangeCommand)."""
    at = position + 2
    offset = integer(argv[at - 1]) if at < len(argv) else None
    if offset is None or offset < 0 or not argv[at]:
        return None
    return Content(least=offset + _length(argv[at]), value_position=at)


def _bit_set(argv: Argv, position: int) -> Content | None:
    """SETBIT key offset bit."""
    offset = integer(argv[position + 1]) if position + 1 < len(argv) else None
    if offset is None or offset < 0:
        return None
    return Content(least=offset // 8 + 1, value_position=position + 1)


def _length(value: bytes) -> int:
    return value.size if isinstance(value, Streamed) else len(value)


def _pairs(argv: Argv, start: int) -> Sequence[Field]:
    places = range(start, len(argv) - 1, 2)
    return sequence(len(places), lambda: (Field(i, argv[i], i + 1, argv[i + 1]) for i in places))


def _fields(argv: Argv, position: int) -> Content | None:
    """HSET key field value …"""
    return Content(fields=_pairs(argv, position + 1))


def _field_without_value(argv: Argv, position: int) -> Content | None:
    """HINCRBY key field increment: the value that results isn't in argv."""
    at = position + 1
    return Content(fields=(Field(at, argv[at], 0, b""),)) if at < len(argv) else None


class _Xadd(NamedTuple):
    nomkstream: bool
    maxlen: int | None
    approximate: bool
    maxlen_position: int
    id_position: int


def _xadd_options(argv: Argv) -> _Xadd:
    """XADD's options up to the ID (`src/t_stream.c`, streamParseAddOrTrimArgsOrReply)."""
    nomkstream, maxlen, approximate, maxlen_position = False, None, False, 0
    limit = 0
    index = 2
    while index < len(argv):
        name = word(argv[index])
        if name in (b"MAXLEN", b"MINID"):
            index += 1
            sign = word(argv[index]) if index + 1 < len(argv) else b""
            index += sign in (b"~", b"=")
            if name == b"MAXLEN" and index < len(argv):
                maxlen, approximate, maxlen_position = integer(argv[index]), sign == b"~", index
        elif name == b"LIMIT":
            index += 1
            limit = (integer(argv[index]) if index < len(argv) else None) or 0
        elif name == b"NOMKSTREAM":
            nomkstream = True
        elif name in _XADD_PRODUCERS:
            index += _XADD_PRODUCERS[name]
        elif name not in _XADD_FLAGS:
            break
        index += 1
    if 0 < limit < _NODE_ENTRIES:
        maxlen = None
    return _Xadd(nomkstream, maxlen, approximate, maxlen_position, index)


# Redis evicts whole nodes only; one that may not evict so many entries (stream-node-max-entries) evicts none.
_NODE_ENTRIES = 100
_XADD_FLAGS = frozenset({b"KEEPREF", b"DELREF", b"ACKED"})  # Redis 8.2
_XADD_PRODUCERS = {b"IDMP": 2, b"IDMPAUTO": 1}  # Redis 8.6: how many names of theirs follow


def _entry(argv: Argv, _position: int) -> Content | None:
    """XADD key [options] id field value …"""
    options = _xadd_options(argv)
    return Content(
        fields=_pairs(argv, options.id_position + 1),
        stream_add=True,
        maxlen=options.maxlen,
        maxlen_approximate=options.approximate,
        maxlen_position=options.maxlen_position,
    )


def _hsetex_fields(argv: Argv, position: int) -> Content | None:
    """HSETEX key [options] FIELDS numfields field value …: Redis 8, Valkey 9."""
    for at in range(position + 1, len(argv)):
        if word(argv[at]) == b"FIELDS":
            pairs = (integer(argv[at + 1]) if at + 1 < len(argv) else None) or len(argv)
            return Content(fields=_pairs(argv[: at + 2 + 2 * max(0, pairs)], at + 2))
    return None


def _members_from(offset: int) -> ContentOf:
    """SADD key member …: every argument from so many behind the key."""

    def content(argv: Argv, position: int) -> Content | None:
        start = position + offset
        return Content(members=Members(start, 1, argv[start:]))

    return content


def _member_at(offset: int) -> ContentOf:
    """One element, so many arguments behind the key."""

    def content(argv: Argv, position: int) -> Content | None:
        at = position + offset
        return Content(members=Members(at, 1, argv[at : at + 1]))

    return content


def _behind_options(argv: Argv, start: int) -> tuple[int, bool]:
    """Where the options of ZADD and GEOADD end, and whether INCR is one (zaddGenericCommand)."""
    increments = False
    while start < len(argv) and (name := word(argv[start])) in _LEADING:
        increments = increments or name == b"INCR"
        start += 1
    return start, increments


def _scored(argv: Argv, position: int) -> Content | None:
    """ZADD key [options] score member …; with INCR the score is an increment."""
    start, increments = _behind_options(argv, position + 1)
    members = argv[start + 1 :: 2]
    return Content(members=Members(start + 1, 2, members, () if increments else argv[start:-1:2]))


def _places(argv: Argv, position: int) -> Content | None:
    """GEOADD key [options] longitude latitude member …: the score is Redis' own."""
    start, _ = _behind_options(argv, position + 1)
    return Content(members=Members(start + 2, 3, argv[start + 2 :: 3]))


# By command and role. APPEND, SETRANGE and SETBIT show how long the value is at least, BITFIELD and INCR
# nothing of it; of what LMOVE, RESTORE and the like write it shows at most where that comes from.
CONTENT_OF: dict[tuple[str, int], ContentOf] = {
    **CARRIED_OF,
    ("APPEND", 0): _appended,
    ("GEOADD", 0): _places,
    ("GETSET", 0): _value_at(1),
    ("HINCRBY", 0): _field_without_value,
    ("HINCRBYFLOAT", 0): _field_without_value,
    ("HMSET", 0): _fields,
    ("HSET", 0): _fields,
    ("HSETEX", 0): _hsetex_fields,
    ("HSETNX", 0): _fields,
    ("LINSERT", 0): _member_at(3),
    ("LPUSH", 0): _members_from(1),
    ("LPUSHX", 0): _members_from(1),
    ("LSET", 0): _member_at(2),
    ("MSET", 0): _value_at(1),
    ("MSETEX", 0): _value_at(1),
    ("MSETNX", 0): _value_at(1),
    ("PSETEX", 0): _value_at(2),
    ("RPUSH", 0): _members_from(1),
    ("RPUSHX", 0): _members_from(1),
    ("SADD", 0): _members_from(1),
    ("SET", 0): _value_at(1),
    ("SETBIT", 0): _bit_set,
    ("SETEX", 0): _value_at(2),
    ("SETNX", 0): _value_at(1),
    ("SETRANGE", 0): _overwritten,
    ("SMOVE", 1): _member_at(1),
    ("XADD", 0): _entry,
    ("ZADD", 0): _scored,
    ("ZINCRBY", 0): _member_at(2),
}
