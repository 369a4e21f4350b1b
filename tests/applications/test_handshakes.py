"""The handshakes of clients in other languages, byte for byte: they cannot distinguish keyfence from Redis.

The words, their case and their order are those of the clients' sources.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable

import pytest

from keyfence.resp import encode
from tests.applications.application import Fence
from tests.servers import PATIENCE_SECONDS, RedisServer
from tests.session.sessions import replies

LUA = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end'
LUA_SHA1 = "bb8cb1b5d21bb2a4ab2d5d5f0ee7ed4e1d5b6b61"  # of nothing that is loaded: NOSCRIPT
POLICY = f"""
policy: handshakes
owner: {{team: tests, contact: "#tests"}}
claims: ["app:"]
services: [app]
databases: [0, 2]
placeholders: {{name: "[a-z0-9-]{{1,64}}"}}
keys:
  any: {{key: "app:<name>", type: string, writers: [app]}}
scripts:
  unlock: {{sha1: [{LUA_SHA1}, {hashlib.sha1(LUA.encode()).hexdigest()}], keys: 1}}
"""
Packets = list[list[tuple[str | bytes | int, ...]]]  # packets sent before the next reply is read

GO_REDIS: Packets = [
    [("hello", "3")],
    [("client", "setinfo", "LIB-NAME", "go-redis(,go1.22.1)"), ("client", "setinfo", "LIB-VER", "9.7.0")],
    [("set", "app:a", "v", "ex", 60, "nx")],
    [("get", "app:a")],
    [("set", "app:b", "v", "px", 1500)],
    [("evalsha", LUA_SHA1, 1, "app:a", "v")],
    [("eval", LUA, 1, "app:a", "v")],
    [("multi",), ("incr", "app:n"), ("expire", "app:n", 60), ("exec",)],
    [("ping",)],
]
GO_REDIS_WITH_LOGIN: Packets = [
    [("hello", "3", "auth", "default", "secret")],
    [("select", 2)],
    [("client", "setinfo", "LIB-NAME", "go-redis(,go1.22.1)"), ("client", "setinfo", "LIB-VER", "9.7.0")],
    [("set", "app:a", "v")],
    [("get", "app:a")],
]
# If HELLO is unknown or the password is wrong, the client continues with AUTH or gives up.
GO_REDIS_WITH_A_WRONG_PASSWORD: Packets = [
    [("hello", "3", "auth", "default", "wrong")],
    [("auth", "wrong")],
    [("get", "app:a")],
]
LUA_RESTY: Packets = [
    [("auth", "secret")],
    [("select", 0)],
    [("get", "app:a")],
    [("auth", "secret")],
    [("select", 0)],
    [("set", "app:a", "1")],
    [("auth", "secret")],
    [("select", 0)],
    [("multi",)],
    [("incr", "app:a")],
    [("exec",)],
]
REDIGO: Packets = [
    [("AUTH", "secret")],
    [("SELECT", 2)],
    [("PING",)],
    [("SET", "app:a", "1", "EX", 60)],
    [("EVAL", LUA, 1, "app:a", "1")],
    [("MULTI",), ("GET", "app:a"), ("EXEC",)],
]
LETTUCE: Packets = [
    [("HELLO", "3")],
    [("SELECT", "2")],
    [("CLIENT", "SETINFO", "lib-name", "Lettuce"), ("CLIENT", "SETINFO", "lib-ver", "6.5.1.RELEASE/a1b2c3d")],
    [("SET", "app:a", "1")],
    [("GET", "app:a")],
    [("EVALSHA", LUA_SHA1, "1", "app:a", "1")],
    [("EVAL", LUA, "1", "app:a", "1")],
]
LETTUCE_WITH_LOGIN: Packets = [
    [("HELLO", "3", "AUTH", "default", "secret", "SETNAME", "cosky")],
    [("CLIENT", "GETNAME")],
    [("CLIENT", "SETINFO", "lib-name", "Lettuce"), ("CLIENT", "SETINFO", "lib-ver", "6.5.1.RELEASE/a1b2c3d")],
    [("GET", "app:a")],
]


def play(address: tuple[str, int], packets: Packets) -> list[bytes]:
    """Sends each packet in one piece and reads as many replies as it has requests."""
    seen: list[bytes] = []
    with socket.create_connection(address, PATIENCE_SECONDS) as connection:
        for packet in packets:
            connection.sendall(b"".join(encode.command(*words) for words in packet))
            data = b""
            while len(whole(data)) < len(packet):
                more = connection.recv(65536)
                assert more, f"the connection ended instead of an answer to {packet}"
                data += more
            seen += replies(data)
    return [without_id(reply) for reply in seen]


def whole(data: bytes) -> list[bytes]:
    try:
        return replies(data)
    except AssertionError:
        return []


def without_id(reply: bytes) -> bytes:
    """Masks the connection's id in the reply to HELLO, because it differs between connections."""
    return re.sub(rb"(\$2\r\nid\r\n:)\d+", rb"\1#", reply)


@pytest.mark.parametrize(
    ("packets", "password"),
    [
        (GO_REDIS, ""),
        (GO_REDIS_WITH_LOGIN, "secret"),
        (GO_REDIS_WITH_A_WRONG_PASSWORD, "secret"),
        (LUA_RESTY, "secret"),
        (REDIGO, "secret"),
        (LETTUCE, ""),
        (LETTUCE_WITH_LOGIN, "secret"),
    ],
    ids=[
        "go-redis",
        "go-redis-login",
        "go-redis-wrong",
        "lua-resty-redis",
        "redigo",
        "lettuce",
        "lettuce-login",
    ],
)
def test_a_handshake_and_its_commands_get_the_same_replies(
    fence: Callable[[str], Fence], redis: RedisServer, packets: Packets, password: str
) -> None:
    assert redis.port is not None
    one = fence(POLICY)
    with redis.client() as direct:
        direct.config_set("requirepass", password)
    try:
        expected = play(("127.0.0.1", redis.port), packets)
        with redis.client(password=password or None) as direct:
            direct.flushall()
        assert play(one.address, packets) == expected
    finally:
        with redis.client(password=password or None) as direct:
            direct.config_set("requirepass", "")
    one.found_nothing()


def test_a_probe_for_maintenance_notifications_is_answered_by_keyfence(
    fence: Callable[[str], Fence],
) -> None:
    """go-redis asks for them, and names the kind of address that it wants. keyfence's notices name none."""
    one = fence(POLICY)
    probe = ("client", "maint_notifications", "on", "moving-endpoint-type", "internal-ip")
    packets: Packets = [[("hello", "3")], [probe], [("ping",)]]
    hello, yes, pong = play(one.address, packets)
    assert hello.startswith(b"%")
    assert yes == b"+OK\r\n"
    assert pong == b"+PONG\r\n"
