"""No upstream can make keyfence fail, or use unlimited memory, whatever it sends.

The streams hold valid and invalid frames of all types: false lengths, endless nesting, lines without an end,
pushes and attributes in any place, and replies to no request. They arrive in random pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from keyfence.process.serving.ttl_check import CannotAsk, _Link
from keyfence.upstream.discovery import MAX_REPLY, CannotLearn, _decoded
from keyfence.upstream.handshake import LONGEST_GREETING, Answers, Greeting, GreetingError
from tests.adversary.conftest import Search
from tests.session.sessions import ADMITTED, Session, cmd, observed, passed, sent
from tests.upstream.test_shared import Shared, Written

LINES = [
    b"+OK",
    b"+QUEUED",
    b"-ERR x",
    b"-NOAUTH x",
    b":1",
    b":-9",
    b"+" + b"x" * 5000,
    b"#t",
    b",1.5",
    b"(1",
]
HEADERS = [b"$3", b"$-1", b"$99999999", b"$9999999999999999999", b"*2", b"*-1", b"*4294967296", b"%2", b"~1"]
HEADERS += [b">2", b">0", b"|1", b"=9", b"!3", b"*1", b"$0", b"_", b"$?", b"*?", b"\x00", b"$+1", b"*01"]
BARE = [b"\r\n", b"\n", b"\r", b"", b"abc\r\n", b"message", b"subscribe\r\n"]


def stream(rng: random.Random) -> bytes:
    """Returns some kilobytes of replies."""
    parts = []
    for _ in range(rng.randrange(1, 30)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(LINES) + b"\r\n")
        elif kind < 0.8:
            parts.append(rng.choice(HEADERS) + b"\r\n")
        elif kind < 0.9:
            parts.append(rng.choice(BARE))
        elif kind < 0.95:
            parts.append(b"*1\r\n" * rng.choice([10, 200, 9000]) + b":1\r\n")
        else:
            parts.append(rng.randbytes(rng.randrange(40)))
    return b"".join(parts)


def feed(take: Callable[[bytes], object], data: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(data):
        size = rng.choice([1, 3, 17, 1000, len(data)])
        take(data[at : at + size])
        at += size


def test_a_shared_connection_survives_any_stream(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    async def attack(rng: random.Random) -> None:
        shared = Shared(monkeypatch, 3)
        await shared.open()
        for link in shared.links:
            link.send([b"x"], [rng.randrange(1, 4)], rng.random() < 0.5)
        for _ in range(5):
            feed(shared.connection.data_received, stream(rng), rng)
            await asyncio.sleep(0)
            if shared.connection.is_closed:
                break

    with asyncio.Runner() as runner:
        for rng in search.attempts_of_at_least(50):
            runner.run(attack(rng))


def talk(rng: random.Random) -> Session:
    """Returns a session that awaits replies of all kinds."""
    one = observed()
    requests = [
        ADMITTED * 3,
        cmd("MULTI") + ADMITTED,
        cmd("EXEC"),
        cmd("AUTH", "u", "p"),
        cmd("HELLO 3"),
        cmd("SUBSCRIBE a b"),
        cmd("MONITOR"),
        cmd("EVAL", "x", "1", "k"),
        cmd("CLIENT REPLY SKIP") + ADMITTED,
        cmd("RESET"),
        cmd("SELECT 1"),
    ]
    for request in rng.choices(requests, k=rng.randrange(1, 5)):
        one.from_client(request)
    return one


def test_a_session_survives_any_stream(search: Search) -> None:
    for rng in search.attempts_of_at_least(200):
        one = talk(rng)
        passed(one)
        for _ in range(5):
            take = one.from_kept if one.route.is_shared else one.from_upstream
            feed(take, stream(rng), rng)
            passed(one)
            sent(one)
            if one.closing:
                break


def test_keyfence_s_own_requests_survive_any_reply(search: Search) -> None:
    async def attack(rng: random.Random) -> None:
        greeting = Greeting(rng.randrange(1, 4))
        with contextlib.suppress(GreetingError):
            feed(greeting.take, stream(rng), rng)
        assert len(greeting._reply) <= LONGEST_GREETING
        answer = Answers(0, rng.randrange(1, 4), MAX_REPLY)
        feed(answer.data_received, stream(rng), rng)
        if answer.raw.done():
            with contextlib.suppress(CannotLearn, GreetingError):
                _decoded(answer.raw.result())
        link = _Link([], 0)
        link.connection_made(Written())
        asked = asyncio.ensure_future(link.ask(0, [b"PTTL k\r\n"] * rng.randrange(1, 4)))
        await asyncio.sleep(0)
        feed(link.data_received, stream(rng), rng)
        link.close()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError, CannotAsk):
            await asked

    with asyncio.Runner() as runner:
        for rng in search.attempts_of_at_least(100):
            runner.run(attack(rng))
