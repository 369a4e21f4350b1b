"""Commands that copy or move content from one key to another, or from a dump.

Rule: argv shows where such content comes from, never the content itself.

`CARRIED_OF` has the same keys as the tables in `effects.py`: the command's name, and the role of the key that
receives the content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .exceptions import numkeys
from .model import Carried, Content

Argv = Sequence[bytes]
CarriedOf = Callable[[Argv, int], Content | None]


def _value_of(source: int) -> CarriedOf:
    """RENAME key newkey: the unchanged value of the key at this argument."""
    return lambda argv, _position: Content(carried=Carried("value", source, argv[source : source + 1]))


def _elements_of(source: int) -> CarriedOf:
    """LMOVE source destination …: elements of the key at this argument."""
    return lambda argv, _position: Content(carried=Carried("elements", source, argv[source : source + 1]))


def _elements_from(source: int) -> CarriedOf:
    """SUNIONSTORE destination key …: elements of all keys from this argument on."""
    return lambda argv, _position: Content(carried=Carried("elements", source, argv[source:]))


def _counted(argv: Argv, _position: int) -> Content | None:
    """ZUNIONSTORE destination numkeys key …: elements of these keys."""
    sources = numkeys(argv, 2, 3)
    return Content(carried=Carried("elements", sources.start, argv[sources.start : sources.stop]))


def _result_of(source: int) -> CarriedOf:
    """BITOP operation destination key …: a string computed from all keys from this argument on."""
    return lambda argv, _position: Content(carried=Carried("result", source, argv[source:]))


def _merged(argv: Argv, _position: int) -> Content | None:
    """CMS.MERGE destination numkeys key …: the merged value of these keys."""
    sources = numkeys(argv, 2, 3)
    return Content(carried=Carried("result", sources.start, argv[sources.start : sources.stop]))


def _aggregated(argv: Argv, _position: int) -> Content | None:
    """TS.CREATERULE source destination …: aggregated samples of the source from now on."""
    return Content(carried=Carried("result", 1, argv[1:2]))


def _dumped(argv: Argv, _position: int) -> Content | None:
    """RESTORE key ttl dump …: the dump's first byte is its type (`src/rdb.h`)."""
    dump = argv[3] if len(argv) > 3 else b""
    types = (_DUMPED[dump[0]],) if dump and dump[0] in _DUMPED else ()
    return Content(carried=Carried("value", types=types))


# Key types by the first byte of a dump.
_DUMPED = {
    **dict.fromkeys((0,), "string"),
    **dict.fromkeys((1, 10, 14, 18), "list"),
    **dict.fromkeys((2, 11, 20), "set"),
    **dict.fromkeys((3, 5, 12, 17), "zset"),
    **dict.fromkeys((4, 9, 13, 16, 22, 23, 24, 25), "hash"),
    **dict.fromkeys((15, 19, 21), "stream"),
}

CARRIED_OF: dict[tuple[str, int], CarriedOf] = {
    ("BITOP", 0): _result_of(3),
    ("BLMOVE", 1): _elements_of(1),
    ("BLMOVEM", 1): _elements_of(1),
    ("BRPOPLPUSH", 1): _elements_of(1),
    ("CMS.MERGE", 0): _merged,
    ("COPY", 1): _value_of(1),
    ("GEORADIUS", 1): _elements_of(1),
    ("GEORADIUS", 2): _elements_of(1),
    ("GEORADIUSBYMEMBER", 1): _elements_of(1),
    ("GEORADIUSBYMEMBER", 2): _elements_of(1),
    ("GEOSEARCHSTORE", 0): _elements_of(2),
    ("LMOVE", 1): _elements_of(1),
    ("LMOVEM", 1): _elements_of(1),
    ("PFMERGE", 0): _result_of(2),
    ("RENAME", 1): _value_of(1),
    ("RENAMENX", 1): _value_of(1),
    ("RESTORE", 0): _dumped,
    ("RESTORE-ASKING", 0): _dumped,
    ("RPOPLPUSH", 1): _elements_of(1),
    ("SDIFFSTORE", 0): _elements_from(2),
    ("SINTERSTORE", 0): _elements_from(2),
    ("SORT", 2): _elements_of(1),
    ("SUNIONSTORE", 0): _elements_from(2),
    ("TDIGEST.MERGE", 0): _merged,
    ("TS.CREATERULE", 1): _aggregated,
    ("ZDIFFSTORE", 0): _counted,
    ("ZINTERSTORE", 0): _counted,
    ("ZRANGESTORE", 0): _elements_of(2),
    ("ZUNIONSTORE", 0): _counted,
}
