"""The catalog: products with their prices and stock, and the pages that the storefront shows."""

from __future__ import annotations

import json

import redis
from service import CATEGORIES, DAY, PRODUCTS, Run, expect, main


def serve(shop: redis.Redis, run: Run) -> None:
    shop.hset("shop:flags", mapping={"gift_wrap": "on", "new_checkout": "off"})
    for at, sku in enumerate(PRODUCTS):
        category = CATEGORIES[at // 3]
        price = 500 + 100 * at
        product = {"name": f"{category} {sku[-4:]}", "category": category, "price_cents": price}
        shop.hset(f"shop:product:{sku}", mapping=product)
        shop.set(f"shop:stock:{sku}", 100_000)
        shop.sadd(f"shop:category:{category}", sku)
        shop.zadd(f"shop:prices:{sku}", {price: run.seed})
        page = json.dumps({"sku": sku, "price": price / 100})
        expect("SET of a page", shop.set(f"shop:page:{sku}", page, ex=600), True)
    expect("SMEMBERS", shop.smembers("shop:category:mugs"), {"MUG-0017", "MUG-0204", "MUG-3181"})
    expect("TYPE", shop.type("shop:prices:MUG-0017"), "zset")
    before = shop.incr("shop:catalog:version")
    expect("INCR", shop.incr("shop:catalog:version"), before + 1)
    # The pages that customers look at most stay for a day.
    for sku, _ in shop.zrevrange(f"shop:views:{run.day(0)}", 0, 2, withscores=True):
        expect("EXPIRE", shop.expire(f"shop:page:{sku}", DAY), True)


if __name__ == "__main__":
    main("catalog", serve)
