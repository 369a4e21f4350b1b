from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from keyfence.audit.facts import MAX_FIELDS, Asker
from keyfence.audit.judge import Facts, Judge
from keyfence.audit.servers.links import Link, Request
from keyfence.audit.servers.nodes import inspect
from tests.audit.shop import endpoint, judge
from tests.servers import RedisServer


class Meanwhile(Link):
    """A connection, after whose first pipeline somebody else does something."""

    then: Callable[[], object] | None = None

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        replies = super().ask(requests)
        then, self.then = self.then, None
        if then is not None:
            then()
        return replies


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as one:
        yield one


def asked(
    server: RedisServer, *keys: str, then: Callable[[], object] | None = None
) -> tuple[list[Facts | None], Judge]:
    by, link = judge(), Meanwhile(endpoint(server))
    asker = Asker(link, inspect(endpoint(server)), by, {})
    link.then = then
    found = asker.ask([(key.encode(), by.look(key.encode())) for key in keys])
    link.close()
    return found, by


def test_each_key_has_its_own_facts(redis_server: RedisServer, client: redis.Redis) -> None:
    client.hset("shop:main:order:1", mapping={"state": "paid", "colour": "red"})
    client.set("shop:main:page:1", "x" * 12, ex=100)
    client.rpush("shop:main:queue", *range(4))
    found, _ = asked(
        redis_server, "shop:main:order:1", "gone", "shop:main:page:1", "shop:main:queue", "shop:main:order:2"
    )
    order, gone, page, queue, other = found
    assert order is not None
    assert page is not None
    assert queue is not None
    assert (gone, other) == (None, None)
    assert (order.type, order.ttl, set(order.fields)) == ("hash", -1, {b"state", b"colour"})
    assert order.size > 0
    assert order.idle >= 0
    assert 0 < page.ttl <= 100_000
    assert [size for _, size in page.sizes] == [12]
    assert [(question.command, size) for question, size in queue.sizes] == [(b"LLEN", 4)]


def test_a_time_to_live_that_follows_the_write_is_seen(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    client.hset("shop:main:cart:1", "a", "1")
    (found,), by = asked(
        redis_server, "shop:main:cart:1", then=lambda: client.expire("shop:main:cart:1", 600)
    )
    assert found is not None
    assert found.ttl > 0
    assert list(by.of_facts(b"", by.look(b"shop:main:cart:1").target, found)) == []


def test_a_key_that_becomes_another_one_meanwhile_has_no_fields(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    client.hset("shop:main:order:1", "state", "paid")
    (found,), _ = asked(
        redis_server, "shop:main:order:1", then=lambda: client.set("shop:main:order:1", "text")
    )
    assert found is not None
    assert (found.type, found.fields) == ("hash", ())


def test_of_a_large_hash_some_fields_are_looked_at(redis_server: RedisServer, client: redis.Redis) -> None:
    client.hset("shop:main:order:1", mapping={f"field{number}": "x" for number in range(5000)})
    (found,), _ = asked(redis_server, "shop:main:order:1")
    assert found is not None
    assert 0 < len(found.fields) <= MAX_FIELDS
