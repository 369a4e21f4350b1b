"""A Redis is asked for its newest version, and a signal ends the wait for the next one."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator

import pytest

from keyfence.fleet import redis_store
from keyfence.fleet.model import Answer, NotFetched, PolicyServer
from keyfence.fleet.redis_candidate import RedisCandidate
from keyfence.fleet.redis_store import RedisStore, fetch
from keyfence.fleet.redis_url import parse_redis_url
from tests.fleet.publishing import NAME, Publisher
from tests.servers import PROJECT, Certificates, RedisServer, running_redis

WAIT = 25.0  # seconds, of which a signal leaves most


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True) as one:
        yield one


def store_of(server: RedisServer) -> RedisStore:
    return RedisStore(parse_redis_url(server.url), NAME)


def ask(server: RedisServer, etag: str = "", wait: float = 0.0) -> Answer:
    return asyncio.run(fetch(PolicyServer(server.url, signed_as=NAME), etag, wait))


def why_not(server: RedisServer) -> str:
    with pytest.raises(NotFetched) as caught:
        ask(server)
    return str(caught.value)


def test_the_newest_version_comes_with_its_signature_and_is_known_by_its_sequence(
    server: RedisServer,
) -> None:
    server.clear()
    publisher = Publisher()
    assert why_not(server) == "has no version of this policy; store one with keyfence push"
    publisher.push(store_of(server), "one")
    signature = publisher.version(1, "one").signed.text()
    assert ask(server) == Answer(b"one", "1", False, signature)
    assert ask(server, "1") == Answer(None, "1", False)
    assert ask(server, "1", 0.05) == Answer(None, "1", True), "it has waited"


def test_a_signal_ends_the_wait(server: RedisServer) -> None:
    server.clear()
    publisher = Publisher()
    publisher.push(store_of(server), "one")
    answers: list[Answer] = []
    began = time.monotonic()
    waiting = threading.Thread(target=lambda: answers.append(ask(server, "1", WAIT)))
    waiting.start()
    with server.client() as client:
        while not client.pubsub_numsub("keyfence:{shop}:changed")[0][1]:
            time.sleep(0.005)
    publisher.push(store_of(server), "two")
    waiting.join()
    assert (answers[0].content, answers[0].etag, answers[0].waits) == (b"two", "2", True)
    assert time.monotonic() - began < WAIT


def test_a_version_that_comes_before_redis_has_subscribed_is_not_missed(server: RedisServer) -> None:
    """SUBSCRIBE goes over a connection of its own, which a busy Redis may read later than the questions."""
    server.clear()
    publisher = Publisher()
    publisher.push(store_of(server), "one")
    subscribes, may_go_on = asyncio.Event(), asyncio.Event()

    async def passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if b"SUBSCRIBE" in data:
                subscribes.set()
                await may_go_on.wait()
            sink.write(data)
        sink.close()

    async def relay(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        upstream, there = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(passed(client, there), passed(upstream, back))

    async def asked() -> Answer:
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            place = PolicyServer(f"redis://127.0.0.1:{port}", signed_as=NAME)
            waiting = asyncio.create_task(fetch(place, "1", WAIT))
            await subscribes.wait()
            await asyncio.sleep(0.05)  # in which the questions are asked, if they do not wait
            await asyncio.to_thread(publisher.push, store_of(server), "two")
            may_go_on.set()
            return await waiting

    began = time.monotonic()
    assert asyncio.run(asked()).content == b"two"
    assert time.monotonic() - began < WAIT


def test_what_is_missing_or_too_large_is_no_answer(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.clear()
    Publisher().push(store_of(server), "one")
    monkeypatch.setattr(redis_store, "MAX_BYTES", 2)
    assert why_not(server) == "has a version with a content of more than 2 bytes"
    with server.client() as client:
        client.delete("keyfence:{shop}:version:1")
    assert why_not(server) == "lacks its newest version, 1; push it again"


def test_tls_needs_the_authority(certificates: Certificates) -> None:
    with running_redis(tls=certificates) as server:
        place = parse_redis_url(server.url)
        trusting = RedisStore(place, NAME, str(certificates.ca))
        assert asyncio.run(trusting.last()) == 0
        for ca, why in (("", "a certificate that is not trusted"), ("/nowhere", "the file under ca")):
            with pytest.raises(redis_store.StoreError, match=why):
                asyncio.run(RedisStore(place, NAME, ca).last())


def test_the_documented_acl_rules_suffice_and_keyfence_cannot_write() -> None:
    text = (PROJECT / "docs" / "publishing.md").read_text()
    rules = [re.sub(" +", " ", one) for one in re.findall(r"^    ACL SETUSER (.+)$", text, re.MULTILINE)]
    assert len(rules) == 2
    with running_redis(tcp=True) as server:
        rules = [one if server.version_info >= (7,) else one.replace("%R~", "~") for one in rules]
        with server.client() as client:
            for rule in rules:
                client.execute_command("ACL", "SETUSER", *rule.split())
        place = parse_redis_url(server.url)
        reader = place._replace(username="keyfence", password="SECRET")
        publisher = Publisher()
        publisher.push(RedisStore(place._replace(username="publisher", password="SECRET"), NAME), "one")
        configured = PolicyServer(server.url, username="keyfence", password="SECRET", signed_as=NAME)
        assert asyncio.run(fetch(configured, "1", 0.05)) == Answer(None, "1", True)
        assert asyncio.run(fetch(configured)).content == b"one"
        with pytest.raises(redis_store.StoreError, match="does not let this user do so"):
            publisher.push(RedisStore(reader, NAME), "two")
        beside = RedisCandidate(RedisStore(place._replace(username="publisher", password="SECRET"), NAME))
        asyncio.run(beside.put(publisher.candidate(1, 1, "two"), 0))
        seen = asyncio.run(fetch(configured)).candidate
        assert seen is not None
        with pytest.raises(redis_store.StoreError, match="does not let this user do so"):
            asyncio.run(RedisCandidate(RedisStore(reader, NAME)).withdraw(seen))
        asyncio.run(beside.promote(seen, publisher.version(2, "two"), 1))


@pytest.mark.parametrize("reply", [b":5\r\n", b"+OK\r\n", b"$-1\r\n", b"*0\r\n", b"*1\r\n$1\r\nx\r\n"])
def test_replies_of_another_type_than_redis_sends_are_no_answer(reply: bytes) -> None:
    """No Redis sends them. A proxy in between may, and so may an attacker on the network."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(reply * (data.count(b"\r\n*") + 1))
        writer.close()

    async def asks() -> None:
        async with await asyncio.start_server(answers, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await fetch(PolicyServer(f"redis://127.0.0.1:{port}", signed_as=NAME))

    with pytest.raises(NotFetched, match=r"as no Redis does|has no version"):
        asyncio.run(asks())
