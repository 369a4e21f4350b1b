"""Uses all features of cashews, and prints the results. Its argument is Redis' URL."""

from __future__ import annotations

import asyncio
import json
import sys

from cashews import Cache


async def main(url: str) -> None:
    cache = Cache()
    cache.setup(url, suppress=False)
    calls: list[int] = []

    @cache(ttl="1m", key="cache:double:{n}", tags=["numbers"])
    async def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    @cache.early(ttl="1m", early_ttl="30s", key="cache:early:{n}")
    async def early(n: int) -> int:
        return n

    @cache.soft(ttl="1m", soft_ttl="30s", key="cache:soft:{n}")
    async def soft(n: int) -> int:
        return n

    @cache.failover(ttl="1m", key="cache:fail:{n}")
    async def failover(n: int) -> int:
        return n

    @cache.hit(ttl="1m", cache_hits=10, key="cache:hit:{n}")
    async def hit(n: int) -> int:
        return n

    @cache.circuit_breaker(errors_rate=10, period="1m", ttl="5m", key="cache:breaker:{n}")
    async def breaker(n: int) -> int:
        return n

    @cache.locked(ttl="10s", key="cache:alone:{n}")
    async def alone(n: int) -> int:
        return n

    @cache.rate_limit(limit=5, period="1m", key="cache:limit:{n}")
    async def limited(n: int) -> int:
        return n

    @cache.slice_rate_limit(limit=5, period="1m", key="cache:slice:{n}")
    async def sliced(n: int) -> int:
        return n

    seen = {
        "doubled": [await double(2), await double(2)],
        "others": [await one(1) for one in (early, soft, failover, hit, breaker, alone, limited, sliced)],
    }
    await cache.delete_tags("numbers")
    await double(2)
    await cache.set("cache:a", {"n": 1}, expire="1m")
    await cache.set_many({"cache:b": 1, "cache:c": 2}, expire="1m")
    async with cache.lock("cache:mine", expire="10s"):
        seen["locked"] = await cache.is_locked("cache:mine")
    seen["a"] = await cache.get("cache:a")
    seen["many"] = list(await cache.get_many("cache:b", "cache:c", "cache:d"))
    seen["counted"] = await cache.incr("cache:n", 3, expire=60)
    seen["calls"] = len(calls)
    seen["found"] = len([key async for key in cache.scan("cache:*")]) > 3
    await cache.delete_match("cache:*")
    seen["left"] = await cache.get_keys_count() > 0  # those of decorators with a prefix of their own
    await cache.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
