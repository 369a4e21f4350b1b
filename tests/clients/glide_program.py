"""Valkey GLIDE with its default settings, in a process of its own: its core is a library with threads.

Usage: python -m tests.clients.glide_program SCENARIO HOST:PORT PROTOCOL. One JSON object on stdout: what each
step has returned, or the error that it has ended with.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import glide

LARGE = 2_000_000  # bytes; keyfence sends a request of this size on in pieces
SCRIPT = "return {KEYS[1], ARGV[1], redis.call('GET', KEYS[1])}"
LIBRARY = "#!lua name=glide\nredis.register_function('glide', function(keys) return keys end)"

Steps = dict[str, Callable[[], Awaitable[Any]]]


def plain(value: Any) -> Any:
    """What JSON can hold of a reply."""
    match value:
        case bytes():
            return value.decode("latin-1")
        case dict():
            return {plain(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case set():
            return sorted(map(plain, value))
        case Exception():
            return f"error: {value}"
    return value


async def play(steps: Steps) -> None:
    seen = {}
    for name, step in steps.items():
        try:
            seen[name] = plain(await step())
        except glide.GlideError as exc:
            seen[name] = plain(exc)
    print(json.dumps(seen))


def single(client: Any, other: Any) -> Steps:
    return keyed(client) | {
        "watch": lambda: watched(client, other),
        "function": lambda: client.function_load(LIBRARY, replace=True),
        "call": lambda: client.fcall("glide", ["app:n"]),
        "scan": lambda: scanned(client),
        "blocked": lambda: client.blpop(["app:empty"], 0.1),
        "beside a blocked one": lambda: asyncio.gather(client.blpop(["app:empty"], 0.3), other.get("app:n")),
        "stream": lambda: client.xadd("app:x", [("f", "v")], glide.StreamAddOptions(id="1-1")),
        "group": lambda: client.xgroup_create("app:x", "g", "0"),
        "read": lambda: client.xreadgroup({"app:x": ">"}, "g", "c"),
        "database": lambda: client.custom_command(["SELECT", "1"]),
        "there": lambda: client.get("app:n"),
        "name": client.client_getname,
        "messages": lambda: heard(client, other),
        "tasks": lambda: asyncio.gather(*(other.echo(f"{number}") for number in range(200))),
    }


def keyed(client: Any) -> Steps:
    """Steps that one node of a cluster can do, too."""

    def batch(atomic: bool) -> Any:
        cluster = isinstance(client, glide.GlideClusterClient)
        one = glide.ClusterBatch(atomic) if cluster else glide.Batch(atomic)
        return one.incr("app:n").lpush("app:n", ["x"]).get("app:n")

    return {
        "set": lambda: client.set("app:a", bytes(range(256))),
        "get": lambda: client.get("app:a"),
        "large": lambda: client.set("app:large", "x" * LARGE),
        "length": lambda: client.strlen("app:large"),
        "hash": lambda: client.hset("app:h", {"f": "1", "g": "2"}),
        "all": lambda: client.hgetall("app:h"),
        "wrong type": lambda: client.lpush("app:h", ["x"]),
        "pipeline": lambda: client.exec(batch(False), False),
        "multi": lambda: client.exec(batch(True), False),
        "script": lambda: client.invoke_script(glide.Script(SCRIPT), keys=["app:n"], args=["argument"]),
    }


async def watched(client: Any, other: Any) -> Any:
    await client.watch(["app:n"])
    await other.set("app:n", "9")
    return await client.exec(glide.Batch(True).set("app:n", "mine"), True)


async def heard(client: Any, other: Any) -> str:
    """With RESP3, a subscription shares the connection with commands. With RESP2 it is an error."""
    await client.subscribe({"app:news"}, 20_000)
    await other.publish("hello", "app:news")
    return str(await client.get_pubsub_message())


async def scanned(client: Any) -> list[bytes]:
    found: list[bytes] = []
    cursor: Any = b"0"
    while True:
        cursor, keys = await client.scan(cursor, match="app:*")
        found += keys
        if cursor == b"0":
            return sorted(found)


def refused(client: Any) -> Steps:
    return {
        "number": client.client_id,
        "read": lambda: client.get("app:a"),
        "write": lambda: client.set("app:a", "x"),
        "pipeline": lambda: client.exec(
            glide.Batch(False).get("app:a").set("app:a", "x").get("app:a"), False
        ),
        "multi": lambda: client.exec(glide.Batch(True).get("app:a").set("app:a", "x"), False),
        "read again": lambda: client.get("app:a"),
        "number again": client.client_id,
    }


def cluster(client: Any) -> Steps:
    numbered = {f"app:{number}": f"{number}" for number in range(30)}
    return {
        "moves": lambda: client.get("app:{moves}"),
        **keyed(client),
        "mset": lambda: client.mset(numbered),
        "mget": lambda: client.mget([*numbered]),
        "scan": lambda: scanned_all(client),
        "every node": lambda: client.custom_command(["PING"], glide.AllNodes()),
        "outside": lambda: client.mset({f"outside:{number}": "x" for number in range(10)}),
        "after": lambda: client.get("app:1"),
    }


async def scanned_all(client: Any) -> list[bytes]:
    found: set[bytes] = set()
    cursor = glide.ClusterScanCursor()
    while not cursor.is_finished():
        cursor, keys = await client.scan(cursor, match="app:[0-9]*")
        found.update(keys)
    return sorted(found)


async def main(scenario: str, address: str, protocol: str) -> None:
    host, port = address.split(":")
    of_cluster = scenario == "cluster"
    kind = glide.GlideClusterClient if of_cluster else glide.GlideClient
    settings = glide.GlideClusterClientConfiguration if of_cluster else glide.GlideClientConfiguration
    # GLIDE waits for a quarter of a second, which a busy machine may take.
    made = settings(
        [glide.NodeAddress(host, int(port))],
        protocol=glide.ProtocolVersion[f"RESP{protocol}"],
        client_name="tests",
        request_timeout=20_000,
    )
    client, other = await kind.create(made), await kind.create(made)
    steps = {"single": lambda: single(client, other), "refused": lambda: refused(client)}
    await play(cluster(client) if of_cluster else steps[scenario]())
    await client.close()
    await other.close()


if __name__ == "__main__":
    glide.Logger.set_logger_config(glide.LogLevel.OFF)
    asyncio.run(main(*sys.argv[1:]))
