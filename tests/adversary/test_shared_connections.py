"""No client of a shared connection gets a byte of another's replies, whatever one of them sends.

A model of Redis answers several clients on one connection. A client whose requests may be shaped chooses the
frames of its replies, in any number. Pushes come between replies. Everything arrives in random pieces. Each
victim's replies hold the victim's number, so that a misplaced byte shows.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import RequestReader
from tests.adversary.conftest import Search
from tests.upstream.test_shared import Shared

CLIENTS = 4
ATTACKER = 0
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
FORGED = [
    b"+OK\r\n",
    b"$8\r\nINJECTED\r\n",
    b"-NOPERM x\r\n",
    b"-ERR Syntax error in HELLO option '0123456789abcdef0123456789abcdef'\r\n",
    b"$32\r\n0123456789abcdef0123456789abcdef\r\n",
    b"*2\r\n*0\r\n$-1\r\n",
    b"*1\r\n" * 300 + b":1\r\n",
]


class Model:
    """A model of Redis, for one connection."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._reader = RequestReader(IDENTIFIED)
        self._refuses_echo = rng.random() < 0.3

    def answer(self, data: bytes) -> bytes:
        self._reader.feed(data)
        out = b""
        while argv := self._reader.next():
            if self._rng.random() < 0.1:
                out += PUSH
            out += self._reply(argv)
        return out

    def _reply(self, argv: list[bytes]) -> bytes:
        if argv[0] == b"ECHO":
            refused = self._refuses_echo or self._rng.random() < 0.1
            return b"-BUSY x\r\n" if refused else b"$%d\r\n%b\r\n" % (len(argv[1]), argv[1])
        if argv[0] == b"HELLO":
            return b"-ERR Syntax error in HELLO option '%b'\r\n" % argv[2]
        if argv[0] == b"EVAL":
            return argv[1]
        return b"$%d\r\n%b\r\n" % (len(argv[1]), argv[1])


class Victims:
    """The clients, and the replies that each is due."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.due: list[list[bytes]] = [[] for _ in range(CLIENTS)]
        for client in shared.clients:
            client.replies.clear()

    def send(self, number: int, rng: random.Random) -> None:
        """Sends a piece of one client's requests."""
        texts = [b"%d-%d" % (number, rng.randrange(10**6)) for _ in range(rng.randrange(1, 4))]
        chunk = b"".join(command(b"GET", text) for text in texts)
        shapeable = number == ATTACKER and rng.random() < 0.5
        if shapeable:
            frames = b"".join(rng.choices(FORGED, k=rng.choice([1, 1, 1, 2, 3])))
            chunk, texts = chunk + command(b"EVAL", frames), [*texts, b""]
        self.due[number] += [b"$%d\r\n%b\r\n" % (len(text), text) for text in texts]
        self.shared.links[number].send([chunk], [len(texts)], shapeable)

    def check(self) -> None:
        """Checks that each victim has received a prefix of its replies, and nothing else."""
        for number, client in enumerate(self.shared.clients):
            got = b"".join(data for data, _, _ in client.replies)
            if number != ATTACKER:
                assert b"".join(self.due[number]).startswith(got)
                assert sum(n for _, n, _ in client.replies) <= len(self.due[number])

    def have_all(self) -> bool:
        return all(
            b"".join(data for data, _, _ in client.replies) == b"".join(due)
            for client, due in zip(self.shared.clients[1:], self.due[1:], strict=True)
        )


def deliver(shared: Shared, data: bytes, rng: random.Random) -> None:
    """Delivers the bytes in random pieces, while the connection lives."""
    at = 0
    while at < len(data) and not shared.connection.is_closed:
        size = rng.choice([1, 5, 40, len(data)])
        shared.connection.data_received(data[at : at + size])
        at += size


async def attack(patch: pytest.MonkeyPatch, rng: random.Random) -> bool:
    """Makes one attempt. Returns whether the connection survived."""
    shared = Shared(patch, CLIENTS)
    await shared.open()
    victims, model = Victims(shared), Model(rng)
    for _ in range(rng.randrange(1, 15)):
        for _ in range(rng.randrange(1, 6)):
            victims.send(rng.randrange(CLIENTS), rng)
        while not shared.connection.is_closed:
            await asyncio.sleep(0)
            written = b"".join(shared.taken())
            if not written:
                break
            deliver(shared, model.answer(written), rng)
            victims.check()
        if shared.connection.is_closed:
            return False
        assert victims.have_all()
    return True


def test_no_client_gets_a_byte_of_another_s_replies(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner() as runner:
        survived = [runner.run(attack(monkeypatch, rng)) for rng in search.attempts_of_at_least(200)]
    assert set(survived) == {False, True}  # both happened: shaped replies, and attackers without any
