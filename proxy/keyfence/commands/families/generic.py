"""Commands on keys of any type."""

from __future__ import annotations

from keyfence.commands.arguments import each_option, glob_escape, may_hold, options, word
from keyfence.commands.cache_forms import TO_END, Layout
from keyfence.commands.content import of_key
from keyfence.commands.facts import (
    KEYS_ONLY,
    Argv,
    Connection,
    Facts,
    KeyFinder,
    Named,
    OnKey,
    TtlOf,
    each,
    together,
)
from keyfence.commands.key_runs import Keys, Run, after, bounded, destinations, one, source
from keyfence.commands.model import DELETES, READ, WRITE, Carried, Content, Problem, Streamed, Ttl, Unseen
from keyfence.commands.resources import Resources, databases
from keyfence.commands.ttl import CARRIES, CARRIES_NEW, EDITS, KEEPS, STORES, milliseconds

_ANY = Facts(connection=Connection.ANY)

# -- times to live

_EXPIRE_CONDITIONS = frozenset({b"NX", b"XX", b"GT", b"LT"})


def _expire_ttl(unit: int, absolute: bool) -> TtlOf:
    """EXPIRE and similar: key, time, then NX, XX, GT or LT since Redis 7.0 (`src/expire.c`)."""

    def ttl(argv: Argv) -> Ttl:
        if len(argv) < 3:
            return EDITS
        words = [word(argument) for argument in argv[3:5]]
        condition = " ".join(name.decode() for name in words if name in _EXPIRE_CONDITIONS)
        return Ttl("expires", milliseconds(argv[2], unit), absolute, 2, condition, creates=False)

    return ttl


_EXPIRING = {
    "EXPIRE": _ANY._replace(on_keys=(OnKey(_expire_ttl(1000, False)),), layout=Layout(TO_END)),
    "EXPIREAT": _ANY._replace(on_keys=(OnKey(_expire_ttl(1000, True)),)),
    "PERSIST": _ANY._replace(on_keys=(OnKey(Ttl("drops", creates=False)),)),
    "PEXPIRE": _ANY._replace(on_keys=(OnKey(_expire_ttl(1, False)),), layout=Layout(TO_END)),
    "PEXPIREAT": _ANY._replace(on_keys=(OnKey(_expire_ttl(1, True)),)),
}

# -- removing, moving and copying whole keys

# Key types by the first byte of a dump.
_DUMPED = {
    **dict.fromkeys((0,), "string"),
    **dict.fromkeys((1, 10, 14, 18), "list"),
    **dict.fromkeys((2, 11, 20), "set"),
    **dict.fromkeys((3, 5, 12, 17), "zset"),
    **dict.fromkeys((4, 9, 13, 16, 22, 23, 24, 25), "hash"),
    **dict.fromkeys((15, 19, 21), "stream"),
}


def _dumped(argv: Argv, _position: int) -> Content | None:
    """RESTORE key ttl dump …: the dump's first byte is its type (`src/rdb.h`)."""
    dump = argv[3] if len(argv) > 3 else b""
    types = (_DUMPED[dump[0]],) if dump and dump[0] in _DUMPED else ()
    return Content(carried=Carried("value", types=types))


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
    return CARRIES if b"REPLACE" in options(argv, 3) else CARRIES_NEW


def _copy_databases(argv: Argv) -> Resources:
    """COPY source destination [DB db] [REPLACE]: every DB is listed, although only the last one counts."""
    found = [i for i, name in enumerate(options(argv, 3), 4) if name == b"DB" and i < len(argv)]
    return databases(*found)(argv)


def _migrate(argv: Argv) -> Keys:
    """MIGRATE host port key|"" db timeout …: the key, or those after KEYS. With COPY they stay in place.

    `src/cluster.c`, migrateCommand: without KEYS the empty string is an ordinary key. KEYS together with a
    key is an error.
    """
    copies = False
    first = 0
    for name, index in each_option(argv, 6, {b"AUTH": 1, b"AUTH2": 2}):
        copies = copies or name == b"COPY"
        if name == b"KEYS":
            first = index + 1
            break
        if name not in _MIGRATE_OTHERS:
            first = next(after(argv, frozenset({b"KEYS"}), index), 0)
            break
    needs = READ if copies else READ | WRITE
    runs = [Run(one(3), needs, 0)] if len(argv) > 3 and (argv[3] or not first) else []
    if first:
        runs.append(Run(range(first, len(argv)), needs, 1))
    return Keys(runs)


_MIGRATE_OTHERS = frozenset({b"AUTH", b"AUTH2", b"COPY", b"REPLACE"})
_REMOVED = OnKey(removes_key=True)
_RESTORED = OnKey(_restore_ttl, _dumped)

_WHOLE_KEYS = {
    "COPY": Facts(
        on_keys=(OnKey(), OnKey(_copy_ttl, of_key("value", 1))),
        named=Named(_copy_databases, "database", "the database after DB"),
        decides=(3, 0),
        connection=Connection.ANY,
    ),
    "MIGRATE": Facts(
        on_keys=(_REMOVED, _REMOVED),  # it removes the keys that it has copied
        found=KeyFinder(_migrate, "3, or all after KEYS", "read and delete; with COPY read"),
        connection=Connection.OWN,
    ),
    "MOVE": Facts(
        on_keys=(OnKey(CARRIES, losses=DELETES),),
        named=Named(databases(2), "database", "the database in 2"),
        connection=Connection.ANY,
    ),
    "RENAME": Facts(
        on_keys=(_REMOVED, OnKey(CARRIES, of_key("value", 1))), decides=KEYS_ONLY, connection=Connection.ANY
    ),
    "RENAMENX": Facts(on_keys=(_REMOVED, OnKey(CARRIES_NEW, of_key("value", 1))), connection=Connection.ANY),
    "RESTORE": Facts(on_keys=(_RESTORED,), connection=Connection.ANY),
    "RESTORE-ASKING": Facts(on_keys=(_RESTORED,)),
    **each("DEL UNLINK", Facts(on_keys=(_REMOVED,), connection=Connection.ANY)),
}

# -- SORT

_SORT_OTHERS = frozenset({b"LIMIT", b"ASC", b"DESC", b"ALPHA"})
_NAMED_BY_ELEMENTS = "the sorted elements are part of the names of the keys that its BY and GET patterns read"


def _sort(argv: Argv) -> Keys:
    """SORT: the last STORE counts. BY and GET patterns read keys whose names contain the sorted elements.

    `src/sort.c`: a pattern without `*` reads no key (BY then does not sort, and GET returns nil). `GET #` is
    the element itself.
    """
    stores: list[int] = []
    patterns: list[int] = []
    for name, index in each_option(argv, 2, {b"LIMIT": 2, b"STORE": 1, b"BY": 1, b"GET": 1}):
        if name == b"STORE":
            stores = [index + 1]
        elif name in (b"BY", b"GET"):
            patterns += [index + 1] if may_hold(argv[index + 1], b"*") else []
        elif name not in _SORT_OTHERS:
            stores += after(argv, frozenset({b"STORE"}), index)
            break
    problem = None
    if patterns:
        unseen = bounded(Unseen(_with_any_element(argv[at]), READ) for at in patterns)
        problem = Problem("command.unknown", patterns[0], _NAMED_BY_ELEMENTS, unseen)
    return Keys(source(argv) + destinations(stores, 2), problem)


def _with_any_element(pattern: bytes) -> bytes:
    """A glob for all keys that a pattern can name: any element in place of the first `*`, and no field after
    `->` (`src/sort.c`, lookupKeyByPattern, which searches C strings)."""
    if isinstance(pattern, Streamed) or b"\0" in pattern:
        return b"*"
    before, _, behind = pattern.partition(b"*")
    name, _, field = behind.partition(b"->")
    return glob_escape(before) + b"*" + glob_escape(name if field else behind)


def _sort_ro(argv: Argv) -> Keys:
    """SORT_RO: SORT without STORE."""
    runs, problem = _sort(argv)
    return Keys(runs[:1], problem)


_UNSEEN = OnKey(types=())  # the keys that patterns name
_SORTING = {
    "SORT": Facts(
        on_keys=(OnKey(), _UNSEEN, OnKey(STORES, of_key("elements", 1), types=("list",))),
        found=KeyFinder(
            _sort, "1; the one after the last STORE; BY and GET patterns cannot be known", "read; write"
        ),
    ),
    "SORT_RO": Facts(
        on_keys=(OnKey(), _UNSEEN),
        found=KeyFinder(_sort_ro, "1; BY and GET patterns cannot be known", "read"),
    ),
}

GENERIC = together(
    _EXPIRING,
    _WHOLE_KEYS,
    _SORTING,
    each("DUMP EXPIRETIME MEMORY|USAGE OBJECT|ENCODING OBJECT|REFCOUNT PEXPIRETIME PTTL TTL", _ANY),
    each("EXISTS OBJECT|FREQ OBJECT|IDLETIME TOUCH TYPE", _ANY._replace(shows_existence=True)),
    {"OBJECT HELP": Facts(connection=Connection.OWN)},
)
