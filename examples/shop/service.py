"""What the services in Python share: their arguments, and how they check what Redis answers."""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from collections.abc import Callable

import redis

DAY = 86_400
WAIT = 20  # seconds for another service before a service gives up
CATEGORIES = (
    *("bags", "belts", "boots", "caps", "coats", "gloves"),
    *("hats", "mugs", "pens", "scarves", "shirts", "socks"),
)
PRODUCTS = [f"{category[:3].upper()}-{number:04}" for category in CATEGORIES for number in (17, 204, 3181)]


class Wrong(Exception):
    """A reply that the service did not expect."""


def expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise Wrong(f"{what} answered {got!r}, not {wanted!r}")


class Run:
    """One run of the shop. The same seed gives the same orders."""

    def __init__(self, orders: int, seed: int) -> None:
        self.orders = orders
        self.seed = seed

    def draw(self, number: int) -> random.Random:
        """Returns the chance of one order: every service draws the same from it."""
        return random.Random(f"{self.seed} {number}")

    def request(self, number: int) -> str:
        """Returns the id under which the storefront asks for an order."""
        return str(uuid.UUID(int=random.Random(f"request {self.seed} {number}").getrandbits(128), version=4))

    def day(self, number: int) -> str:
        """Returns the day of an order. The shop takes ten orders a day."""
        return f"202611{1 + (self.seed + number // 10) % 28:02}"


def main(name: str, serve: Callable[[redis.Redis, Run], None]) -> None:
    """Serves some orders. Exit code 0: every reply was right."""
    parser = argparse.ArgumentParser(description=f"The service {name} of an invented shop.")
    parser.add_argument("--url", required=True, help="its Redis, such as redis://127.0.0.1:6379")
    parser.add_argument("--orders", type=int, default=20, help="how many orders it serves")
    parser.add_argument("--seed", type=int, default=1, help="another number gives other customers and goods")
    given = parser.parse_args()
    try:
        with redis.Redis.from_url(given.url, decode_responses=True) as shop:
            serve(shop, Run(given.orders, given.seed))
    except (redis.RedisError, Wrong) as exc:
        sys.exit(f"{name}: {exc}")
    print(f"{name}: {given.orders} orders, every reply was right")
