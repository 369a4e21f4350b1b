"""Commands on sorted sets, and on places, which are sorted sets too."""

from __future__ import annotations

from keyfence.commands.arguments import each_option, option, word
from keyfence.commands.cache_forms import ELEMENTS, FLAGS, SCORED_OPTIONS, Layout
from keyfence.commands.content import of_counted_keys, of_key
from keyfence.commands.facts import (
    KEYS_ONLY,
    Argv,
    Connection,
    Facts,
    KeyFinder,
    OnKey,
    Rights,
    each,
    together,
)
from keyfence.commands.key_runs import Keys, after, destinations, source
from keyfence.commands.model import READ, WRITE, Content, Members, Ttl, part_of
from keyfence.commands.ttl import EDITS, KEEPS, STORES

# -- ZADD and GEOADD


def _leading(argv: Argv, start: int) -> tuple[int, set[bytes]]:
    """Where the options of ZADD and GEOADD end, and which there are (`src/t_zset.c`, zaddGenericCommand)."""
    found = set()
    while start < len(argv) and (name := option(argv, start)) in SCORED_OPTIONS:
        found.add(name)
        start += 1
    return start, found


def _zadd(argv: Argv) -> int:
    """ZADD … INCR returns the new score, as ZINCRBY does."""
    return READ | WRITE if b"INCR" in _leading(argv, 2)[1] else WRITE


def _added_ttl(argv: Argv) -> Ttl:
    """The command creates the key unless XX is one of its options."""
    return EDITS if b"XX" in _leading(argv, 2)[1] else KEEPS


def _scored(argv: Argv, position: int) -> Content | None:
    """ZADD key [options] score member …; with INCR the score is an increment."""
    start, found = _leading(argv, position + 1)
    scores = () if b"INCR" in found else part_of(argv, start, -1, 2)
    return Content(members=Members(start + 1, 2, part_of(argv, start + 1, None, 2), scores))


def _located(argv: Argv, position: int) -> Content | None:
    """GEOADD key [options] longitude latitude member …: Redis computes the score."""
    start, _ = _leading(argv, position + 1)
    return Content(members=Members(start + 2, 3, part_of(argv, start + 2, None, 3)))


# -- GEORADIUS

_GEO_OTHERS = frozenset({b"WITHDIST", b"WITHHASH", b"WITHCOORD", b"COUNT", b"ANY", b"ASC", b"DESC"})
_GEO_STORES = frozenset({b"STORE", b"STOREDIST"})


def _radius_keys(argv: Argv) -> Keys:
    """GEORADIUS key longitude latitude radius unit …, GEORADIUSBYMEMBER key member radius unit …: the last of
    STORE and STOREDIST counts (`src/geo.c`, georadiusGeneric)."""
    start = 5 if word(argv[0]) == b"GEORADIUSBYMEMBER" else 6
    stores: list[int] = []
    for name, index in each_option(argv, start, {b"STORE": 1, b"STOREDIST": 1, b"COUNT": 1}):
        if name in _GEO_STORES:
            stores = [index + 1]
        elif name not in _GEO_OTHERS:
            stores += after(argv, _GEO_STORES, index)
            break
    return Keys(source(argv) + destinations(stores, 1))


_STORED = OnKey(STORES, of_key("elements", 1))
_RADIUS = Facts(
    on_keys=(OnKey(), _STORED, _STORED),
    found=KeyFinder(_radius_keys, "1; the one after the last STORE or STOREDIST", "read; write"),
)

# `src/t_zset.c` accepts plain sets as sources too, with a score of 1 for each member.
_SOURCES = OnKey(types=("set", "zset"))
_STORES = Facts(on_keys=(OnKey(STORES, of_counted_keys("elements")), _SOURCES), decides=KEYS_ONLY)

SORTED_SETS = together(
    each("BZMPOP BZPOPMAX BZPOPMIN", Facts(decides=KEYS_ONLY, connection=Connection.BLOCKS)),
    each("ZDIFF ZINTER ZINTERCARD ZUNION", Facts(on_keys=(_SOURCES,), decides=KEYS_ONLY)),
    each("ZDIFFSTORE ZINTERSTORE ZUNIONSTORE", _STORES),
    each("GEORADIUS GEORADIUSBYMEMBER", _RADIUS),
    each(
        "GEOSEARCHSTORE ZRANGESTORE",
        Facts(on_keys=(OnKey(STORES, of_key("elements", 2)),), decides=KEYS_ONLY),
    ),
    {
        "GEOADD": Facts(
            on_keys=(OnKey(_added_ttl, _located),), layout=Layout(FLAGS, content=ELEMENTS, step=3, last=2)
        ),
        "ZADD": Facts(
            on_keys=(OnKey(_added_ttl, _scored),),
            rights=Rights(_zadd, "write; with INCR read and write"),
            layout=Layout(FLAGS, content=ELEMENTS, step=2, last=1, is_scored=True),
        ),
        "ZINCRBY": Facts(layout=Layout(content=ELEMENTS, content_at=3, is_single=True)),
        "ZMPOP": Facts(decides=KEYS_ONLY),
    },
)
