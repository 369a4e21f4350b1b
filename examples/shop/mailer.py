"""The mailer: confirms each order by mail, once, unless the customer does not want any."""

from __future__ import annotations

import redis
from orders import make_group
from service import DAY, WAIT, Run, Wrong, expect, main


def serve(shop: redis.Redis, run: Run) -> None:
    make_group(shop, "shop:events:orders", "mailer")
    for number in range(run.orders):
        wanted = {"shop:events:orders": ">"}
        events = shop.xreadgroup("mailer", "mailer-1", wanted, count=1, block=WAIT * 1000)
        if not events:
            raise Wrong("XREADGROUP: no order came")
        for _, [(event, order)] in events.items() if isinstance(events, dict) else events:
            mail(shop, number, order)
            expect("XACK", shop.xack("shop:events:orders", "mailer", event), 1)


def mail(shop: redis.Redis, number: int, order: dict[str, str]) -> None:
    if number % 7 == 3:
        shop.sadd("shop:unsubscribed", order["customer"])
    if shop.sismember("shop:unsubscribed", order["customer"]):
        return
    total = shop.hget(f"shop:order:{order['order']}", "total_cents")
    expect("HGET of the order", total, order["total_cents"])
    sent = f"shop:mail:sent:{order['order']}"
    expect("SET NX of the mail", shop.set(sent, "confirmation", nx=True, ex=30 * DAY), True)


if __name__ == "__main__":
    main("mailer", serve)
