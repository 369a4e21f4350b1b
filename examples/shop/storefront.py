"""The storefront: visitors look around, fill a cart, order, and wait until the order is paid."""

from __future__ import annotations

import hashlib
import json

import redis
from service import DAY, PRODUCTS, WAIT, Run, Wrong, expect, main


def serve(shop: redis.Redis, run: Run) -> None:
    for number in range(run.orders):
        draw = run.draw(number)
        customer, sku = 1000 + draw.randrange(9000), draw.choice(PRODUCTS)
        look_around(shop, run, number, customer, sku)
        order(shop, run, number, customer, sku)


def look_around(shop: redis.Redis, run: Run, number: int, customer: int, sku: str) -> None:
    draw = run.draw(number)
    address = f"shop:rate:10.{draw.randrange(256)}.{draw.randrange(256)}.{draw.randrange(1, 255)}"
    with shop.pipeline() as pipe:
        requests, _ = pipe.incr(address).expire(address, 60).execute()
    expect("INCR of the rate", requests >= 1, True)

    session = f"shop:session:{draw.getrandbits(128):032x}"
    with shop.pipeline() as pipe:
        pipe.hset(session, mapping={"customer": customer, "seen": 1_793_000_000 + number})
        pipe.expire(session, 30 * 60).execute()
    expect("HGET of the session", shop.hget(session, "customer"), str(customer))

    day = run.day(number)
    with shop.pipeline() as pipe:
        pipe.pfadd(f"shop:visitors:{day}", customer).expire(f"shop:visitors:{day}", 90 * DAY)
        pipe.zincrby(f"shop:views:{day}", 1, sku).expire(f"shop:views:{day}", 90 * DAY)
        pipe.lpush(f"shop:recent:{customer}", sku).ltrim(f"shop:recent:{customer}", 0, 9)
        pipe.expire(f"shop:recent:{customer}", 30 * DAY).execute()
    expect("LINDEX", shop.lindex(f"shop:recent:{customer}", 0), sku)

    expect("HGET of a flag", shop.hget("shop:flags", "gift_wrap"), "on")
    expect("GET of a page", json.loads(shop.get(f"shop:page:{sku}") or "{}").get("sku"), sku)
    expect("HEXISTS", shop.hexists(f"shop:product:{sku}", "price_cents"), True)
    search(shop, run, number)


def search(shop: redis.Redis, run: Run, number: int) -> None:
    words = f"what {run.seed} {number}"
    cache = f"shop:search:{hashlib.sha1(words.encode()).hexdigest()}"
    found = PRODUCTS[number % 10 * 4 : number % 10 * 4 + 3]  # nothing for one search in ten
    if found:
        shop.set(cache, json.dumps(found), ex=300)
    else:
        shop.set(cache, "[]")  # a mistake: without a time to live, it stays forever
    expect("GET of a search", json.loads(shop.get(cache) or "null"), found)


def order(shop: redis.Redis, run: Run, number: int, customer: int, sku: str) -> None:
    cart = f"shop:cart:{customer}"
    with shop.pipeline() as pipe:
        pipe.hset(cart, sku, 1 + number % 3).expire(cart, 7 * DAY).execute()
    with shop.pubsub() as status:
        status.subscribe(f"shop:status:{customer}")
        expect("SUBSCRIBE", next_message(status)["type"], "subscribe")
        wanted = {"request": run.request(number), "customer": customer}
        shop.rpush("shop:checkouts", json.dumps(wanted))
        told = json.loads(next_message(status)["data"])
    expect("The state of the order", shop.hget(f"shop:order:{told['order']}", "state"), "paid")
    expect("ZSCORE", shop.zscore(f"shop:orders:{customer}", told["order"]) is not None, True)
    expect("DEL of the cart", shop.delete(cart), 1)


def next_message(status: redis.client.PubSub) -> dict[str, str]:
    message: dict[str, str] | None = status.get_message(timeout=WAIT)
    if message is None:
        raise Wrong("no message about the order")
    return message


if __name__ == "__main__":
    main("storefront", serve)
