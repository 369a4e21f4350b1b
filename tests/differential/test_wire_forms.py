"""Every form of request and reply, and bytes that are not a request."""

from __future__ import annotations

from functools import partial

import pytest

from keyfence.resp import encode
from tests.differential.pairs import Pair, step
from tests.servers import ServerBinary

a, b = partial(step, "a"), partial(step, "b")
MIB = 1024 * 1024


# -- requests


INLINE = [
    b"PING\r\n",
    b"PING\n",
    b"  PING  \r\n",
    b"SET k v\r\nGET k\r\n",
    b'SET k "a b"\r\nGET k\r\n',
    b"SET k 'a b'\r\nGET k\r\n",
    b"SET k 'it\\'s'\r\nGET k\r\n",
    b'SET k "\\x41\\n\\t\\r\\b\\a\\\\\\"\\q"\r\nGET k\r\n',
    b'SET "k" ""\r\nGET k\r\n',
    b"get\tk\r\n",
    b"\r\n\r\nPING\r\n",
    b"\n\nPING\n",
    b"   \r\nPING\r\n",
    b"PING\r\n*1\r\n$4\r\nPING\r\nPING\r\n",
    b"SET k " + b"x" * 60_000 + b"\r\nSTRLEN k\r\n",
    b"NOSUCH a b c\r\n",
    b"GET\r\n",
    b"SET k \xff\xfe\r\nGET k\r\n",
    b"+PING\r\n",
    b"-PING\r\n",
    b"PING\r\r\nPING\r\n",
    b"MULTI\r\nSET k 1\r\nEXEC\r\n",
]


@pytest.mark.parametrize("data", INLINE, ids=range(len(INLINE)))
def test_inline_commands(pair: Pair, data: bytes) -> None:
    pair.same(a(data, "ECHO end"))


WRONG = [
    b"PING 'unbalanced\r\n",
    b'SET k "a"b\r\n',
    b"x" * 100_000,
    b"*1\r\n$-1\r\n",
    b"*1\r\n$x\r\n",
    b"*1\r\n$\r\n",
    b"*1\r\n$4x\r\nPING\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n$99999999999999999999\r\n",
    b"*1\r\nPING\r\n",
    b"*1\r\n:4\r\n",
    b"*1\r\n+PING\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"*x\r\n",
    b"*\r\n",
    b"*1x\r\n",
    b"*2147483648\r\n",
    b"*99999999999999999999\r\n",
    b"*+1\r\n$4\r\nPING\r\n",
    b"*1\r\n$+4\r\nPING\r\n",
    b"*" + b"1" * 70_000,
    b"*1\r\n$" + b"1" * 70_000,
    b"*2\r\n$3\r\nGET\r\n$1x\r\nk\r\n",
]

HTTP = [
    b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"Host: x\r\n",
    b"host: x\r\n",
    b"post /\r\n",
    encode.command("POST", "/"),
    encode.command("Host:", "x"),
]


@pytest.mark.parametrize("data", WRONG, ids=range(len(WRONG)))
def test_invalid_requests(pair: Pair, data: bytes) -> None:
    pair.same(a("SET k 1", data), b("GET k"))
    pair.same(a(data))


@pytest.mark.parametrize("data", [WRONG[0], WRONG[5], WRONG[14]], ids=range(3))
def test_invalid_requests_after_a_blocked_command(
    pair: Pair, redis_binary: ServerBinary, data: bytes
) -> None:
    pair.same(a("SET k 1", "GET k", data, "SET k 2"), b("GET k"))
    pair.same(a("MULTI", "SET k 1", data), b("GET k"))
    if redis_binary.name == "redis" and redis_binary.numbers >= (8,):
        pytest.skip("Redis 8 keeps the error back until the client sends more")
    pair.same(a("BLPOP l 0", data), b("RPUSH l 1"), b("LLEN l"))


@pytest.mark.parametrize("data", HTTP, ids=range(len(HTTP)))
def test_requests_of_browsers_close_the_connection(pair: Pair, data: bytes) -> None:
    pair.same(a("SET k 1"), a(data, "SET k 2"), b("GET k"))
    pair.same(a(data))


NO_REPLY = [b"\r\n", b"\n", b"*0\r\n", b"*-1\r\n", b"*-5\r\n", b"   \r\n", b"*00\r\n", b"*-0\r\n"]


@pytest.mark.parametrize("data", NO_REPLY)
def test_input_without_a_reply(pair: Pair, data: bytes) -> None:
    pair.same(a(data, silent=True), a("GET k"), a(data * 5 + encode.command("GET", "k") + data, "PING"))
    pair.same(a("MULTI", data, "GET k", data * 3, "EXEC", "GET k"))


EMPTY = [
    b"*1\r\n$0\r\n\r\n",
    b"*2\r\n$0\r\n\r\n$1\r\nk\r\n",
    encode.command("GET", ""),
    encode.command("SET", "", ""),
]


@pytest.mark.parametrize("data", EMPTY, ids=range(len(EMPTY)))
def test_empty_arguments(pair: Pair, data: bytes) -> None:
    pair.same(a(data, "PING"))


NAMES = ["get", "gEt", "GET", "Get"]


@pytest.mark.parametrize("name", NAMES)
def test_command_names_in_any_case(pair: Pair, name: str) -> None:
    pair.same(
        a(
            "SET k 1",
            f"{name} k",
            "client getname",
            "Client GetName",
            "config get maxclients",
            "multi",
            "exec",
        )
    )


def test_unknown_commands(pair: Pair) -> None:
    pair.same(
        a(
            "NOSUCH",
            "NOSUCH a b c",
            ("NOSUCH", b"x" * 300, b"y" * 300),
            (b"NO\r\nSUCH", b"a\r\nb"),
            (b"\x00\xff", b"\xfe"),
            ("N" * 500, "a"),
            "GET",
            "GET a b",
            "SET k",
            "OBJECT",
            "OBJECT NOSUCH a",
            "CONFIG NOSUCH",
            "XINFO",
            "XGROUP x",
            "CLUSTER NOSUCH",
            "SCRIPT NOSUCH",
            "ACL NOSUCH",
            "MEMORY NOSUCH",
            "LATENCY NOSUCH",
            "CLIENT NOSUCH x",
            "COMMAND NOSUCH",
            "PUBSUB NOSUCH",
            "DEBUG NOSUCH",
            "SLOWLOG NOSUCH",
            "MODULE NOSUCH",
            "FUNCTION NOSUCH",
        ),
    )


def test_syntax_errors(pair: Pair) -> None:
    pair.same(
        a(
            "SET k v EX",
            "SET k v EX 0",
            "SET k v EX x",
            "SET k v NX XX",
            "SET k v NOSUCH",
            "EXPIRE k x",
            "INCRBY k x",
            "LRANGE k 0 x",
            "ZADD z x m",
            "ZADD z",
            "HSET h f",
            "MSET a",
            "MSET a 1 b",
            "BITFIELD k GET u64 0",
            "SETRANGE k -1 x",
            "EVAL x 0",
            "EVAL x",
            "EVAL x y",
            "EVAL x -1",
            "EVAL x 5 a",
            "EVALSHA x 0",
            "SORT k BY",
            "SORT k LIMIT 0",
            "SCAN x",
            "SCAN 0 COUNT 0",
            "XADD s",
            "XADD s * f",
            "XREAD STREAMS a",
            "XREAD COUNT x STREAMS a 0",
            "GEOADD g 999 0 m",
            "LPOS l",
            "COPY a a",
            "OBJECT ENCODING nosuch",
            "SINTERCARD 0 a",
            "LMPOP 0 a LEFT",
            "ZUNIONSTORE d 0 a",
            "GETEX k EX",
            "RESTORE k 0 x",
            "DUMP nosuch",
            "SWAPDB 0 99",
            "MOVE k 99",
        ),
    )


def test_a_deep_pipeline(pair: Pair) -> None:
    pair.same(
        a(
            *(f"SET k{number % 100} {number}" for number in range(5000)),
            *(f"GET k{n % 100}" for n in range(5000)),
        )
    )
    pair.same(a(*(("INCR k", "NOSUCH", "MULTI", "INCR k", "EXEC", "GET k")[n % 6] for n in range(10_000))))


def test_a_deep_pipeline_in_pieces(pair: Pair) -> None:
    pair.same(
        a(*(f"INCRBY k {number}" for number in range(3000)), pieces=[1, 10, 100, 5000, 1, 16384, 3, 30000])
    )


@pytest.mark.parametrize("size", [MIB, 8 * MIB])
def test_large_values(pair: Pair, size: int) -> None:
    value = bytes(range(256)) * (size // 256)
    pair.same(a(("SET", "k", value)), a("STRLEN k", "GET k", "GETRANGE k 5 9"), b("GET k", "GET k", "PING"))
    pair.same(a("GET k", ("SET", "k", value, "EX", 600), "STRLEN k", ("APPEND", "k", value), "STRLEN k"))
    pair.same(a("MULTI", ("SET", "k", value), "STRLEN k", "EXEC"), a(("ECHO", value), "PING"))


def test_a_large_value_that_stops_in_the_middle(pair: Pair) -> None:
    half = encode.command("SET", "k", b"x" * (8 * MIB))[: 5 * MIB]
    pair.same(a("SET k 1", half), a(closes=True), b("GET k"))


def test_many_arguments(pair: Pair) -> None:
    pair.same(a(("DEL", *range(20_000)), ("MSET", *range(20_000)), ("MGET", *range(0, 20_000, 2)), "DBSIZE"))


# -- replies

SCRIPTS = {
    "numbers": "return {1, -1, 9007199254740993, 3.99}",
    "double": "redis.setresp(3) return {double = 3.25}",
    "big number": "redis.setresp(3) return {big_number = '123456789012345678901234567890'}",
    "verbatim": "redis.setresp(3) return {verbatim_string = {format = 'txt', string = 'Some text'}}",
    "map": "redis.setresp(3) return {map = {a = 1, b = {map = {}}}}",
    "set": "redis.setresp(3) return {set = {x = true}}",
    "true": "redis.setresp(3) return true",
    "false": "redis.setresp(3) return false",
    "null": "return nil",
    "false in RESP2": "return {false, true, 'x'}",
    "nested": "return {{{{{{{1}}}}}}, {}, {{}}}",
    "status": "return redis.status_reply('FINE')",
    "error": "return redis.error_reply('MY error')",
    "raised": "error('it is so')",
    "of a command": "return redis.call('INCR', KEYS[1], 'x')",
    "caught": "return redis.pcall('NOSUCH')",
    "hash": "redis.setresp(3) redis.call('HSET', KEYS[1], 'f', 'v') return redis.call('HGETALL', KEYS[1])",
    "score": "redis.setresp(3) redis.call('ZADD', 'z', 1.5, 'm') return redis.call('ZSCORE', 'z', 'm')",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_return_values_of_scripts(pair: Pair, script: str) -> None:
    pair.same(a(("EVAL", script, 1, "k"), "PING"))


TYPES = ["string", "integer", "double", "bignum", "null", "array", "set", "map", "attrib", "push"]
TYPES += ["verbatim", "true", "false"]


@pytest.mark.parametrize("kind", TYPES)
def test_all_reply_types(pair: Pair, kind: str) -> None:
    pair.same(
        a("PING"),
        a(f"DEBUG PROTOCOL {kind}", "PING", f"DEBUG PROTOCOL {kind}", f"DEBUG PROTOCOL {kind}", "PING"),
    )


def test_all_reply_types_in_a_transaction(pair: Pair) -> None:
    pair.same(a("MULTI", *(f"DEBUG PROTOCOL {kind}" for kind in TYPES if kind != "push"), "EXEC", "PING"))


def test_replies_by_value_type(pair: Pair) -> None:
    pair.same(
        a(
            "HSET h f v g w",
            "HGETALL h",
            "HGET h x",
            "SADD s a",
            "SMEMBERS s",
            "SPOP s",
            "ZADD z 1 a 2.5 b inf c",
            "ZRANGE z 0 -1 WITHSCORES",
            "ZSCORE z b",
            "ZINCRBY z 0.1 a",
            "INCRBYFLOAT n 0.1",
            "LRANGE nosuch 0 -1",
            "GET nosuch",
            "TYPE h",
            "OBJECT ENCODING h",
            "OBJECT HELP",
            "XADD x 1-1 f v",
            "XRANGE x - +",
            "XREAD STREAMS x 0",
            "XINFO STREAM x",
            "GEOADD g 13.361389 38.115556 p",
            "GEOPOS g p nosuch",
            "LCS a b",
            "HRANDFIELD h 5 WITHVALUES",
            "SISMEMBER s a",
            "ZMSCORE z a nosuch",
            "GEOSEARCH g FROMMEMBER p BYRADIUS 1 km ASC WITHCOORD WITHDIST",
            "BITFIELD n GET u8 0",
            "SET n 1 GET",
            "GETDEL n",
            "LPOS l a RANK 1 COUNT 0",
            "ZRANDMEMBER z 0",
            "PFADD p a",
            "PFCOUNT p",
            "DUMP s",
        ),
    )
