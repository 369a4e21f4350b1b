"""Words that only Redis would understand, sent through keyfence in enforce to each real server.

For Redis an option word ends at a NUL byte, whatever follows it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, ServerBinary, running_redis

POLICY = Path(__file__).parent / "words.yaml"
ACL = ["stock on >s ~* &* +@all", "audit on >a ~* &* +@all"]
FILLER = b"\0" + b"x" * (1024 * 1024)  # after a word: makes the argument too large to keep
SECRET = b"the-secret"


@pytest.fixture(scope="module")
def _server(redis_binary: ServerBinary) -> Iterator[RedisServer]:
    with running_redis(redis_binary, acl=ACL) as server:
        yield server


@pytest.fixture(scope="module")
def _keyfence(_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyfence]:
    config = tmp_path_factory.mktemp("words") / "keyfence.yaml"
    config.write_text(
        f"policy: '{POLICY}'\nupstream: {{url: '{_server.url}'}}\nmodes: [{{mode: enforce}}]\n"
        "listeners:\n  - {listen: '127.0.0.1:0', service: stock}\n"
    )
    with Keyfence("--config", config) as keyfence:
        yield keyfence


class Client:
    """A connection to keyfence, or to Redis itself: requests out, replies in."""

    def __init__(self, server: Keyfence | RedisServer) -> None:
        if isinstance(server, Keyfence):
            self._socket = server.connect()
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(PATIENCE_SECONDS)
            self._socket.connect(str(server.socket_path))
        self._unread = b""

    def say(self, *words: bytes) -> None:
        self._socket.sendall(encode.command(*words))

    def reply(self) -> bytes:
        framer, at = ReplyFramer(), 0
        while True:
            at = framer.advance(self._unread, at, 1, stop_after_push=True)
            if at and framer.at_boundary:
                reply, self._unread = self._unread[:at], self._unread[at:]
                return reply
            more = self._socket.recv(65536)
            assert more, "keyfence has closed the connection"
            self._unread += more

    def __call__(self, *words: bytes) -> bytes:
        self.say(*words)
        return self.reply()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def redis(_server: RedisServer) -> RedisServer:
    """Redis with a few keys of stock and of audit in its first two databases."""
    _server.clear()
    with _server.client() as direct:
        direct.rpush("own:list", "1")
        direct.set("other:1", SECRET)
        direct.set("other:0", SECRET)
        direct.set("own:a", "1")
        direct.geoadd("own:geo", (0, 0, "here"))
        direct.xadd("own:stream", {"f": "v"})
        direct.xadd("other:stream", {"f": SECRET})
    return _server


@pytest.fixture
def client(_keyfence: Keyfence) -> Iterator[Client]:
    """A client of stock."""
    one = Client(_keyfence)
    assert one(b"PING") == b"+PONG\r\n"
    yield one
    one.close()


def keys(redis: RedisServer, database: int = 0) -> set[bytes]:
    with redis.client(db=database) as direct:
        return set(direct.keys())


# Commands with the rule that refuses each. The marked word gets the large filler.
FOREIGN = {
    "SORT GET": (b"SORT own:list GET| other:*", b"command.unknown"),
    "SORT BY": (b"SORT own:list BY| other:*", b"command.unknown"),
    "SORT STORE": (b"SORT own:list STORE| other:new", b"scope.write"),
    "XREAD STREAMS": (b"XREAD STREAMS| other:stream 0", b"scope.read"),
    "GEORADIUS STORE": (b"GEORADIUS own:geo 0 0 1 m STORE| other:new", b"scope.write"),
    "GEORADIUS STOREDIST": (b"GEORADIUS own:geo 0 0 1 m STOREDIST| other:new", b"scope.write"),
    "GEORADIUSBYMEMBER STORE": (b"GEORADIUSBYMEMBER own:geo here 1 m STORE| other:new", b"scope.write"),
    "COPY DB": (b"COPY own:a own:b DB| 1", b"database.forbidden"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("filler", [b"", b"\0", b"\0x", FILLER], ids=["plain", "NUL", "suffix", "large"])
def test_an_option_before_a_foreign_key_is_seen_despite_a_filler(
    client: Client, redis: RedisServer, name: str, filler: bytes
) -> None:
    line, rule = FOREIGN[name]
    before = keys(redis), keys(redis, 1)
    reply = client(*(word.replace(b"|", filler) for word in line.split()))
    assert reply.startswith(b"-NOPERM [" + rule + b"]"), reply[:200]
    assert SECRET not in reply
    assert (keys(redis), keys(redis, 1)) == before
    assert client(b"GET", b"own:a") == b"$1\r\n1\r\n"


def test_a_pattern_too_long_to_keep_counts_as_any_key(client: Client) -> None:
    pattern = b"x" * 2**20 + b"*"
    assert client(b"SORT", b"own:list", b"GET", pattern).startswith(b"-NOPERM [command.unknown]")


def test_a_subcommand_before_a_nul_is_that_subcommand_or_unknown(client: Client, redis: RedisServer) -> None:
    before = keys(redis)
    for end in (b"\0", b"\0x", FILLER):
        reply = client(b"XGROUP", b"CREATE" + end, b"other:new", b"g", b"$", b"MKSTREAM")
        assert reply.startswith(b"-NOPERM [scope.write]"), reply[:200]
        assert client(b"CONFIG", b"SET" + end, b"maxclients", b"10").startswith(
            b"-NOPERM [command.forbidden]"
        )
    assert keys(redis) == before


def test_a_command_with_a_nul_in_its_name_is_unknown(client: Client) -> None:
    for name in (b"GET\0", b"MULTI\0", b"AUTH\0x", b"QUIT\0", b"GET" + FILLER, b"MULTI" + FILLER):
        assert client(name, b"own:a").startswith(b"-NOPERM [command.unknown]")
    assert client(b"PING") == b"+PONG\r\n"


@pytest.mark.parametrize("end", [b"", b"\0", b"\0x", b"\0" * 40], ids=["plain", "NUL", "suffix", "long"])
@pytest.mark.parametrize(
    "options", [b"AUTH| audit a", b"SETNAME| me auth| audit a", b"Auth| stock s AUTH| audit a"]
)
def test_the_user_of_a_hello_is_seen(client: Client, options: bytes, end: bytes) -> None:
    hello = [word.replace(b"|", end) for word in options.split()]
    assert client(b"HELLO", b"2", *hello).startswith(b"*")
    assert client(b"ACL", b"WHOAMI").startswith((b"$5\r\naudit", b"-NOPERM [command.forbidden]"))
    assert client(b"GET", b"own:a").startswith(b"-NOPERM [scope.read]")
    assert client(b"GET", b"other:1") == b"$10\r\n" + SECRET + b"\r\n"


def test_hello_with_an_option_too_long_to_keep_is_refused(client: Client) -> None:
    reply = client(b"HELLO", b"2", b"AUTH" + FILLER, b"audit", b"a")
    assert reply.startswith(b"-NOPERM [session.opaque]"), reply[:200]
    assert client(b"GET", b"own:a") == b"$1\r\n1\r\n"


@pytest.mark.parametrize("mode", [b"OFF", b"off\0", b"OFF\0x"])
@pytest.mark.parametrize("subcommand", [b"REPLY", b"reply\0", b"REPLY\0x"])
def test_a_client_without_replies_gets_the_same_as_from_redis(
    client: Client, redis: RedisServer, subcommand: bytes, mode: bytes
) -> None:
    words = [
        [b"CLIENT", subcommand, mode],
        [b"ECHO", b"unheard"],
        [b"CLIENT", b"REPLY", b"ON"],
        [b"ECHO", b"end"],
    ]
    direct = Client(redis)
    for one in (client, direct):
        for request in words:
            one.say(*request)
    heard = [direct.reply()]
    while b"end" not in heard[-1]:
        heard.append(direct.reply())
    direct.close()
    assert [client.reply() for _ in heard] == heard
    assert client(b"GET", b"other:1").startswith(b"-NOPERM [scope.read]")


def test_a_hello_with_a_nul_in_an_option_switches_to_resp3(client: Client) -> None:
    assert client(b"HELLO", b"3", b"SETNAME\0x", b"me").startswith(b"%")
    assert client(b"CLIENT", b"GETNAME") == b"$2\r\nme\r\n"
    assert client(b"GET", b"own:none") == b"_\r\n"


TOO_LONG = {
    "a key": (b"GET |", b"key.unregistered"),
    "a key among others": (b"MSET own:a 1 own:| 2", b"key.unregistered"),
    "a pattern": (b"SCAN 0 MATCH own:|", b"scan.scope"),
    "a channel": (b"PUBLISH own:| hello", b"channel.write"),
    "a pattern of channels": (b"PSUBSCRIBE own:|", b"channel.read"),
    "a script": (b"EVAL | 1 own:a", b"script.unregistered"),
    "a script's name": (b"EVALSHA | 1 own:a", b"script.unregistered"),
    "the only word": (b"|", b"command.unknown"),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_request_too_long_to_evaluate_is_refused_by_its_rule(
    client: Client, redis: RedisServer, name: str
) -> None:
    line, rule = TOO_LONG[name]
    before = keys(redis)
    reply = client(*(word.replace(b"|", b"x" * 2**20 + b"y") for word in line.split()))
    assert reply.startswith(b"-NOPERM [" + rule + b"]"), reply[:200]
    assert keys(redis) == before
    assert client(b"GET", b"own:a") == b"$1\r\n1\r\n"
