"""Commands on streams."""

from __future__ import annotations

from collections.abc import Iterable

from keyfence.commands.arguments import MOST_OPTIONS, integer, option, options, word
from keyfence.commands.cache_forms import FIELDS, TRIMMING, Layout
from keyfence.commands.content import pairs
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
from keyfence.commands.key_runs import Keys, after, runs_of
from keyfence.commands.model import GROUP, READ, WRITE, Content, Ttl
from keyfence.commands.ttl import EDITS, KEEPS

# -- XADD

# Redis evicts whole stream nodes. With a LIMIT below a node's size (stream-node-max-entries) it evicts none.
_NODE_ENTRIES = 100
_XADD_FLAGS = frozenset({b"KEEPREF", b"DELREF", b"ACKED"})  # Redis 8.2
_XADD_PRODUCERS = {b"IDMP": 2, b"IDMPAUTO": 1}  # Redis 8.6: how many names follow the option


def _xadd(argv: Argv) -> tuple[int, bool, Content]:
    """XADD's options (`src/t_stream.c`, streamParseAddOrTrimArgsOrReply): the position of the ID after them,
    whether NOMKSTREAM is one of them, and how they trim the stream."""
    nomkstream, maxlen, approximate, maxlen_position = False, None, False, 0
    limit = 0
    index = 2
    while index < len(argv):
        name = option(argv, index)
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
    trims = Content(
        stream_add=True,
        maxlen=maxlen,
        maxlen_approximate=approximate,
        maxlen_position=maxlen_position,
    )
    return index, nomkstream, trims


def _entry(argv: Argv, _position: int) -> Content | None:
    """XADD key [options] id field value …"""
    id_at, _, trims = _xadd(argv)
    return trims._replace(fields=pairs(argv, id_at + 1))


def _xadd_ttl(argv: Argv) -> Ttl:
    return EDITS if _xadd(argv)[1] else KEEPS


# -- XREAD and XREADGROUP

# How many arguments each option takes, including itself. CLAIM: Redis 8.4.
XREAD_OPTIONS = {b"BLOCK": 2, b"CLAIM": 2, b"COUNT": 2, b"GROUP": 3, b"NOACK": 1}
_STREAMS = frozenset({b"STREAMS"})


def _xread(argv: Argv) -> Keys:
    """XREAD, XREADGROUP: the first half of the arguments after the option STREAMS.

    `src/t_stream.c`, xreadCommand: STREAMS may also be the name of a group, a consumer or a key.
    """
    index = 1
    while index < len(argv):
        name = option(argv, index)
        if name == b"STREAMS":
            return _halves(argv, [index + 1])
        if name not in XREAD_OPTIONS:
            return _halves(argv, after(argv, _STREAMS, index))
        index += XREAD_OPTIONS[name]
    return Keys([])


def _halves(argv: Argv, starts: Iterable[int]) -> Keys:
    """The first half of the rest are keys, the second half IDs. An odd number is an error; the middle one
    counts as a key."""
    needs = READ | WRITE if word(argv[0]) == b"XREADGROUP" else READ
    size = len(argv)
    return Keys(runs_of((range(start, start + (size - start + 1) // 2) for start in starts), needs))


# -- consumer groups


def _claim(argv: Argv) -> int:
    """XCLAIM returns the entries' content, or with JUSTID only IDs that argv names (`src/t_stream.c`)."""
    # Among very many IDs it is not looked for: without it, more rights are needed.
    justid = len(argv) <= MOST_OPTIONS and b"JUSTID" in options(argv, 5)
    return WRITE | GROUP if justid else READ | WRITE | GROUP


def _autoclaim(_argv: Argv) -> int:
    """XAUTOCLAIM returns IDs that argv does not name, with JUSTID too (`src/t_stream.c`)."""
    return READ | WRITE | GROUP


def _xgroup_create_ttl(argv: Argv) -> Ttl:
    return KEEPS if b"MKSTREAM" in options(argv, 5) else EDITS


_EDITED = OnKey(EDITS)
_READING = Facts(decides=KEYS_ONLY, connection=Connection.BLOCKS)
_HALF = "the first half of what is after STREAMS"

STREAMS = together(
    each("XACK XGROUP|CREATECONSUMER XGROUP|SETID XNACK", Facts(on_keys=(_EDITED,), keeps_group=True)),
    each("XGROUP XGROUP|DELCONSUMER XGROUP|DESTROY", Facts(keeps_group=True)),
    each("XACKDEL XCFGSET XIDMPRECORD XSETID", Facts(on_keys=(_EDITED,))),
    {
        "XADD": Facts(
            on_keys=(OnKey(_xadd_ttl, _entry),),
            grows=True,
            layout=Layout(TRIMMING, content=FIELDS, step=2, last=1),
        ),
        "XAUTOCLAIM": Facts(rights=Rights(_autoclaim, "read and group"), keeps_group=True, grows=False),
        "XCLAIM": Facts(
            on_keys=(_EDITED,),
            rights=Rights(_claim, "read and group; with JUSTID group"),
            keeps_group=True,
            grows=False,
        ),
        "XGROUP CREATE": Facts(on_keys=(OnKey(_xgroup_create_ttl),), keeps_group=True, grows=False),
        "XREAD": _READING._replace(found=KeyFinder(_xread, _HALF, "read")),
        "XREADGROUP": _READING._replace(
            on_keys=(_EDITED,), found=KeyFinder(_xread, _HALF, "read and group"), keeps_group=True
        ),
    },
)
