"""Commands on hashes."""

from __future__ import annotations

from keyfence.commands.arguments import integer, option, options, word
from keyfence.commands.cache_forms import FIELDS, Layout
from keyfence.commands.content import pairs
from keyfence.commands.facts import Argv, Connection, Facts, KeyFinder, OnKey, Rights, each, together
from keyfence.commands.key_runs import Keys, Run, one
from keyfence.commands.model import READ, REMOVES, REPLACES, WRITE, Content, Problem, Ttl
from keyfence.commands.ttl import EDITS, KEEPS


def _hgetex(argv: Argv) -> int:
    """HGETEX key FIELDS n field …, with no other option, is an HMGET (`src/t_hash.c` of Redis 8)."""
    if len(argv) > 3 and word(argv[2]) == b"FIELDS" and integer(argv[3]) == len(argv) - 4:
        return READ
    return READ | WRITE


def _hsetex_ttl(argv: Argv) -> Ttl:
    """HSETEX key [FXX] …: FXX, or XX of Valkey 9.1, needs an existing key. Its times are those of fields."""
    for name in options(argv, 2):
        if name in (b"FXX", b"XX"):
            return EDITS
        if name == b"FIELDS":
            break
    return KEEPS


def _hsetex_fields(argv: Argv, position: int) -> Content | None:
    """HSETEX key [options] FIELDS numfields field value …: Redis 8, Valkey 9."""
    for at in range(position + 1, len(argv)):
        if option(argv, at) == b"FIELDS":
            stated = (integer(argv[at + 1]) if at + 1 < len(argv) else None) or len(argv)
            return Content(fields=pairs(argv, at + 2, at + 2 + 2 * max(0, stated)))
    return None


def _himport_set(argv: Argv) -> Keys:
    """HIMPORT SET key fieldset value …: an earlier HIMPORT PREPARE named the fields (Redis 8.10)."""
    reason = "an earlier HIMPORT PREPARE named the fields that it writes"
    problem = Problem("command.unknown", 3, reason)
    return Keys([Run(one(2), WRITE)] if len(argv) > 2 else [], problem)


_FIELDS = Facts(layout=Layout(content=FIELDS, content_at=2, step=2, last=1))
_FIELD_WITHOUT_VALUE = Facts(layout=Layout(content=FIELDS, content_at=2, step=2, is_single=True))
# Fields that expire later are taken out then.
_EXPIRING_FIELDS = OnKey(EDITS, losses=REMOVES)

HASHES = together(
    each("HMSET HSET HSETNX", _FIELDS),
    each("HINCRBY HINCRBYFLOAT", _FIELD_WITHOUT_VALUE),
    each("HEXPIRE HEXPIREAT HPEXPIRE HPEXPIREAT", Facts(on_keys=(_EXPIRING_FIELDS,))),
    # They depend on what HIMPORT PREPARE has left behind on the connection.
    each("HIMPORT|DISCARD HIMPORT|DISCARDALL HIMPORT|PREPARE", Facts(connection=Connection.STAYS)),
    {
        "HGETEX": Facts(
            on_keys=(_EXPIRING_FIELDS,), rights=Rights(_hgetex, "read and write; without options read")
        ),
        "HIMPORT SET": Facts(
            on_keys=(OnKey(losses=REPLACES),),
            found=KeyFinder(_himport_set, "2; what HIMPORT PREPARE has named cannot be known", "write"),
            connection=Connection.STAYS,
        ),
        "HPERSIST": Facts(on_keys=(OnKey(EDITS),)),
        "HSETEX": Facts(on_keys=(OnKey(_hsetex_ttl, _hsetex_fields, REMOVES),)),
    },
)
