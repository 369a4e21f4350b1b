"""The losses of a key's content, compared with live servers."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.commands.extract import extract
from keyfence.commands.model import DELETE
from tests.commands.conftest import Live
from tests.commands.test_effects import HASH, LIST, OTHERS, SET, STREAM, STRING, WRITES, ZSET

# How to read the elements of these types. Of other types only the existence is checked.
ELEMENTS: dict[bytes, tuple[str, ...]] = {
    b"hash": ("HKEYS", "k"),
    b"list": ("LRANGE", "k", "0", "-1"),
    b"set": ("SMEMBERS", "k"),
    b"zset": ("ZRANGE", "k", "0", "-1"),
    b"stream": ("XRANGE", "k", "-", "+"),
}
TAKING = [
    *((STRING, text) for text in ("DEL k", "UNLINK k", "GETDEL k", "MOVE k 1", "RENAME k x", "RENAMENX k x")),
    *((STRING, text) for text in ("EXPIRE k -1", "PEXPIREAT k 1 LT", "GETEX k PXAT 1", "SET k v EXAT 1")),
    *((STRING, text) for text in ("DELEX k", "DELIFEQ k 1", "MSETEX 1 k v EXAT 1", "INCREX k EXAT 1")),
    *(
        (STRING, text)
        for text in ("BITOP AND k none", "COPY s k REPLACE", "SDIFFSTORE k none", "SORT none STORE k")
    ),
    *((HASH, text) for text in ("HDEL k f", "HGETDEL k FIELDS 1 f", "HPEXPIREAT k 1 FIELDS 1 f")),
    *((HASH, text) for text in ("HGETEX k PXAT 1 FIELDS 1 f", "HSETEX k PXAT 1 FIELDS 1 f v")),
    *((LIST, text) for text in ("LSET k 0 x", "LMPOP 1 k LEFT COUNT 3", "LMOVEM k x LEFT LEFT COUNT 2")),
    *((SET, text) for text in ("SPOP k 3", "SMOVE k x 1", "SUNIONSTORE k none", "SINTERSTORE k none")),
    *((ZSET, text) for text in ("ZMPOP 1 k MIN COUNT 3", "BZMPOP 1 1 k MIN", "ZRANGESTORE k none 0 1")),
    *((ZSET, text) for text in ("GEOSEARCHSTORE k none FROMLONLAT 1 1 BYRADIUS 1 m", "ZDIFFSTORE k 1 none")),
    *((STREAM, text) for text in ("XDELEX k IDS 1 1-1", "XTRIM k MINID 9", "XDEL k 1-1")),
    ("VADD k VALUES 2 1 1 a", "VREM k a"),
    ("ARSET k 0 a", "ARDEL k 0"),
]


def held(server: Live) -> list[Any] | None:
    """The elements of `k`, or None if it is gone."""
    kind = server("TYPE", "k")
    if kind == b"none":
        return None
    return list(server(*ELEMENTS[kind])) if kind in ELEMENTS else []


@pytest.mark.parametrize(("setup", "text"), [*WRITES, *TAKING])
def test_every_command_that_removes_a_key_or_elements_has_losses(redis: Live, setup: str, text: str) -> None:
    server, argv = redis, text.encode().split()
    server("FLUSHALL")
    for line in (*OTHERS.split(";"), setup):
        server(*line.split())
    before = held(server)
    server.transacted(argv)
    after = held(server)
    server("SELECT", "0")
    says = any(
        one.losses or one.needs & DELETE or (one.ttl is not None and one.ttl.milliseconds is not None)
        for one in extract(argv).accesses
        if one.key == b"k"
    )
    is_gone = before is not None and after is None
    has_lost = after is not None and any(one not in after for one in before or ())
    assert says or not (is_gone or has_lost), (before, after)
