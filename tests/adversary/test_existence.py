"""The class: a reply that depends on a key's value, sent to a service that may not read the key.

The search sends admitted commands to a real Redis twice, with two values of one type, and compares the
replies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ResponseError

from keyfence.commands.effects import effect_of
from keyfence.commands.extract import extract
from keyfence.commands.model import READ, WRITE
from keyfence.commands.table import COMMANDS
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.adversary.conftest import Search
from tests.commands.conftest import Live
from tests.servers import running_redis, server_binaries

# A writer that may not read. It may do more than a service that may only learn that a key exists.
POLICY = """
policy: p
services: [blind]
scopes: {all: {prefix: "", writers: [blind], deny_read: [blind], unregistered: allow}}
"""
KEY, OTHER = b"k", b"other"
# Writes without READ reply only with a number (of new or removed elements, or the current
# length), a status such as OK, or the client's own words, as docs/policy.md says.
_BLIND_WRITES = (
    "APPEND COPY DEL EXPIRE EXPIREAT GEOADD GEORADIUS GEORADIUSBYMEMBER GEOSEARCHSTORE HDEL "
    "HEXPIRE HEXPIREAT HMSET HPERSIST HPEXPIRE HPEXPIREAT HSET HSETNX LINSERT LPUSH LPUSHX "
    "LREM LSET LTRIM MSET MSETNX PERSIST PEXPIRE PEXPIREAT PFADD PSETEX RESTORE "
    "RESTORE-ASKING RPUSH RPUSHX SADD SETEX SETNX SETRANGE SREM UNLINK XACK XADD XDEL XSETID "
    "XTRIM ZADD ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE XCLAIM "
    # On newer servers. DELEX with a condition reads (its row's `rights`).
    "ARDEL ARDELRANGE ARINSERT ARMSET ARRING ARSEEK ARSET DELEX HSETEX MSETEX XACKDEL XCFGSET XDELEX "
    "XIDMPRECORD XNACK"
)
_OF_GROUPS = "CREATE CREATECONSUMER DELCONSUMER DESTROY SETID"
BLIND_WRITES = {*_BLIND_WRITES.split(), "HIMPORT SET", *(f"XGROUP {word}" for word in _OF_GROUPS.split())}
# These write a destination key; their reply is about the source.
_DESTINATIONS = (
    "BITOP BLMOVE BLMOVEM BRPOPLPUSH LMOVE LMOVEM PFMERGE RENAME RENAMENX RPOPLPUSH SDIFFSTORE SINTERSTORE "
    "SMOVE SORT SUNIONSTORE ZDIFFSTORE ZINTERSTORE ZRANGESTORE ZUNIONSTORE"
)
DESTINATIONS = frozenset(_DESTINATIONS.split())
BLOCKING = frozenset({"BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN"})
# These reach another server, or inspect this one.
ELSEWHERE = frozenset({"MIGRATE", "DEBUG", "PFDEBUG", "PFSELFTEST", "WAIT"})
NAMES = sorted(
    name for name, row in COMMANDS.items() if row.command.names_keys and row.command.name not in ELSEWHERE
)
WORDS = b"a b c x 0 1 2 -1 5 5000 1-1 2-1 0-0 * $ > + - [a (1 g NX XX GT LT CH GET EX KEEPTTL m km u8".split()
WORDS += b"BEFORE AFTER LEFT RIGHT COUNT FIELDS LIMIT MAXLEN JUSTID NOMKSTREAM STORE FREQ AND NOT MIN".split()
# Forms that random words rarely produce.
FORMS = """
XAUTOCLAIM k g c 0 0-0 JUSTID; XCLAIM k g c 0 1-1 JUSTID; XCLAIM k g c 0 1-1 2-1
XGROUP CREATECONSUMER k g c; XGROUP DELCONSUMER k g a; XADD k * a 1; XADD k NOMKSTREAM MAXLEN 1 * a 1
XTRIM k MAXLEN 1; XACK k g 1-1; SET k 1 GET; SET k 1 XX GET; SET k 1 NX; ZADD k INCR 1 a
ZADD k GT CH 1 a; ZADD k XX CH 5 b; GETEX k EX 5; BITFIELD k GET u8 0; BITFIELD k SET u8 0 1
BITFIELD k OVERFLOW FAIL INCRBY u8 0 1; LPOS k a; LINSERT k BEFORE a x; SORT k ALPHA STORE other
SORT k ALPHA; GEORADIUS k 1 1 900 km STORE other; GEOSEARCH k FROMLONLAT 1 1 BYRADIUS 9 km
GEOSEARCHSTORE other k FROMLONLAT 1 1 BYRADIUS 9 km ASC; COPY k other; LMOVE k other LEFT LEFT
RESTORE k 0 x; LMPOP 1 k LEFT; ZMPOP 1 k MIN; SINTERCARD 1 k; ZUNION 1 k; ZRANGESTORE other k 0 -1
BITOP NOT other k; LCS k other; OBJECT ENCODING k; OBJECT REFCOUNT k; MEMORY USAGE k
XREADGROUP GROUP g c STREAMS k 0; SPOP k; SMOVE k other a
"""
# Pairs of values, as the commands that create them.
CONTENTS: list[tuple[list[str], list[str]]] = [
    (["SET k 5"], ["SET k abc"]),
    (["SET k ab"], ["SET k abcdef"]),
    (["SETBIT k 7 1"], ["SETBIT k 1 1"]),
    (["SADD k a b"], ["SADD k x 1 2"]),
    (["RPUSH k a b a"], ["RPUSH k x"]),
    (["HSET k a 1 b 2"], ["HSET k a 100000 x 2 c 3"]),
    (["ZADD k 1 a 2 b"], ["ZADD k 1 b 5 x 7 c"]),
    (["GEOADD k 1 1 a"], ["GEOADD k 50 50 a 2 2 b"]),
    (["PFADD k a b"], ["PFADD k x"]),
    (
        ["XADD k 1-1 a 1", "XADD k 2-1 b 1", "XGROUP CREATE k g 0", "XREADGROUP GROUP g a STREAMS k >"],
        ["XADD k 1-1 x 1", "XGROUP CREATE k g 0"],
    ),
]


def test_writes_without_read_are_listed() -> None:
    """A new server's commands need a review before they count as showing nothing.

    The table does not mark XAUTOCLAIM and DELIFEQ as reads; their rows' `rights` do.
    """
    unread = {
        (row.command.name, effect_of(row, role).needs & WRITE)
        for row in COMMANDS.values()
        for role, spec in enumerate(row.specs)
        if spec.is_key
        and not effect_of(row, role).needs & READ
        and row.command.name not in ("XAUTOCLAIM", "DELIFEQ")
    }
    existence = {row.command.name for row in COMMANDS.values() if row.facts.shows_existence}
    assert {name for name, writes in unread if not writes} == existence
    assert {name for name, writes in unread if writes} <= BLIND_WRITES | DESTINATIONS


@pytest.fixture(scope="module", params=server_binaries(), ids=lambda binary: binary.id)
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    with running_redis(request.param) as redis:
        live = Live(str(redis.socket_path), request.param.version)
        yield live
        live.connection.disconnect()


def call(rng: random.Random) -> list[bytes]:
    """Returns a command on the key: a known form with a changed word, or as many arguments as its arity."""
    if rng.random() < 0.3:
        form = rng.choice(FORMS.replace("\n", ";").split(";")).encode().split() or [b"GET", KEY]
        if rng.random() < 0.5:
            form[rng.randrange(1, len(form))] = rng.choice([KEY, *WORDS])
        return form
    name = rng.choice(NAMES)
    words = name.split()
    count = abs(COMMANDS[name].command.arity) - len(words) + rng.choice([0, 0, 0, 1, 2, 3])
    arguments = [rng.choice(WORDS) if rng.random() < 0.7 else KEY for _ in range(max(count, 1))]
    arguments[rng.choice([0, 0, 0, min(1, len(arguments) - 1)])] = KEY
    return [*words, *arguments]


def reply(server: Live, content: list[str], argv: list[bytes]) -> Any:
    server("DEL", KEY, OTHER)
    for command in content:
        server(*command.split())
    server("PEXPIRE", KEY, 10_000_000) if argv[0] == b"PERSIST" else None
    return server(*argv) if argv[0].decode() not in BLOCKING else server.transacted(argv)


def shows_nothing(answer: Any, argv: list[bytes]) -> bool:
    """Returns whether a write's reply holds only numbers, the client's own words, or a status."""
    if isinstance(answer, list):
        return all(shows_nothing(one, argv) for one in answer)
    return answer is None or isinstance(answer, int | ResponseError) or answer in (b"OK", b"QUEUED", *argv)


def test_no_admitted_reply_depends_on_the_key_s_value(server: Live, search: Search) -> None:
    evaluator = Evaluator(parse_policy(POLICY))
    known = server.names()
    for rng in search.attempts_of_at_least(3000):
        argv = call(rng)
        touches = extract(argv)
        if argv[0] not in known or touches.command is None or evaluator.decide(0, argv).violations:
            continue
        one, other = rng.choice(CONTENTS)
        first, second = reply(server, one, argv), reply(server, other, argv)
        if any(access.needs & WRITE for access in touches.accesses):
            made_by_redis = touches.command.name == "XADD"  # the ID of the new entry
            assert made_by_redis or (shows_nothing(first, argv) and shows_nothing(second, argv)), argv
        elif touches.command.name != "OBJECT IDLETIME":  # which counts seconds
            assert str(first) == str(second), (argv, one, other)
