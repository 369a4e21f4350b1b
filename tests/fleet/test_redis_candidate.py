"""A Redis holds one candidate beside the versions. Only what was seen is changed; changes are signalled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from keyfence.fleet import redis_store
from keyfence.fleet.model import Answer, Offer, PolicyServer
from keyfence.fleet.redis_candidate import RedisCandidate
from keyfence.fleet.redis_store import RedisStore, fetch
from keyfence.fleet.redis_url import parse_redis_url
from keyfence.fleet.store import StoreError, Version
from tests.fleet.publishing import NAME, Publisher
from tests.servers import RedisServer, running_redis

KEY = "keyfence:{shop}:candidate"
WAIT = 25.0  # seconds, of which a signal leaves most


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True) as one:
        yield one


class Place:
    """A store with one version, and its candidate."""

    def __init__(self, server: RedisServer) -> None:
        server.clear()
        self.server, self.publisher = server, Publisher()
        self.store = RedisStore(parse_redis_url(server.url), NAME)
        self.beside = RedisCandidate(self.store)
        self.publisher.push(self.store, "one")

    def put(self, number: int, text: str = "two", base: int = 1) -> Version:
        version = self.publisher.candidate(number, base, text)
        asyncio.run(self.beside.put(version, number - 1))
        return version

    def fetched(self, known: bytes = b"", etag: str = "", wait: float = 0.0) -> Answer:
        return asyncio.run(fetch(PolicyServer(self.server.url, signed_as=NAME), etag, wait, known))

    def offer(self) -> Offer:
        return asyncio.run(self.beside.offer())


@pytest.fixture
def place(server: RedisServer) -> Place:
    return Place(server)


def refused(change: Coroutine[Any, Any, None], why: str) -> None:
    with pytest.raises(StoreError, match=why):
        asyncio.run(change)


def test_a_candidate_comes_beside_the_newest_version_and_once(place: Place) -> None:
    assert place.fetched().candidate is None
    version = place.put(1)
    seen = Offer(b"two", version.signed.text())
    found = place.fetched()
    assert (found.content, found.etag, found.candidate) == (b"one", "1", seen)
    assert place.fetched(seen.signature).candidate is None, "it is known"
    asyncio.run(place.beside.withdraw(seen))
    assert place.fetched(seen.signature).candidate == Offer()
    assert place.offer() == Offer()


def test_a_newer_candidate_takes_the_place_and_numbers_are_never_used_again(place: Place) -> None:
    place.put(1)
    asyncio.run(place.beside.withdraw(place.offer()))
    assert asyncio.run(place.beside.last()) == 1
    refused(place.beside.put(place.publisher.candidate(1, 1, "again"), 0), "has changed meanwhile")
    assert place.offer() == Offer()
    place.put(2, "three")
    assert place.offer().content == b"three"


def test_a_candidate_is_based_on_the_newest_version(place: Place) -> None:
    place.publisher.push(place.store, "two")
    refused(place.beside.put(place.publisher.candidate(1, 1, "x"), 0), "has got sequence 2 meanwhile")
    assert place.offer() == Offer()


def test_only_what_was_seen_is_withdrawn_or_promoted(place: Place) -> None:
    place.put(1)
    seen, second = place.offer(), place.publisher.version(2, "two")
    place.put(2, "three")
    refused(place.beside.withdraw(seen), "has changed meanwhile")
    refused(place.beside.promote(seen, second, 1), "has changed meanwhile")
    place.publisher.push(place.store, "other")
    refused(place.beside.promote(place.offer(), second, 1), "has got sequence 2 meanwhile")
    assert place.offer().content == b"three"


def test_promoting_is_one_step(place: Place) -> None:
    place.put(1)
    asyncio.run(place.beside.promote(place.offer(), place.publisher.version(2, "two"), 1))
    assert asyncio.run(place.store.read(2)) == place.publisher.version(2, "two")
    found = place.fetched()
    assert (found.content, found.etag, found.candidate) == (b"two", "2", None)


def test_a_signal_tells_of_it_and_one_that_came_before_the_wait_is_not_missed(place: Place) -> None:
    answers: list[Answer] = []
    began = time.monotonic()
    waiting = threading.Thread(target=lambda: answers.append(place.fetched(b"", "1", WAIT)))
    waiting.start()
    with place.server.client() as client:
        while not client.pubsub_numsub(place.store.channel)[0][1]:
            time.sleep(0.005)
    version = place.put(1)
    waiting.join()
    assert answers == [Answer(None, "1", True, b"", Offer(b"two", version.signed.text()))]
    assert place.fetched(b"", "1", WAIT).candidate is not None
    assert time.monotonic() - began < WAIT


@pytest.mark.parametrize(
    "command",
    [("SET", KEY, "text"), ("HSET", KEY, "content", "x")],
    ids=["another type", "too large"],
)
def test_what_can_be_no_candidate_keeps_no_policy_away(place: Place, command: tuple[str, ...]) -> None:
    place.put(1)
    with place.server.client() as client:
        client.delete(KEY)
        client.execute_command(*command)
        if command[0] == "HSET":
            client.hset(KEY, "signature", b"s" * (redis_store.MAX_SIGNED + 1))
    found = place.fetched()
    assert found.content == b"one"
    assert found.candidate == Offer(b"", b"\n"), "it is refused as unsigned"
    assert place.fetched(b"\n").candidate is None
