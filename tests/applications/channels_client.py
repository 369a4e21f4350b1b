"""Sends through both channel layers of channels_redis, and prints the received messages.

Its argument is Redis' URL.
"""

from __future__ import annotations

import asyncio
import json
import sys

from channels_redis.core import RedisChannelLayer
from channels_redis.pubsub import RedisPubSubChannelLayer


async def used(layer: RedisChannelLayer | RedisPubSubChannelLayer) -> dict[str, object]:
    mine, other = await layer.new_channel(), await layer.new_channel()
    await layer.group_add("room", mine)
    await layer.group_add("room", other)
    await layer.group_send("room", {"type": "chat", "text": "to all"})
    await layer.send(mine, {"type": "chat", "text": "to one"})
    async with asyncio.timeout(20):
        texts = [(await layer.receive(mine))["text"] for _ in range(2)]
        texts.append((await layer.receive(other))["text"])
    await layer.group_discard("room", other)
    await layer.group_send("room", {"type": "chat", "text": "to the rest"})
    async with asyncio.timeout(20):
        texts.append((await layer.receive(mine))["text"])
    await (layer.close_pools() if isinstance(layer, RedisChannelLayer) else layer.flush())
    return {"texts": sorted(texts[:3]) + texts[3:]}


async def main(url: str) -> None:
    layers = (RedisChannelLayer(hosts=[url]), RedisPubSubChannelLayer(hosts=[url]))
    print(json.dumps([await used(layer) for layer in layers]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
