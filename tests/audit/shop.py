"""A small policy with one entry for each thing that an audit can find, and keys for it."""

from __future__ import annotations

import redis

from keyfence.audit.judge import Facts, Judge
from keyfence.audit.servers.links import Endpoint
from keyfence.policy.loading.load import parse_policy
from keyfence.upstream.address import parse_upstream
from tests.servers import RedisServer

POLICY = """
policy: shop
owner: {team: shop, contact: "#shop"}
claims: ["shop:"]
services: [web, jobs]
should: [field.unknown]
databases: [0]
placeholders:
  id|tag: "[a-z0-9-]{1,64}"
  token: {is: "[a-z0-9]{8,64}", secret: true}
scopes:
  main: {prefix: "shop:main:", writers: [web]}
  free: {prefix: "shop:free:", writers: [jobs], unregistered: allow, ttl: {max: 1d}}
keys:
  order: {key: "shop:main:order:<id>", type: hash, ttl: none, fields: {state: any, total: any}}
  cart: {key: "shop:main:cart:<id>", type: hash, ttl: {default: 10m, max: 1h, at: refresh}}
  page: {key: "shop:main:page:<id>", type: string, ttl: {max: 1h}, max_value: 10b}
  queue: {key: "shop:main:queue", type: list, max_members: 3}
  session: {key: "shop:main:session:<token>", type: string}
  note: {key: "shop:main:note:<id>:<tag>", type: string}
  stock: {key: "shop:main:stock:<id>", type: string}
  stock-v2: {key: "shop:main:stock:v2:<id>", type: string, replaces: stock, allow: [read, write, delete]}
  unused: {key: "shop:main:unused:<id>", type: string}
legacy:
  allow: [read, delete]
  keys:
    "order-<id>": order
    "cart-<id>": cart
    "page-<id>": {entry: page, allow: []}
    "note-<id>": note
    "session-<token>": session
"""


def judge() -> Judge:
    return Judge(parse_policy(POLICY))


def endpoint(server: RedisServer) -> Endpoint:
    """How to reach a server of a test, on its unix socket."""
    return Endpoint(parse_upstream(server.embedded.url))


def facts(kind: str = "hash", ttl: int = -1, size: int = 100, idle: int = 0, **more: object) -> Facts:
    return Facts(kind, ttl, size, idle, **more)  # type: ignore[arg-type]


def fill(client: redis.Redis) -> None:
    """Keys of the shop: some of each kind, and everything that can be wrong with them."""
    for number in range(20):
        client.hset(f"shop:main:order:{number}", mapping={"state": "paid", "total": "1"})
    client.hset("shop:main:order:extra", mapping={"state": "paid", "colour": "red"})
    client.set("shop:main:order:text", "not a hash")
    client.hset("shop:main:order:ends", "state", "paid")
    client.expire("shop:main:order:ends", 600)
    client.hset("shop:main:cart:forever", "a", "1")
    client.hset("shop:main:cart:fine", "a", "1")
    client.expire("shop:main:cart:fine", 600)
    client.hset("shop:main:cart:long", "a", "1")
    client.expire("shop:main:cart:long", 86_400)
    client.set("shop:main:page:long", "x" * 11, ex=600)
    client.rpush("shop:main:queue", *range(4))
    client.set("shop:main:session:abcdefgh1234", "x")
    client.set("shop:free:anything", "x", ex=60)
    client.set("shop:nowhere:1", "x")
    for number in range(3):
        client.set(f"user:{number}:name", "x" * (number + 1))
    client.hset("order-77", "state", "paid")
    client.set("page-7", "x", ex=60)
