from __future__ import annotations

from typing import get_args

import pytest

from keyfence.commands.effects import effect_of
from keyfence.commands.extract import extract
from keyfence.commands.model import WRITE, Content, Field, Members, Ttl
from keyfence.commands.table import COMMANDS
from keyfence.policy.source.model import ValueType
from tests.commands.conftest import Live
from tests.commands.test_extract import touched

YEAR = 31_536_000_000  # milliseconds; a key's time to live before the command
MAX = 2**63 - 1


def ttl(text: str, access: int = 0) -> Ttl | None:
    return touched(text).accesses[access].ttl


def content(text: str) -> Content | None:
    return touched(text).accesses[0].content


# -- time to live


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SET k v", Ttl("drops")),
        ("SET k v KEEPTTL", Ttl("keeps")),
        ("SET k v NX", Ttl("drops", condition="NX")),
        ("SET k v XX", Ttl("drops", condition="XX", creates=False)),
        ("SET k v EX 60", Ttl("sets", 60_000, position=4)),
        ("SET k v nx px 60", Ttl("sets", 60, position=5, condition="NX")),
        ("SET k v EXAT 60 GET", Ttl("sets", 60_000, True, 4)),
        ("SET k v PXAT 60", Ttl("sets", 60, True, 4)),
        ("SET k v EX 1x", Ttl("sets", None, position=4)),
        ("SET k v EX -1", Ttl("sets", -1000, position=4)),
        (f"SET k v EX {MAX // 1000 + 1}", Ttl("sets", None, position=4)),
        (f"SET k v PX {MAX}", Ttl("sets", MAX, position=4)),
        ("SET k v EX", Ttl("drops")),
        ("SET k v EX 60 EX 90", Ttl("sets", 90_000, position=6)),
        ("SET k v IFEQ EX GET", Ttl("drops", condition="IFEQ")),
        ("SET k v IFEQ EX EX 60", Ttl("sets", 60_000, position=6, condition="IFEQ")),
        ("SET k v IFNE XX KEEPTTL", Ttl("keeps", condition="IFNE")),
        ("SETEX k 60 v", Ttl("sets", 60_000, position=2)),
        ("PSETEX k 60 v", Ttl("sets", 60, position=2)),
        ("GETEX k EX 60", Ttl("expires", 60_000, position=3, creates=False)),
        ("GETEX k PXAT 60", Ttl("expires", 60, True, 3, creates=False)),
        ("GETEX k PERSIST", Ttl("drops", creates=False)),
        ("GETEX k EX 60 EX 90", Ttl("expires", 90_000, position=5, creates=False)),
        ("GETEX k", None),
        ("EXPIRE k 60", Ttl("expires", 60_000, position=2, creates=False)),
        ("PEXPIRE k 60 NX", Ttl("expires", 60, position=2, condition="NX", creates=False)),
        ("EXPIREAT k 60 xx gt", Ttl("expires", 60_000, True, 2, "XX GT", creates=False)),
        ("PEXPIREAT k x", Ttl("expires", None, True, 2, creates=False)),
        ("PERSIST k", Ttl("drops", creates=False)),
        ("RESTORE k 0 p", Ttl("drops", position=2, condition="NX")),
        ("RESTORE k 60 p REPLACE ABSTTL", Ttl("sets", 60, True, 2)),
        ("SETNX k v", Ttl("drops", condition="NX", follows=True)),
        ("MSET k v", Ttl("drops", follows=True)),
        ("SUNIONSTORE k a", Ttl("drops", follows=True)),
        ("HSET k f v", Ttl("keeps")),
        ("HDEL k f", Ttl("keeps", creates=False)),
        ("XADD k * f v", Ttl("keeps")),
        ("XADD k NOMKSTREAM * f v", Ttl("keeps", creates=False)),
        ("XGROUP CREATE k g $", Ttl("keeps", creates=False)),
        ("XGROUP CREATE k g $ MKSTREAM", Ttl("keeps")),
        ("ZADD k XX 1 m", Ttl("keeps", creates=False)),
        ("GET k", None),
        ("DEL k", None),
        ("EVAL s 1 k", None),
        ("BITFIELD k GET u8 0", None),
    ],
)
def test_the_effect_on_the_time_to_live(text: str, expected: Ttl | None) -> None:
    assert ttl(text) == expected


def test_copying_and_renaming_carry_the_time_to_live() -> None:
    assert ttl("RENAME a b") is None
    assert ttl("RENAME a b", 1) == Ttl("carries")
    assert ttl("RENAMENX a b", 1) == Ttl("carries", condition="NX")
    assert ttl("COPY a b", 1) == Ttl("carries", condition="NX")
    assert ttl("COPY a b DB 1 REPLACE", 1) == Ttl("carries")


# Commands that write the key `k`, and the commands that prepare it and other keys.
STRING, HASH, LIST, SET, ZSET, STREAM = (
    "SET k 1",
    "HSET k f 1",
    "RPUSH k 1 2 3",
    "SADD k 1 2 3",
    "ZADD k 1 1 2 2 3 3",
    "XADD k 1-1 f v",
)
VECTORS = "VADD k VALUES 2 1 1 a"
OTHERS = "SET s x;RPUSH l 1;SADD t 1;ZADD z 1 1;GEOADD g 1 2 m;PFADD p x"
WRITES = [
    *((STRING, text) for text in ("SET k v", "SET k v KEEPTTL", "SET k v EX 9", "SET k v XX", "GETSET k v")),
    *((STRING, text) for text in ("MSET x 1 k 2", "APPEND k v", "SETRANGE k 1 v", "SETBIT k 0 1", "INCR k")),
    *((STRING, text) for text in ("INCRBY k 2", "DECR k", "DECRBY k 2", "INCRBYFLOAT k 2", "SETEX k 9 v")),
    *((STRING, text) for text in ("BITFIELD k SET u8 0 1", "PSETEX k 9000 v", "PERSIST k", "EXPIRE k 9")),
    *(
        (STRING, text)
        for text in ("GETEX k EX 9", "GETEX k PERSIST", "EXPIREAT k 99999999999", "BITOP NOT k s")
    ),
    *((STRING, text) for text in ("SETNX n v", "MSETNX n v", "SET n v NX", "SET n v XX", "EXPIRE n 9")),
    *((STRING, text) for text in ("RENAME s k", "COPY s k REPLACE", "GETEX n EX 9", "PERSIST n")),
    *((HASH, text) for text in ("HSET k g 1", "HMSET k g 1", "HSETNX k g 1", "HINCRBY k f 1", "HDEL k x")),
    *((HASH, text) for text in ("HINCRBYFLOAT k f 1", "HDEL n f", "HSET n f v", "HINCRBY n f 1")),
    *(
        (LIST, text)
        for text in ("LPUSH k 1", "RPUSHX k 1", "LINSERT k BEFORE 1 0", "LSET k 0 9", "LREM k 0 1")
    ),
    *((LIST, text) for text in ("LTRIM k 0 1", "LPOP k", "RPOP k", "LMOVE l k LEFT LEFT", "RPOPLPUSH k l")),
    *((LIST, text) for text in ("LPUSHX n 1", "LPUSH n 1", "LMOVE k n LEFT LEFT", "BRPOPLPUSH n l 1")),
    *((LIST, text) for text in ("LINSERT n BEFORE 1 0", "LTRIM n 0 1", "LPOP n", "LREM n 0 1", "BLPOP k 1")),
    *((LIST, text) for text in ("SORT l STORE k", "SORT l STORE n", "LSET n 0 9", "RPUSHX n 1")),
    *(
        (SET, text)
        for text in ("SADD k 9", "SREM k 1", "SPOP k", "SMOVE t k 1", "SINTERSTORE k t", "SADD n 1")
    ),
    *((SET, text) for text in ("SUNIONSTORE k t", "SDIFFSTORE n t", "SREM n 1", "SPOP n", "SMOVE k n 1")),
    *((ZSET, text) for text in ("ZADD k 9 9", "ZINCRBY k 1 1", "ZREM k 1", "ZPOPMIN k", "ZUNIONSTORE k 1 z")),
    *(
        (ZSET, text)
        for text in ("ZRANGESTORE k z 0 1", "ZINTERSTORE n 1 z", "ZDIFFSTORE k 1 z", "ZADD n 1 m")
    ),
    *(
        (ZSET, text)
        for text in ("ZADD n XX 1 m", "ZREMRANGEBYRANK k 0 0", "ZREMRANGEBYSCORE k 1 1", "ZPOPMAX n")
    ),
    *(
        (ZSET, text)
        for text in ("ZREMRANGEBYLEX k - +", "GEOADD k 1 2 m", "GEOADD n XX 1 2 m", "BZPOPMIN k 1")
    ),
    *(
        (ZSET, text)
        for text in ("GEOSEARCHSTORE k g FROMMEMBER m BYRADIUS 9 m", "GEORADIUS g 1 2 9 km STORE k")
    ),
    *((ZSET, text) for text in ("GEORADIUSBYMEMBER g m 9 km STOREDIST n", "ZINCRBY n 1 1")),
    *(
        (STREAM, text)
        for text in ("XADD k * f v", "XADD n NOMKSTREAM * f v", "XDEL k 1-1", "XTRIM k MAXLEN 9")
    ),
    *((STREAM, text) for text in ("XGROUP CREATE k g $", "XGROUP CREATE n g $ MKSTREAM", "XSETID k 9-9")),
    *(
        (STREAM, text)
        for text in ("XGROUP CREATE n g $", "XGROUP DESTROY k g", "XACK n g 1-1", "XTRIM n MAXLEN 9")
    ),
    *((STREAM, text) for text in ("XADD n * f v", "XDEL n 1-1", "XSETID n 1-1", "XGROUP SETID n g 1")),
    *(
        (HASH, text)
        for text in ("HSETEX k FIELDS 1 g 1", "HSETEX n EX 9 FIELDS 1 g 1", "HGETDEL k FIELDS 1 x")
    ),
    *((HASH, text) for text in ("HSETEX n FXX FIELDS 1 g 1", "HGETEX k EX 9 FIELDS 1 f")),
    *((STRING, text) for text in ("MSETEX 1 k v", "MSETEX 1 k v EX 9", "MSETEX 1 k v KEEPTTL")),
    *((STRING, text) for text in ("MSETEX 2 s v k w XX", "SET k v IFEQ 1", "SET k v IFNE 2 EX 9")),
    *(
        (STREAM, text)
        for text in ("XADD k IDMP p i * f v", "XADD n IDMPAUTO MAXLEN * f v", "XDELEX k IDS 1 1-1")
    ),
    *((STREAM, text) for text in ("XACKDEL n g IDS 1 1-1", "XCFGSET n IDMP-DURATION 10")),
    *((VECTORS, text) for text in ("VADD k VALUES 2 1 1 b", "VADD n VALUES 2 1 1 b", "VREM k a", "VREM n a")),
    *((VECTORS, text) for text in ("VSETATTR k a {}", "VSETATTR n a {}")),
    *(("PFADD k x", text) for text in ("PFADD k y", "PFADD n y", "PFMERGE k p", "PFMERGE n p")),
]


@pytest.mark.parametrize("name", ["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"])
@pytest.mark.parametrize("past", [-(MAX + 1), -MAX, -(MAX // 1000) - 1, -(MAX // 1000), -1, 0])
def test_servers_delete_a_key_at_the_past_times_that_are_predicted(redis: Live, name: str, past: int) -> None:
    redis("SET", "k", "1")
    effect = ttl(f"{name} k {past}")
    assert effect is not None
    redis.transacted([name.encode(), b"k", b"%d" % past])
    assert (redis("EXISTS", "k") == 0) == (effect.milliseconds is not None)


@pytest.mark.parametrize(("prepare", "text"), WRITES, ids=[text for _, text in WRITES])
def test_servers_change_the_time_to_live_as_predicted(redis: Live, prepare: str, text: str) -> None:
    """`k` exists and has a time to live, `n` does not exist, and the sources have no time to live."""
    if text.split(maxsplit=1)[0].encode() not in redis.names():
        pytest.skip(f"{redis.version} does not have the command")
    redis("FLUSHALL")
    for line in [prepare, *OTHERS.split(";")]:
        redis(*line.split())
    redis("PEXPIRE", "k", YEAR)
    (access,) = [a for a in touched(text).accesses if a.key in (b"k", b"n") and a.needs & WRITE][-1:]
    effect = access.ttl
    assert effect is not None
    reply = str(redis.transacted(text.encode().split()))
    if "syntax error" in reply or "Invalid stream ID" in reply:
        pytest.skip(f"{redis.version} does not have the option")
    left = redis("PTTL", access.key)
    if access.key == b"n":
        exists = left != -2
        assert not exists or effect.creates
        assert exists == (effect.creates and effect.condition != "XX")
    if left == -2 or (access.key == b"n" and effect.kind == "expires"):
        return
    match effect.kind:
        case "keeps":
            assert left == -1 if access.key == b"n" else left > YEAR - 60_000
        case "drops" | "carries":
            assert left == -1
        case "sets" | "expires":
            assert effect.milliseconds is not None
            assert 0 < left < YEAR - 60_000 or effect.absolute


# -- types

TYPED = {"string": STRING, "hash": HASH, "list": LIST, "set": SET, "zset": ZSET, "stream": STREAM}
READS = (
    "GET k;STRLEN k;GETRANGE k 0 1;BITCOUNT k;BITPOS k 1;SUBSTR k 0 1;GETBIT k 0;GETEX k;HGET k f;HLEN k;"
    "HGETALL k;HMGET k f;HSCAN k 0;HRANDFIELD k;LRANGE k 0 1;LLEN k;LINDEX k 0;LPOS k 1;SCARD k;SMEMBERS k;"
    "SISMEMBER k 1;SMISMEMBER k 1;SSCAN k 0;SRANDMEMBER k;SINTER k;SUNION k;SDIFF k;ZCARD k;ZRANGE k 0 1;"
    "ZSCORE k 1;ZMSCORE k 1;ZSCAN k 0;ZCOUNT k 0 1;ZRANK k 1;ZUNION 1 k;ZINTER 1 k;ZDIFF 1 k;GEOPOS k m;"
    "GEODIST k a b;GEOHASH k m;XLEN k;XRANGE k - +;XREAD STREAMS k 0;XINFO STREAM k;SORT k BY nosort;TYPE k;"
    "EXISTS k;TTL k;DUMP k;OBJECT ENCODING k;TOUCH k;ZUNIONSTORE d 1 k;SUNIONSTORE d k;BITOP NOT d k;"
    "GEORADIUS k 1 2 3 m;LPUSH k 1;HSET k f v;SADD k 1;ZADD k 1 1;XADD k * f v;APPEND k v;INCR k;"
    "EXPIRE k 9;PERSIST k;RENAME k d;COPY k d;DEL k;UNLINK k;MOVE k 1;XTRIM k MAXLEN 9;SETRANGE k 0 v"
)


@pytest.mark.parametrize("text", READS.split(";"))
def test_servers_accept_only_the_predicted_types(redis: Live, text: str) -> None:
    (access,) = [a for a in touched(text).accesses if a.key == b"k"]
    for kind, prepare in TYPED.items():
        redis("FLUSHALL")
        redis(*prepare.split())
        if text.startswith("MOVE"):
            redis("SELECT", 1), redis("DEL", "k"), redis("SELECT", 0)
        reply = str(redis.transacted(text.encode().split()))
        fits = not access.types or kind in access.types
        assert ("WRONGTYPE" not in reply) == fits, (text, kind, reply)


def test_a_destination_may_have_another_type_than_its_source() -> None:
    assert [a.types for a in touched("SORT k STORE d").accesses] == [("list", "set", "zset"), ("list",)]
    assert [a.types for a in touched("ZUNIONSTORE d 1 k").accesses] == [("zset",), ("set", "zset")]
    assert [a.types for a in touched("GEORADIUS k 1 2 3 m STORE d").accesses] == [("zset",), ("zset",)]


# -- content


@pytest.mark.parametrize(
    ("text", "value", "position"),
    [
        ("SET k v EX 5", b"v", 2),
        ("SETEX k 5 v", b"v", 3),
        ("PSETEX k 5 v", b"v", 3),
        ("SETNX k v", b"v", 2),
        ("GETSET k v", b"v", 2),
        ("MSET k v", b"v", 2),
        ("MSETNX k v", b"v", 2),
    ],
)
def test_a_whole_value_is_content(text: str, value: bytes, position: int) -> None:
    assert content(text) == Content(value, position)


def test_each_key_of_mset_has_its_value() -> None:
    assert [a.content for a in touched("MSET a 1 b 2").accesses] == [Content(b"1", 2), Content(b"2", 4)]
    assert [a.content for a in touched("MSET a 1 b").accesses] == [Content(b"1", 2), None]


@pytest.mark.parametrize(
    ("text", "least", "position"),
    [
        ("APPEND k vw", 2, 2),
        ("APPEND k", None, 0),
        ("SETRANGE k 7 vw", 9, 3),
        ("SETRANGE k 7", None, 0),
        ("SETRANGE k -1 v", None, 0),
        ("SETRANGE k x v", None, 0),
        ("SETBIT k 0 1", 1, 2),
        ("SETBIT k 7 0", 1, 2),
        ("SETBIT k 8 0", 2, 2),
        ("SETBIT k -8 0", None, 0),
        ("SETBIT k", None, 0),
    ],
)
def test_part_of_a_value_shows_the_minimum_length_of_the_whole(
    text: str, least: int | None, position: int
) -> None:
    shown = None if least is None else Content(least=least, value_position=position)
    assert content(text) == shown


@pytest.mark.parametrize("text", ["GET k", "DEL k", "INCR k", "SETEX k 5", "LMOVE k a LEFT LEFT"])
def test_commands_without_content_in_argv(text: str) -> None:
    assert content(text) is None


def test_the_fields_of_a_hash_are_content() -> None:
    pairs = (Field(2, b"f", 3, b"v"), Field(4, b"g", 5, b"w"))
    assert content("HSET k f v g w") == content("HMSET k f v g w") == Content(fields=pairs)
    assert content("HSET k f v g w odd") == Content(fields=pairs)
    assert content("HSETNX k f v") == Content(fields=pairs[:1])
    assert (
        content("HINCRBY k f 1") == content("HINCRBYFLOAT k f 1") == Content(fields=(Field(2, b"f", 0, b""),))
    )


@pytest.mark.parametrize(
    ("options", "maxlen", "approximate", "position"),
    [
        ("", None, False, 0),
        ("MAXLEN 9", 9, False, 3),
        ("MAXLEN = 9", 9, False, 4),
        ("maxlen ~ 9 LIMIT 5", None, True, 4),  # it never evicts entries
        ("maxlen ~ 9 LIMIT 100", 9, True, 4),
        ("maxlen ~ 9 LIMIT 0", 9, True, 4),
        ("NOMKSTREAM MAXLEN ~ 9", 9, True, 5),
        ("MINID ~ 9", None, False, 0),
        ("MAXLEN ~ x", None, True, 4),
        ("KEEPREF MAXLEN 9", 9, False, 4),
        ("IDMP p MAXLEN MAXLEN 9", 9, False, 6),
        ("IDMPAUTO MAXLEN", None, False, 0),
    ],
)
def test_the_entry_and_the_trimming_of_xadd(
    options: str, maxlen: int | None, approximate: bool, position: int
) -> None:
    argv = f"XADD k {options} * f v".encode().split()
    shown = extract(argv).accesses[0].content
    at = len(argv) - 2
    fields = (Field(at, b"f", at + 1, b"v"),)
    assert shown == Content(None, 0, fields, True, maxlen, approximate, position)


@pytest.mark.parametrize(
    ("text", "access", "expected"),
    [
        ("SADD k a b", 0, Members(2, 1, [b"a", b"b"])),
        ("RPUSH k a", 0, Members(2, 1, [b"a"])),
        ("LPUSHX k a b c", 0, Members(2, 1, [b"a", b"b", b"c"])),
        ("LSET k 0 a", 0, Members(3, 1, [b"a"])),
        ("LINSERT k BEFORE p a", 0, Members(4, 1, [b"a"])),
        ("SMOVE s k a", 1, Members(3, 1, [b"a"])),
        ("ZADD k 1 a 2 b", 0, Members(3, 2, [b"a", b"b"], [b"1", b"2"])),
        ("ZADD k nx CH 1 a", 0, Members(5, 2, [b"a"], [b"1"])),
        ("ZADD k XX INCR 1 a", 0, Members(5, 2, [b"a"])),
        ("ZADD k 1 a 2", 0, Members(3, 2, [b"a"], [b"1"])),
        ("ZADD k 1", 0, Members(3, 2, [], [])),
        ("ZINCRBY k 1 a", 0, Members(3, 1, [b"a"])),
        ("GEOADD k XX 1 2 a 3 4 b", 0, Members(5, 3, [b"a", b"b"])),
    ],
)
def test_added_elements_are_content(text: str, access: int, expected: Members) -> None:
    content = touched(text).accesses[access].content
    assert content is not None
    members = content.members
    assert members is not None
    assert members[:2] == expected[:2]
    assert [list(one) for one in members[2:]] == [list(one) for one in expected[2:]]
    assert content == Content(members=members)


def test_very_many_elements_are_not_copied() -> None:
    argv = [b"ZADD", b"k", b"NX", *(part for at in range(2_000) for part in (b"%d" % at, b"m%d" % at))]
    [access] = extract(argv).accesses
    assert access.content is not None
    members = access.content.members
    assert members is not None
    assert (len(members.values), len(members.scores)) == (2_000, 2_000)
    assert list(members.values) == [b"m%d" % at for at in range(2_000)]
    assert (members.values[1], members.values[-1], members.scores[7]) == (b"m1", b"m1999", b"7")
    assert members.values[2:4] == (b"m2", b"m3")


def test_the_source_of_smove_has_no_content() -> None:
    assert touched("SMOVE k d a").accesses[0].content is None


def test_msetex_has_a_value_after_each_key_and_options_after_all() -> None:
    argv = b"MSETEX 2 a 1 b 2 NX PX 60".split()
    assert [access.key for access in extract(argv).accesses] == [b"a", b"b"]
    assert [access.content for access in extract(argv).accesses] == [Content(b"1", 3), Content(b"2", 5)]
    ttl_of = effect_of(COMMANDS[b"MSETEX"], 0).ttl_of
    assert ttl_of is not None
    assert ttl_of(argv) == Ttl("sets", 60, False, 8, "NX")
    assert ttl_of(argv[:6]) == Ttl("drops")
    assert ttl_of([b"MSETEX", b"x"]) == Ttl("drops")


def test_hsetex_writes_the_counted_fields() -> None:
    assert content("HSETEX k FNX EX 60 FIELDS 1 f v") == Content(fields=(Field(7, b"f", 8, b"v"),))
    assert content("HSETEX k FIELDS 1 f v EX 60") == Content(fields=(Field(4, b"f", 5, b"v"),))
    assert content("HSETEX k FNX EX 60") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INCREX k", Ttl("keeps")),
        ("INCREX k BYINT 5 UBOUND 9 EX 60 ENX", Ttl("sets", 60_000, False, 7)),
        ("INCREX k LBOUND EX PX 7", Ttl("sets", 7, False, 5)),
        ("INCREX k PERSIST", Ttl("drops")),
        ("HSETEX k FIELDS 1 XX v", Ttl("keeps")),
        ("HSETEX k FXX EX 9 FIELDS 1 f v", Ttl("keeps", creates=False)),
        ("DELEX k IFEQ v", None),
    ],
)
def test_the_effect_of_the_newest_commands_on_the_time_to_live(text: str, expected: Ttl | None) -> None:
    assert ttl(text) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ARSET k 0 v", "array"),
        ("VADD k VALUES 1 1 e", "vectorset"),
        ("JSON.SET k $ 1", "json"),
        ("BF.ADD k x", "bloom"),
        ("CF.ADD k x", "cuckoo"),
        ("TS.ADD k * 1", "timeseries"),
        ("HGETDEL k FIELDS 1 f", "hash"),
    ],
)
def test_arrays_vector_sets_and_module_types_are_separate_types(text: str, kind: str) -> None:
    assert touched(text).accesses[0].types == (kind,)
    assert kind in get_args(ValueType)
