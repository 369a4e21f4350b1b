"""Uses of redis-py in services: locks, WATCH with retries, publish and subscribe in asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.applications.application import Fence, shipped
from tests.clients.test_redis_py import play
from tests.policy.engine.test_any_key import EVERYTHING

POLICY = """
policy: services
owner: {team: tests, contact: "#tests"}
claims: ["app:"]
services: [app]
placeholders: {name: "[a-z0-9-]{1,64}"}
keys:
  stock: {key: "app:stock:<name>", type: string, writers: [app]}
channels:
  news: {channel: "app:news:<name>", publishers: [app], subscribers: [app]}
"""


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_widest_policy_refuses_nothing(fence: Callable[[str | Path], Fence], protocol: int) -> None:
    one = fence(EVERYTHING)
    with one.redis.client(protocol=protocol) as direct:
        expected = play(direct)
    one.redis.clear()
    with redis.Redis.from_url(one.url, protocol=protocol) as client:
        assert play(client) == expected
        client.rpush("l", "a", "b")
        client.mset({"w_a": 2, "w_b": 1, "o_a": "A", "o_b": "B"})
        assert client.sort("l", by="w_*", get="o_*") == [b"B", b"A"]
        assert client.eval("return redis.call('GET', 'o_a')", 0) == b"A"
        with client.pubsub() as subscriber:
            subscriber.psubscribe("*")
            assert subscriber.get_message(timeout=30)
            assert client.publish("any", "x") == 1
            assert client.pubsub_channels() == []
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.execute_command("FROBNICATE", "a")
        assert client.dbsize()
        assert client.flushall()
    one.found_nothing()


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_lock_admits_one_client_at_a_time(fence: Callable[[str | Path], Fence], protocol: int) -> None:
    one = fence(shipped("redis-py-lock"))
    inside = 0
    most = 0
    taken: list[int] = []

    def work(number: int) -> None:
        nonlocal inside, most
        with redis.Redis.from_url(one.url, protocol=protocol) as client:
            for _ in range(5):
                with client.lock("lock:a", timeout=20, sleep=0.002) as lock:
                    inside += 1
                    most = max(most, inside)
                    assert lock.owned()
                    lock.extend(5)
                    lock.reacquire()
                    taken.append(number)
                    inside -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(taken) == 20
    with redis.Redis.from_url(one.url, protocol=protocol) as client:
        held = client.lock("lock:b", timeout=20)
        assert held.acquire()
        assert not client.lock("lock:b", timeout=20).acquire(blocking=False)
        client.delete("lock:b")
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            held.release()
    one.found_nothing()
    one.refuses("SET", "lock:c", "1")  # without a permitted release, the lock would stay
    one.refuses("SET", "elsewhere", "1", "EX", "1")


def test_watch_with_retries_counts_every_client_once(fence: Callable[[str | Path], Fence]) -> None:
    """Each client reads the counter and writes it plus one. Without WATCH, some increments would be lost."""
    one = fence(POLICY)

    def one_more(client: redis.Redis) -> None:
        def step(pipe: Any) -> None:
            found = int(pipe.get("app:stock:n") or 0)
            pipe.multi()
            pipe.set("app:stock:n", found + 1)

        client.transaction(step, "app:stock:n")

    def work() -> None:
        with redis.Redis.from_url(one.url) as client:
            for _ in range(25):
                one_more(client)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with one.redis.client() as direct:
        assert direct.get("app:stock:n") == b"100"
    one.found_nothing()


@pytest.mark.parametrize("protocol", [2, 3])
def test_publish_and_subscribe_in_asyncio(fence: Callable[[str | Path], Fence], protocol: int) -> None:
    one = fence(POLICY)
    heard: list[tuple[str, bytes]] = []

    async def main() -> None:
        client: Any = redis.asyncio.Redis.from_url(one.url, protocol=protocol)
        ready = asyncio.Event()

        async def listen() -> None:
            async with client.pubsub() as subscriber:
                await subscriber.subscribe("app:news:a")
                await subscriber.psubscribe("app:news:b*")
                async for message in subscriber.listen():
                    if message["type"] == "psubscribe":
                        ready.set()
                    elif message["type"] in ("message", "pmessage"):
                        heard.append((message["type"], message["data"]))
                        if message["data"] == b"end":
                            return

        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                group.create_task(listen())
                await ready.wait()
                for number in range(50):
                    await client.publish("app:news:a", number)
                    await client.publish("app:news:b1", number)
                await client.publish("app:news:a", "end")
        finally:
            await client.aclose()

    asyncio.run(main())
    expected = [(kind, b"%d" % n) for n in range(50) for kind in ("message", "pmessage")]
    assert heard == [*expected, ("message", b"end")]
    one.found_nothing()


def test_a_refusal_is_redis_py_s_no_permission_error(fence: Callable[[str | Path], Fence]) -> None:
    one = fence(POLICY)
    with redis.Redis.from_url(one.url) as client:
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"\[key.unregistered\]"):
            client.set("elsewhere", "1")
        with client.pipeline() as pipe, pytest.raises(redis.exceptions.RedisError):
            pipe.set("app:stock:n", 1).set("elsewhere", 1).execute()
        assert client.get("app:stock:n") is None
