"""The content that each command writes to a key, as far as argv shows it.

Rule: each function returns positions and bytes of argv, and computes no value. The functions are looked up by
command name and role, as described in `effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .arguments import integer, option, word
from .carried import CARRIED_OF
from .model import Content, Field, Members, Streamed, part_of, sequence

Argv = Sequence[bytes]
ContentOf = Callable[[Argv, int], Content | None]

# The options of ZADD and GEOADD that precede the elements.
LEADING_OPTIONS = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})


def _value_at(offset: int) -> ContentOf:
    """The whole value, `offset` arguments after its key."""

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


def _pairs(argv: Argv, start: int, stop: int | None = None) -> Sequence[Field]:
    places = range(start, min(len(argv), len(argv) if stop is None else stop) - 1, 2)
    return sequence(len(places), lambda: (Field(i, argv[i], i + 1, argv[i + 1]) for i in places))


def _fields(argv: Argv, position: int) -> Content | None:
    """HSET key field value …"""
    return Content(fields=_pairs(argv, position + 1))


def _field_without_value(argv: Argv, position: int) -> Content | None:
    """HINCRBY key field increment: argv does not hold the resulting value."""
    at = position + 1
    return Content(fields=(Field(at, argv[at], 0, b""),)) if at < len(argv) else None


class _Xadd(NamedTuple):
    nomkstream: bool
    maxlen: int | None
    approximate: bool
    maxlen_position: int
    id_position: int


def xadd_options(argv: Argv) -> _Xadd:
    """XADD's options up to the ID (`src/t_stream.c`, streamParseAddOrTrimArgsOrReply)."""
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
    return _Xadd(nomkstream, maxlen, approximate, maxlen_position, index)


# Redis evicts whole stream nodes. With a LIMIT below a node's size (stream-node-max-entries) it evicts none.
_NODE_ENTRIES = 100
_XADD_FLAGS = frozenset({b"KEEPREF", b"DELREF", b"ACKED"})  # Redis 8.2
_XADD_PRODUCERS = {b"IDMP": 2, b"IDMPAUTO": 1}  # Redis 8.6: how many names follow the option


def _entry(argv: Argv, _position: int) -> Content | None:
    """XADD key [options] id field value …"""
    options = xadd_options(argv)
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
        if option(argv, at) == b"FIELDS":
            pairs = (integer(argv[at + 1]) if at + 1 < len(argv) else None) or len(argv)
            return Content(fields=_pairs(argv, at + 2, at + 2 + 2 * max(0, pairs)))
    return None


def _members_from(offset: int) -> ContentOf:
    """SADD key member …: all arguments, starting `offset` after the key."""

    def content(argv: Argv, position: int) -> Content | None:
        start = position + offset
        return Content(members=Members(start, 1, part_of(argv, start)))

    return content


def _member_at(offset: int) -> ContentOf:
    """One element, `offset` arguments after the key."""

    def content(argv: Argv, position: int) -> Content | None:
        at = position + offset
        return Content(members=Members(at, 1, argv[at : at + 1]))

    return content


def _behind_options(argv: Argv, start: int) -> tuple[int, bool]:
    """Where the options of ZADD and GEOADD end, and whether INCR is one of them (zaddGenericCommand)."""
    increments = False
    while start < len(argv) and (name := option(argv, start)) in LEADING_OPTIONS:
        increments = increments or name == b"INCR"
        start += 1
    return start, increments


def _scored(argv: Argv, position: int) -> Content | None:
    """ZADD key [options] score member …; with INCR the score is an increment."""
    start, increments = _behind_options(argv, position + 1)
    scores = () if increments else part_of(argv, start, -1, 2)
    return Content(members=Members(start + 1, 2, part_of(argv, start + 1, None, 2), scores))


def _located(argv: Argv, position: int) -> Content | None:
    """GEOADD key [options] longitude latitude member …: Redis computes the score."""
    start, _ = _behind_options(argv, position + 1)
    return Content(members=Members(start + 2, 3, part_of(argv, start + 2, None, 3)))


# By command and role. APPEND, SETRANGE and SETBIT show the value's minimum length. BITFIELD and INCR show
# nothing of it. LMOVE, RESTORE and similar show at most where it comes from.
CONTENT_OF: dict[tuple[str, int], ContentOf] = {
    **CARRIED_OF,
    ("APPEND", 0): _appended,
    ("GEOADD", 0): _located,
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
