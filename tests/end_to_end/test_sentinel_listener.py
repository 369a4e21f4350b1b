"""Clients that ask Sentinels find keyfence by a Sentinel listener, and stay with it over a failover of Redis.

keyfence follows real Sentinels, whose answers are compared with the listener's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import hiredis
import pytest
import redis
import redis.asyncio.sentinel
import redis.sentinel

from keyfence.resp import encode
from tests.sentinel import NAME, POLICY, Watched, following, running_sentinels
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, running_redis

NODE = PROJECT / "tests" / "node"
HAS_NODE = shutil.which("node") and (NODE / "node_modules").is_dir()
LISTENERS = '[{listen: "127.0.0.1:0", service: app}, {listen: "127.0.0.1:0", service: app, sentinel: true}]'
Address = tuple[str, int]


class Place(NamedTuple):
    """Real Sentinels, and a keyfence that follows them."""

    watched: Watched
    data: Address  # of keyfence
    sentinel: Address  # of keyfence
    admin: str

    def real(self) -> Address:
        return "127.0.0.1", self.watched.sentinels[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("sentinels")
    more = "workers: 2\ndrain: 100ms"
    with (
        running_sentinels(folder, 500) as watched,
        # Only the test with the Node clients has a failover.
        following(folder, watched, more, told="^$|unreachable|is 127", listeners=LISTENERS) as keyfence,
    ):
        found = keyfence.ready.listeners
        yield Place(watched, found["app"], found[f"Sentinel for {NAME}"], keyfence.ready.admin)


# -- the same answers as a real Sentinel's


def answers(address: Address, resp: int, *requests: Sequence[str]) -> list[bytes]:
    """The bytes of the reply to each request, on one connection."""
    found = []
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as sock:
        for request in (("HELLO", str(resp)), *requests):
            sock.sendall(encode.command(*request))
            data, reader = b"", hiredis.Reader()
            while reader.gets() is False:
                piece = sock.recv(65536)
                assert piece
                data += piece
                reader.feed(piece)
            found.append(data)
    return found[1:]


def rows(data: bytes) -> list[dict[str, str]]:
    """The rows of an answer, flat (RESP2) or as maps (RESP3)."""
    reader = hiredis.Reader(encoding="utf-8")
    reader.feed(data)
    return [
        one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True)) for one in reader.gets()
    ]


ALIKE = [
    *(
        ("SENTINEL", subcommand, "no")
        for subcommand in ("MASTER", "REPLICAS", "SLAVES", "SENTINELS", "CKQUORUM")
    ),
    *(("SENTINEL", subcommand) for subcommand in ("MASTER", "REPLICAS", "GET-MASTER-ADDR-BY-NAME", "foo")),
    ("SENTINEL", "MASTERS", "x"),
    ("SENTINEL", "get-master-addr-by-name", "no"),
    ("SENTINEL",),
    ("ROLE",),
    ("ROLE", "x"),
    ("PING",),
    ("ping", "x"),
    ("PING", "x", "y"),
    ("GET", "a", "b c"),
    ("SELECT", "0"),
    ("TIME",),
    ("INFO", "nothing"),
    ("AUTH", "default", "x"),
    ("AUTH",),
    ("HELLO", "4"),
    ("HELLO", "x"),
    ("HELLO", "3", "FOO"),
    ("CLIENT",),
    ("CLIENT", "GETNAME"),
    ("CLIENT", "SETNAME", "a b"),
    ("CLIENT", "SETNAME", "a"),
    ("CLIENT", "GETNAME"),
    ("CLIENT", "SETNAME"),
    ("CLIENT", "FOO"),
    ("CLIENT", "NO-EVICT", "on"),
    ("PUBLISH", "a", "b"),
    ("SUBSCRIBE",),
    ("SUBSCRIBE", "+switch-master"),
    ("PING",),
    ("PING", "x"),
    ("PSUBSCRIBE", "*"),
    ("SENTINEL", "MASTER", "no"),
    ("UNSUBSCRIBE", "a"),
    ("UNSUBSCRIBE",),
    ("UNSUBSCRIBE",),
    ("PUNSUBSCRIBE", "*"),
    ("PUNSUBSCRIBE",),
    ("PING",),
]


@pytest.mark.parametrize("resp", [2, 3])
def test_errors_and_confirmations_are_those_of_a_real_sentinel(place: Place, resp: int) -> None:
    mine, real = (
        [re.sub(rb", with args beginning with: \r", b"\r", one) for one in answers(address, resp, *ALIKE)]
        for address in (place.sentinel, place.real())  # Redis 8.6 says nothing of arguments if there are none
    )
    assert list(zip(ALIKE, mine, strict=True)) == list(zip(ALIKE, real, strict=True))


@pytest.mark.parametrize("resp", [2, 3])
def test_rows_have_the_fields_of_a_real_sentinels(place: Place, resp: int) -> None:
    asked = ("SENTINEL", "MASTERS"), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
    (mine, my_address), (real, real_address) = (
        answers(address, resp, *asked) for address in (place.sentinel, place.real())
    )
    assert mine[:6] == real[:6]
    (row,), (real_row,) = rows(mine), rows(real)
    assert list(row) == list(real_row)
    same = ("name", "flags", "role-reported")
    assert [row[name] for name in same] == [real_row[name] for name in same]
    assert (row["ip"], row["port"]) == (place.data[0], str(place.data[1]))
    address = encode.command(place.data[0], str(place.data[1]))  # an array of texts, as a request
    assert my_address == address
    assert real_address[:2] == my_address[:2]


def test_no_answer_names_the_real_addresses(place: Place) -> None:
    requests = [
        *(("SENTINEL", subcommand, NAME) for subcommand in ("MASTER", "REPLICAS", "SENTINELS", "CKQUORUM")),
        *(("INFO",), ("ROLE",), ("SENTINEL", "MASTERS"), ("CLIENT", "INFO"), ("COMMAND",)),
    ]
    watched = place.watched
    hidden = {watched.primary.port, watched.replica.port, *watched.sentinels}
    said = b"".join(answers(place.sentinel, 3, *requests))
    assert [port for port in hidden if str(port).encode() in said] == []


def test_operators_see_which_listener_answers_as_a_sentinel(place: Place) -> None:
    with urllib.request.urlopen(f"{place.admin}/listeners", timeout=PATIENCE_SECONDS) as response:
        first, second = json.load(response)
    assert first == {"address": "{}:{}".format(*place.data), "service": "app", "whose": "app"}
    assert second == {
        "address": "{}:{}".format(*place.sentinel),
        "service": "app",
        "whose": f"Sentinel for {NAME}",
        "sentinel": NAME,
    }


# -- real clients, over a failover


@contextlib.contextmanager
def node_client(library: str, place: Place) -> Iterator[subprocess.Popen[str]]:
    """A client that sets a key for each line; it prints the address of each primary first."""
    command = ["node", "sentinel.js", library, NAME, f"app:{library}", "{}:{}".format(*place.sentinel)]
    with subprocess.Popen(
        command, cwd=NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def writes(node: subprocess.Popen[str], value: str) -> str:
    assert node.stdin is not None
    assert node.stdout is not None
    node.stdin.write(f"{value}\n")
    return node.stdout.readline().strip()


def until_it_writes(client: redis.Redis, value: str) -> None:
    """Writes until it succeeds: what was under way during a failover is lost with its connection."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            assert client.set("app:sync", value) is True
            return
        except redis.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_asyncio_clients_find_keyfence_and_hear_nothing(place: Place) -> None:
    async def run() -> None:
        sentinel = redis.asyncio.sentinel.Sentinel([place.sentinel])
        (asked,) = sentinel.sentinels
        async with asked, sentinel.master_for(NAME) as client, asked.pubsub() as heard:
            assert await sentinel.discover_master(NAME) == place.data
            assert await client.set("app:asyncio", "1") is True
            assert await client.get("app:asyncio") == b"1"
            await heard.subscribe("+switch-master")
            await heard.psubscribe("*")
            await heard.ping()
            found = [await heard.get_message(timeout=PATIENCE_SECONDS) for _ in range(3)]
            assert [one["type"] for one in found if one] == ["subscribe", "psubscribe", "pong"]

    asyncio.run(run())


@pytest.mark.skipif(not HAS_NODE, reason="no node here, or `npm ci` was not run in tests/node")
def test_clients_stay_with_keyfence_over_a_failover(place: Place) -> None:
    sentinel = redis.sentinel.Sentinel([place.sentinel])
    shown = "{}:{}".format(*place.data)
    with (
        contextlib.closing(sentinel),
        node_client("ioredis", place) as ioredis,
        node_client("redis", place) as node_redis,
        contextlib.closing(sentinel.master_for(NAME)) as client,
        contextlib.closing(sentinel.slave_for(NAME)) as reader,
    ):
        assert sentinel.discover_master(NAME) == place.data
        assert sentinel.discover_slaves(NAME) == []
        for node in (ioredis, node_redis):
            assert node.stdout is not None
            assert node.stdout.readline().strip() == shown
            assert writes(node, "before") == "OK"
        until_it_writes(client, "before")
        assert client.role()[0] == b"master"  # some clients ask, and trust no other answer
        assert reader.get("app:sync") == b"before"  # there is no replica: it reads from the primary
        place.watched.primary.kill()
        until_it_writes(client, "after")
        assert client.get("app:sync") == b"after"
        assert [writes(node, "after") for node in (ioredis, node_redis)] == ["OK", "OK"]
        assert sentinel.discover_master(NAME) == place.data
        with place.watched.replica.client() as direct:
            assert direct.get("app:ioredis") == direct.get("app:redis") == direct.get("app:sync")


def test_an_outage_of_redis_does_not_close_those_that_ask(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    with running_redis(tcp=True) as server:
        (tmp_path / "keyfence.yaml").write_text(
            f"policy: policy.yaml\nupstream: {{url: '{server.url}', connect_timeout: 200ms}}\n"
            "listeners:\n"
            "  - {listen: '127.0.0.1:0', service: app}\n"
            "  - {listen: '127.0.0.1:0', service: app, sentinel: {name: main}}\n"
            "admin: none\nfindings: none\n"
        )
        with (
            Keyfence("--config", tmp_path / "keyfence.yaml", expect_stderr="unreachable") as keyfence,
            keyfence.connect("app") as idle,
            keyfence.connect("Sentinel for main") as asking,
        ):
            idle.sendall(encode.command("PING"))
            assert idle.recv(100) == b"+PONG\r\n"
            server.kill()
            assert idle.recv(100) == b""
            asking.sendall(encode.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"))
            assert asking.recv(100).startswith(b"*2\r\n$9\r\n127.0.0.1\r\n")
