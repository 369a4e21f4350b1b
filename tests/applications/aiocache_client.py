"""Uses aiocache, and prints the results. Arguments: Redis' host and port, whether to clear."""

from __future__ import annotations

import asyncio
import json
import sys

from aiocache import RedisCache, cached
from aiocache.lock import OptimisticLock, RedLock


async def main(host: str, port: str, clear: str) -> None:
    place = {"endpoint": host, "port": int(port), "namespace": "aiocache"}
    cache = RedisCache(**place)
    calls: list[int] = []

    @cached(ttl=60, cache=RedisCache, key_builder=lambda _function, n: f"double:{n}", **place)
    async def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    seen: dict[str, object] = {"doubled": [await double(2), await double(2)], "calls": len(calls)}
    await cache.set("a", 1, ttl=60)
    await cache.set("forever", 1)
    await cache.add("b", "new", ttl=0.5)
    await cache.multi_set([("c", 1), ("d", 2)], ttl=60)
    await cache.increment("n", 2)
    await cache.expire("n", 60)
    async with RedLock(cache, "mine", lease=10):
        seen["locked"] = await cache.exists("mine-lock")
    async with OptimisticLock(cache, "a") as lock:
        await lock.cas(5)
    seen["a"] = await cache.get("a")
    seen["many"] = await cache.multi_get(["c", "d", "e"])
    await cache.delete("c")
    if clear == "clear":
        await cache.clear(namespace="aiocache")
    seen["left"] = await cache.get("forever")
    await cache.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
