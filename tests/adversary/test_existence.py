"""The class: a reply that depends on what a key holds, to a service that may not read the key.

The search sends what keyfence admits to a real Redis twice, over two contents of one type, and compares.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ResponseError

from keyfence.commands.effects import EXISTENCE, effect_of
from keyfence.commands.extract import extract
from keyfence.commands.model import READ, WRITE
from keyfence.commands.table import COMMANDS
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.adversary.conftest import Search
from tests.commands.conftest import Live
from tests.servers import running_redis, server_binaries

# A writer that may not read: it is admitted more than one that has no right but to know that a key is there.
POLICY = """
policy: p
services: [blind]
scopes: {all: {prefix: "", writers: [blind], deny_read: [blind], unregistered: allow}}
"""
KEY, OTHER = b"k", b"other"
# Writes that need no READ answer no more than a number (how many were new or were removed, how long it is
# now), a word such as OK, or what the client sent. docs/policy.md says so.
_BLIND_WRITES = (
    "APPEND COPY DEL EXPIRE EXPIREAT GEOADD GEORADIUS GEORADIUSBYMEMBER GEOSEARCHSTORE HDEL "
    "HEXPIRE HEXPIREAT HMSET HPERSIST HPEXPIRE HPEXPIREAT HSET HSETNX LINSERT LPUSH LPUSHX "
    "LREM LSET LTRIM MSET MSETNX PERSIST PEXPIRE PEXPIREAT PFADD PSETEX RESTORE "
    "RESTORE-ASKING RPUSH RPUSHX SADD SETEX SETNX SETRANGE SREM UNLINK XACK XADD XDEL XSETID "
    "XTRIM ZADD ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE XCLAIM "
    # Of newer servers. DELEX with a condition reads (`exceptions.NEEDS`).
    "ARDEL ARDELRANGE ARINSERT ARMSET ARRING ARSEEK ARSET DELEX HSETEX MSETEX XACKDEL XCFGSET XDELEX "
    "XIDMPRECORD XNACK"
)
_OF_GROUPS = "CREATE CREATECONSUMER DELCONSUMER DESTROY SETID"
BLIND_WRITES = {*_BLIND_WRITES.split(), "HIMPORT SET", *(f"XGROUP {word}" for word in _OF_GROUPS.split())}
# Of these the key that they write is only a destination, and the reply is about the source.
_DESTINATIONS = (
    "BITOP BLMOVE BLMOVEM BRPOPLPUSH LMOVE LMOVEM PFMERGE RENAME RENAMENX RPOPLPUSH SDIFFSTORE SINTERSTORE "
    "SMOVE SORT SUNIONSTORE ZDIFFSTORE ZINTERSTORE ZRANGESTORE ZUNIONSTORE"
)
DESTINATIONS = frozenset(_DESTINATIONS.split())
BLOCKING = frozenset({"BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN"})
# They reach another server, or look into this one.
ELSEWHERE = frozenset({"MIGRATE", "DEBUG", "PFDEBUG", "PFSELFTEST", "WAIT"})
NAMES = sorted(
    name for name, row in COMMANDS.items() if row.command.names_keys and row.command.name not in ELSEWHERE
)
WORDS = b"a b c x 0 1 2 -1 5 5000 1-1 2-1 0-0 * $ > + - [a (1 g NX XX GT LT CH GET EX KEEPTTL m km u8".split()
WORDS += b"BEFORE AFTER LEFT RIGHT COUNT FIELDS LIMIT MAXLEN JUSTID NOMKSTREAM STORE FREQ AND NOT MIN".split()
# Forms that random words hardly have.
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
# Pairs of contents, as the commands that make them.
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


def test_what_needs_no_read_is_on_a_list() -> None:
    """Whatever a later server's table brings is looked at before it counts as showing nothing.

    Of XAUTOCLAIM and DELIFEQ the table doesn't say that they read; `exceptions.NEEDS` does.
    """
    unread = {
        (row.command.name, effect_of(row, role).needs & WRITE)
        for row in COMMANDS.values()
        for role, spec in enumerate(row.specs)
        if spec.is_key
        and not effect_of(row, role).needs & READ
        and row.command.name not in ("XAUTOCLAIM", "DELIFEQ")
    }
    assert {name for name, writes in unread if not writes} == EXISTENCE
    assert {name for name, writes in unread if writes} <= BLIND_WRITES | DESTINATIONS


@pytest.fixture(scope="module", params=server_binaries(), ids=lambda binary: binary.id)
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    with running_redis(request.param) as redis:
        live = Live(str(redis.socket_path), request.param.version)
        yield live
        live.connection.disconnect()


def call(rng: random.Random) -> list[bytes]:
    """A command on the key: of a form with a word changed, or with about as many arguments as it asks for."""
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
    """Whether a write's reply is numbers, what the client sent, or a word that says how it went."""
    if isinstance(answer, list):
        return all(shows_nothing(one, argv) for one in answer)
    return answer is None or isinstance(answer, int | ResponseError) or answer in (b"OK", b"QUEUED", *argv)


def test_no_reply_that_is_admitted_depends_on_what_the_key_holds(server: Live, search: Search) -> None:
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
