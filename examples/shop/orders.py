"""Orders: makes an order of a cart, and closes it when it is paid."""

from __future__ import annotations

import json

import redis
from service import DAY, WAIT, Run, Wrong, expect, main

# Removes a lock only if it is still the caller's.
RELEASE = """\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
OLD = 20  # orders of the old shop, whose keys are order-1, order-2 …


def serve(shop: redis.Redis, run: Run) -> None:
    make_group(shop, "shop:events:payments", "orders")
    release = shop.register_script(RELEASE)  # sent by its SHA-1
    for number in range(run.orders):
        order = take(shop, run, number, release)
        close(shop, order)
        if number % 5 == 0:
            show_an_old_one(shop, 1 + number // 5 % OLD)


def make_group(shop: redis.Redis, stream: str, group: str) -> None:
    try:
        shop.xgroup_create(stream, group, id="0", mkstream=True)
    except redis.ResponseError as exc:
        if "BUSYGROUP" not in str(exc):
            raise


def take(shop: redis.Redis, run: Run, number: int, release: redis.commands.core.Script) -> int:
    """Makes an order of the next checkout, and returns its number."""
    checkout = shop.blpop(["shop:checkouts"], timeout=WAIT)
    if checkout is None:
        raise Wrong("BLPOP: nobody orders")
    wanted = json.loads(checkout[1])
    expect("The id of the request", wanted["request"], run.request(number))
    once = shop.set(f"shop:request:{wanted['request']}", "taken", nx=True, ex=DAY)
    expect("SET NX of the request (was this seed played before?)", once, True)

    order = shop.incr("shop:order:next")
    lock = f"shop:lock:order:{order}"
    expect("SET NX of the lock", shop.set(lock, "orders-1", nx=True, ex=60), True)
    total = 0
    for sku, pieces in shop.hgetall(f"shop:cart:{wanted['customer']}").items():
        total += int(pieces) * int(shop.hget(f"shop:product:{sku}", "price_cents") or 0)
        expect("DECRBY of the stock", shop.decrby(f"shop:stock:{sku}", int(pieces)) >= 0, True)
    placed = 1_793_000_000 + order
    details = {"customer": wanted["customer"], "total_cents": total, "placed": placed, "state": "placed"}
    expect("HSET of the order", shop.hset(f"shop:order:{order}", mapping=details), 4)
    shop.zadd(f"shop:orders:{wanted['customer']}", {order: placed})
    shop.zadd("shop:unpaid", {order: placed})
    event = {"order": order, "customer": wanted["customer"], "total_cents": total}
    shop.xadd("shop:events:orders", event, maxlen=1000)
    expect("The script that releases the lock", release([lock], ["orders-1"]), 1)
    return order


def close(shop: redis.Redis, order: int) -> None:
    """Waits until an order is paid, and tells the storefront."""
    wanted = {"shop:events:payments": ">"}
    events = shop.xreadgroup("orders", "orders-1", wanted, count=1, block=WAIT * 1000)
    for _, [(event, paid)] in events.items() if isinstance(events, dict) else events:
        expect("The order that is paid", paid["order"], str(order))
        if shop.hget(f"shop:order:{order}", "state") != "paid":  # release 1 of payments writes it itself
            shop.hset(f"shop:order:{order}", "state", "paid")
        expect("ZREM", shop.zrem("shop:unpaid", order), 1)
        expect("XACK", shop.xack("shop:events:payments", "orders", event), 1)
        customer = shop.hget(f"shop:order:{order}", "customer")
        told = json.dumps({"order": order, "state": "paid"})
        expect("PUBLISH", shop.publish(f"shop:status:{customer}", told), 1)
        return
    raise Wrong(f"order {order} is not paid")


def show_an_old_one(shop: redis.Redis, order: int) -> None:
    """Reads an order of the old shop, for the customer service."""
    details = shop.hgetall(f"shop:order:{order}") or shop.hgetall(f"order-{order}")
    expect("HGETALL of an old order", details.get("state"), "paid")


if __name__ == "__main__":
    main("orders", serve)
