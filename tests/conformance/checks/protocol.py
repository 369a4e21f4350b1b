"""Requests and replies as bytes, whatever they are about."""

from __future__ import annotations

import time

from keyfence.resp import encode
from tests.conformance.check import all_same, check, holds, is_error, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import EMPTY, NIL, NIL_ARRAY, OK, PONG, array, bulk, bulks, integer

GROUP = "protocol"
_LARGE = 16 << 20


@check(GROUP)
def _(trial: Trial) -> None:
    """Replies come in the order of a pipeline's commands."""
    keys = trial.keys(20)
    commands: list[tuple[str | int, ...]] = []
    wanted = []
    for number in range(500):
        key = keys[number % len(keys)]
        commands += [("SET", key, number), ("GET", key), ("STRLEN", key)]
        wanted += [OK, bulk(number), integer(len(str(number)))]
    all_same(trial.connect().pipeline(commands), wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """A pipeline of 10,000 commands gets 10,000 replies."""
    keys = trial.keys(50)
    commands = [("INCR", keys[number % 50]) for number in range(10_000)]
    all_same(trial.connect().pipeline(commands), [integer(number // 50 + 1) for number in range(10_000)])


@check(GROUP)
def _(trial: Trial) -> None:
    """A value of 16 MiB comes back as it was written."""
    one, key = trial.connect(), trial.key()
    text = bytes(range(256)) * (_LARGE // 256)
    same(one.ask("SET", key, text), OK)
    same(one.ask("STRLEN", key), integer(_LARGE))
    same(one.ask("GET", key), bulk(text))
    same(one.ask("PING"), PONG)


@check(GROUP)
def _(trial: Trial) -> None:
    """Keys and values keep every byte: spaces, CRLF, zeros, no UTF-8."""
    one = trial.connect()
    odd = trial.key("").encode() + b" \r\n\0\xff{}*$1\r\n"
    text = bytes(range(256)) + b"\r\n$3\r\n-ERR\r\n"
    same(one.ask("SET", odd, text), OK)
    same(one.ask("GET", odd), bulk(text))
    same(one.ask("DEL", odd), integer(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """No value, the empty value and the empty list are told apart."""
    one, key = trial.connect(), trial.key()
    same(one.ask("GET", key), NIL)
    same(one.ask("SET", key, ""), OK)
    same(one.ask("GET", key), bulk(""))
    same(one.ask("LRANGE", trial.key("list"), 0, -1), EMPTY)
    same(one.ask("HMGET", trial.key("hash"), "a", "b"), array(NIL, NIL))


@check(GROUP)
def _(trial: Trial) -> None:
    """The reply of no array is told from that of an empty one."""
    same(trial.connect().ask("LPOP", trial.key(), 2), NIL_ARRAY)


@check(GROUP)
def _(trial: Trial) -> None:
    """A reply that is nested keeps its form."""
    one, key = trial.connect(), trial.key()
    same(one.ask("XADD", key, "1-1", "f", "v"), bulk("1-1"))
    same(one.ask("XADD", key, "1-2", "f", "", "g", "w"), bulk("1-2"))
    wanted = array(array(bulk("1-1"), bulks("f", "v")), array(bulk("1-2"), bulks("f", "", "g", "w")))
    same(one.ask("XRANGE", key, "-", "+"), wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """Commands may be written inline, with quotes."""
    one, key = trial.connect(), trial.key()
    came = one.exchange(f'SET {key} "a b\\x41"\r\nget {key}\nPING\r\n'.encode(), 3)
    all_same(came, [OK, bulk("a bA"), PONG])


@check(GROUP)
def _(trial: Trial) -> None:
    """Empty lines and empty arrays get no reply."""
    one, ping = trial.connect(), encode.command("PING")
    same(b"".join(one.exchange(ping + b"\r\n" + ping + b"*0\r\n" + ping, 3)), PONG * 3)
    holds(not (more := one.nothing_for(0.05)), "three replies to three PINGs", more)


@check(GROUP)
def _(trial: Trial) -> None:
    """A name of a command may be in any case."""
    one, key = trial.connect(), trial.key()
    all_same(one.pipeline([("sEt", key, 1), ("get", key), ("Incr", key)]), [OK, bulk("1"), integer(2)])


@check(GROUP)
def _(trial: Trial) -> None:
    """Commands that come byte by byte are understood."""
    one, key = trial.connect(), trial.key()
    data = encode.command("SET", key, "a\r\nb") + encode.command("GET", key) + encode.command("PING")
    for at in range(len(data)):
        one.send_bytes(data[at : at + 1])
        time.sleep(0.001)
    all_same(one.replies(3), [OK, bulk("a\r\nb"), PONG])


@check(GROUP)
def _(trial: Trial) -> None:
    """A pipeline may be cut anywhere."""
    one, keys = trial.connect(), trial.keys(10)
    data = b"".join(encode.command("APPEND", key, "x" * 50) for key in keys * 10)
    at, size = 0, 1
    while at < len(data):
        one.send_bytes(data[at : at + size])
        at, size = at + size, size % 197 + 13
        time.sleep(0.0005)
    all_same(one.replies(100), [integer(50 * (number // 10 + 1)) for number in range(100)])


@check(GROUP)
def _(trial: Trial) -> None:
    """A client that reads late loses nothing, and delays no other."""
    late, other, key = trial.connect(), trial.connect(), trial.key()
    text = "y" * 50_000
    same(late.ask("SET", key, text), OK)
    late.send_bytes(encode.command("GET", key) * 200)
    asked = time.monotonic()
    same(other.ask("GET", trial.key("other")), NIL)
    took = time.monotonic() - asked
    holds(took < 1, "a reply for another client at once", f"a reply after {took:.1f} s")
    all_same(late.replies(200), [bulk(text)] * 200)


@check(GROUP)
def _(trial: Trial) -> None:
    """A client that closes its sending side gets the replies it awaits."""
    one, keys = trial.connect(), trial.keys(10)
    one.send_bytes(b"".join(encode.command("INCR", key) for key in keys))
    all_same(one.replies(10), [integer(1)] * 10)
    one.half_close()
    same(one.rest(), b"")


@check(GROUP)
def _(trial: Trial) -> None:
    """An unknown command gets an error, and its neighbours their replies."""
    came = trial.connect().pipeline([("PING",), ("NOSUCHCOMMAND", "a"), ("PING",)])
    same(came[0] + came[2], PONG * 2)
    holds(came[1].startswith(b"-"), "an error", came[1])


@check(GROUP)
def _(trial: Trial) -> None:
    """A wrong number of arguments gets an error, and its neighbours replies."""
    key = trial.key()
    came = trial.connect().pipeline([("SET", key, 1), ("GET",), ("SET", key), ("GET", key)])
    all_same([came[0], came[3]], [OK, bulk("1")])
    is_error(came[1])
    is_error(came[2])


@check(GROUP)
def _(trial: Trial) -> None:
    """An error of Redis comes word for word."""
    one, key = trial.connect(), trial.key()
    same(one.ask("SET", key, "text"), OK)
    wanted = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    same(one.ask("LPUSH", key, 1), wanted)
    same(one.ask("INCR", key), b"-ERR value is not an integer or out of range\r\n")


@check(GROUP)
def _(trial: Trial) -> None:
    """A protocol error gets an error, and the connection's end."""
    one = trial.connect()
    one.send_bytes(b"*1\r\n$x\r\n")
    is_error(one.reply())
    same(one.rest(), b"")


@check(GROUP)
def _(trial: Trial) -> None:
    """Replies that are due before a protocol error still come."""
    one, key = trial.connect(), trial.key()
    one.send_bytes(encode.command("SET", key, 1) + encode.command("INCR", key) + b"*1\r\n$x\r\n")
    all_same(one.replies(2), [OK, integer(2)])


@check(GROUP)
def _(trial: Trial) -> None:
    """HELLO says which server and protocol this is."""
    came = trial.connect().ask("HELLO")
    for word in (b"$6\r\nserver\r\n", b"$7\r\nversion\r\n", b"$5\r\nproto\r\n:2\r\n"):
        holds(word in came, f"a reply with the field {word.split()[1].decode()}", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """HELLO 3 begins RESP3: maps, sets, doubles, nulls."""
    one, key = trial.connect(), trial.key
    came = one.ask("HELLO", 3)
    holds(came.startswith(b"%") and b"$5\r\nproto\r\n:3\r\n" in came, "a map that says proto 3", came)
    same(one.ask("HSET", key("h"), "f", "v"), integer(1))
    same(one.ask("HGETALL", key("h")), b"%1\r\n" + bulk("f") + bulk("v"))
    same(one.ask("SADD", key("s"), "m"), integer(1))
    same(one.ask("SMEMBERS", key("s")), b"~1\r\n" + bulk("m"))
    same(one.ask("ZADD", key("z"), "1.5", "m"), integer(1))
    same(one.ask("ZSCORE", key("z"), "m"), b",1.5\r\n")
    same(one.ask("GET", key("none")), b"_\r\n")


@check(GROUP)
def _(trial: Trial) -> None:
    """HELLO 2 ends RESP3."""
    one = trial.connect()
    supported(one.ask("HELLO", 3))
    supported(one.ask("HELLO", 2))
    same(one.ask("GET", trial.key()), NIL)


@check(GROUP)
def _(trial: Trial) -> None:
    """HELLO 4 is refused by NOPROTO, and the connection goes on."""
    one = trial.connect()
    is_error(one.ask("HELLO", 4), "NOPROTO")
    same(one.ask("PING"), PONG)
