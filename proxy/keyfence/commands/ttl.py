"""The effect of each command on a key's time to live.

Rule: the effect is a table entry if argv does not matter, otherwise a function that parses argv as the server
does. Both are looked up by command name and role, as described in `effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .arguments import LONG_LONG_MAX, integer, option, options, word
from .content import LEADING_OPTIONS, xadd_options
from .model import Ttl
from .table import Row

Argv = Sequence[bytes]
TtlOf = Callable[[Argv], Ttl | None]

KEEPS = Ttl("keeps")
EDITS = Ttl("keeps", creates=False)
DROPS = Ttl("drops")
STORES = Ttl("drops", follows=True)  # replaces the key and has no option for a time
CARRIES = Ttl("carries")

# A stored result replaces the key together with its time to live (`src/db.c`, setKey and dbDelete).
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
    # argv does not show what a script does to its keys.
    ("EVAL", 0): None,
    ("EVALSHA", 0): None,
    ("FCALL", 0): None,
}

# Writes that never create the key, besides those whose key spec only deletes (HDEL, LPOP …).
_NEVER_CREATE = frozenset(
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


def constant_ttl(row: Row, role: int) -> Ttl | None:
    """The effect if it does not depend on argv. For keys that are only read or removed it is not used."""
    name = row.command.name
    if (name, role) in TTL:
        return TTL[name, role]
    flags = row.specs[role].flags if role < len(row.specs) else frozenset()
    if name in _NEVER_CREATE or ("delete" in flags and not flags & {"insert", "update"}):
        return EDITS
    return KEEPS


def milliseconds(argument: bytes, unit: int) -> int | None:
    """A time in units of `unit` milliseconds. None if it is not an integer, or too large for Redis."""
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
        name = option(argv, index)
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


# Each takes the next argument as a value, even if that looks like an option (Valkey 8.1, Redis 8.4).
_SET_COMPARES = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})


def _getex_ttl(argv: Argv) -> Ttl | None:
    """GETEX: a time, PERSIST, or no option. The last of repeated options counts."""
    effect = EDITS
    index = 2
    while index < len(argv):
        name = option(argv, index)
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
    """EXPIRE and similar: key, time, then NX, XX, GT or LT since Redis 7.0 (`src/expire.c`)."""

    def ttl(argv: Argv) -> Ttl:
        if len(argv) < 3:
            return EDITS
        words = [word(argument) for argument in argv[3:5]]
        condition = " ".join(name.decode() for name in words if name in _EXPIRE_CONDITIONS)
        return Ttl("expires", milliseconds(argv[2], unit), absolute, 2, condition, creates=False)

    return ttl


_EXPIRE_CONDITIONS = frozenset({b"NX", b"XX", b"GT", b"LT"})


def _restore_ttl(argv: Argv) -> Ttl:
    """RESTORE key ttl value: milliseconds, 0 for none, or a Unix time with ABSTTL (`src/cluster.c`)."""
    if len(argv) < 3:
        return KEEPS
    words = set(options(argv, 4))
    condition = "" if b"REPLACE" in words else "NX"
    time = milliseconds(argv[2], 1)
    if time == 0:
        return Ttl("drops", position=2, condition=condition)
    return Ttl("sets", time, b"ABSTTL" in words, 2, condition)


def _copy_ttl(argv: Argv) -> Ttl:
    """COPY: copies the time to live too. Without REPLACE, it writes only to a key that does not exist."""
    return CARRIES if b"REPLACE" in options(argv, 3) else Ttl("carries", condition="NX")


def _unless(unless: bytes, start: int) -> TtlOf:
    """The command creates the key unless `unless` is one of the leading options, from `start` on."""

    def ttl(argv: Argv) -> Ttl:
        for name in options(argv, start):
            if name == unless:
                return EDITS
            if name not in LEADING_OPTIONS:
                break
        return KEEPS

    return ttl


def _xadd_ttl(argv: Argv) -> Ttl:
    return EDITS if xadd_options(argv).nomkstream else KEEPS


def _xgroup_create_ttl(argv: Argv) -> Ttl:
    return KEEPS if b"MKSTREAM" in options(argv, 5) else EDITS


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
        name = option(argv, index)
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
    """HSETEX key [FXX] …: FXX, or XX of Valkey 9.1, needs an existing key. Its times are those of fields."""
    for name in options(argv, 2):
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
