"""redis-py with its default settings gets the same replies through keyfence as from Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.servers import Keyfence, RedisServer

LUA = "return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}"


def play(client: Any) -> list[Any]:
    """Sends commands of all kinds. Returns the replies."""
    seen: list[Any] = [client.set("a", "1", ex=100), client.get("a"), client.get("missing")]
    seen += [client.hset("h", mapping={"f": "1", "g": b"\r\n\x00"}), client.hgetall("h")]
    seen += [client.zadd("z", {"m": 1.5, "n": 2}), client.zrange("z", 0, -1, withscores=True)]
    seen += [client.xadd("x", {"f": "v"}, id="1-1"), client.xrange("x"), client.smembers("none")]
    seen += [client.eval(LUA, 1, "counter", "argument"), client.config_get("maxmemory")]
    seen += [sorted(client.scan_iter("*")), client.type("z"), client.ttl("a")]
    for command in (["LPUSH", "a", "x"], ["NOSUCH"], ["GET"]):
        with pytest.raises(redis.ResponseError) as error:
            client.execute_command(*command)
        seen.append(str(error.value))
    with client.pipeline(transaction=False) as pipe:
        seen.append(pipe.incr("a").lpush("a", "x").get("a").execute(raise_on_error=False)[::2])
    with client.pipeline() as pipe:
        seen.append(pipe.incr("a").hgetall("h").get("a").execute())
    with client.pipeline() as pipe:
        pipe.watch("a")
        client.incr("a")
        pipe.multi()
        pipe.set("a", "mine")
        with pytest.raises(redis.WatchError):
            pipe.execute()
    with client.lock("lock", timeout=10):
        seen.append(client.exists("lock"))
    seen += [client.blpop(["empty"], timeout=0.01), client.rpush("list", "1"), client.blpop(["list"])]
    return seen


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_replies_equal_those_without_keyfence(
    observing: Keyfence, redis_server: RedisServer, protocol: int
) -> None:
    with redis_server.client(protocol=protocol) as direct:
        expected = play(direct)
    redis_server.clear()
    with observing.client("CubeMaster", protocol=protocol) as client:
        assert play(client) == expected


@pytest.mark.parametrize("protocol", [2, 3])
def test_asyncio_with_many_tasks_on_one_pool(observing: Keyfence, protocol: int) -> None:
    host, port = observing.address("CubeMaster")

    async def task(client: Any, number: int) -> None:
        key = f"key:{number}"
        for round_ in range(10):
            assert await client.incr(key) == round_ + 1
            async with client.pipeline(transaction=bool(round_ % 2)) as pipe:
                pipe.get(key).echo(key).exists("missing")
                assert await pipe.execute() == [str(round_ + 1).encode(), key.encode(), 0]

    async def main() -> None:
        client: Any = redis.asyncio.Redis(host=host, port=port, protocol=protocol, max_connections=50)
        try:
            await asyncio.gather(*(task(client, number) for number in range(40)))
        finally:
            await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("protocol", [2, 3])
def test_asyncio_pub_sub(observing: Keyfence, protocol: int) -> None:
    host, port = observing.address("CubeMaster")

    async def main() -> None:
        client: Any = redis.asyncio.Redis(host=host, port=port, protocol=protocol)
        try:
            async with client.pubsub() as subscriber:
                await subscriber.subscribe("news")
                answer = await subscriber.get_message(timeout=30)
                assert answer is not None
                assert answer["type"] == "subscribe"
                await client.publish("news", "hello")
                message = await subscriber.get_message(timeout=30)
                assert message is not None
                assert message["data"] == b"hello"
        finally:
            await client.aclose()

    asyncio.run(main())
