"""A load test: no client may ever get a byte of another client's reply, or of the reply to another request.

Rule: every request holds its client and its number, so that each reply is recognizable. Clients leave in the
middle of pipelines and connections to Redis are killed. A client learns of lost requests by an error or by
the end of its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable, Sequence

from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]

# The kinds of requests: those that any proxy takes, those that need more, and all.
PLAIN = ("set", "get", "increment")
STATEFUL = (*PLAIN, "echo", "transaction", "pop", "big")
KEYFENCES = (*STATEFUL, "unknown", "refused")

_LOST = b"-ERR keyfence: "
_BIG = 300_000  # bytes: more than a reply on a shared connection may have


class Astray(Exception):
    """A reply that does not belong to its request."""


class Expected:
    """The expected replies to a request, or to a few requests that belong together: exact bytes, or a
    pattern.

    `stateless`: the reply depends on the request alone, so it is known even after lost requests.
    """

    __slots__ = ("exact", "matching", "replies", "request", "stateless")

    def __init__(
        self, request: bytes, exact: bytes, matching: bytes = b"", stateless: bool = False, replies: int = 1
    ) -> None:
        self.request = request
        self.exact = exact
        self.matching = matching
        self.stateless = stateless
        self.replies = replies

    def admits(self, data: bytes) -> bool:
        return re.fullmatch(self.matching, data) is not None if self.matching else data == self.exact

    def begins_with(self, data: bytes) -> bool:
        """Returns whether these bytes may be all that came before the connection's end."""
        return bool(self.matching) or self.exact.startswith(data) or _LOST.startswith(data[: len(_LOST)])


class Load:
    """All clients together: how much they send, and the results."""

    def __init__(self, connect: Connect, commands: int, seed: int, kinds: Sequence[str] = KEYFENCES) -> None:
        """`kinds` are the kinds of requests that are sent."""
        self.kinds = kinds
        self._connect = connect
        self.left = commands
        self.answered = 0
        self.lost = 0  # answered by an error of keyfence's, or by the end
        self.disconnects = 0
        self.dice = random.Random(seed)

    async def run(self, clients: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(_Client(self, f"c{number}", random.Random(self.dice.random())).run())

    async def connect(self) -> Streams:
        """Returns a new connection. Raises OSError if keyfence accepts none for a long time."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                return await self._connect()
            await asyncio.sleep(0.05)
        return await self._connect()


class _Client:
    def __init__(self, load: Load, name: str, dice: random.Random) -> None:
        self._load = load
        self._name = name
        self._dice = dice
        self._generation = 0
        self._count = 0  # of requests
        self._number = 0  # the last reply to INCR
        self._value = b""
        column = 2 if dice.random() < 0.2 else 3
        self._weights = [row[column] if row[0] in load.kinds else 0 for row in _KINDS]

    async def run(self) -> None:
        while self._load.left > 0:
            self._generation += 1  # with new keys, because lost requests may have changed the old ones
            self._number, self._value = 0, b""
            with contextlib.suppress(ConnectionError):
                await self._use(*await self._load.connect())

    async def _use(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while self._load.left > 0:
                pipeline = [self._request() for _ in range(self._dice.choice([1, 1, 2, 5, 10, 40]))]
                self._load.left -= len(pipeline)
                data = b"".join(one.request for one in pipeline)
                if self._dice.random() < 0.05:
                    self._load.disconnects += 1
                    writer.write(data[: self._dice.randrange(len(data) + 1)])
                    await asyncio.sleep(self._dice.choice([0, 0, 0.001, 0.01]))
                    if self._dice.random() < 0.5:
                        writer.transport.abort()
                    return
                writer.write(data)
                if not await self._check(pipeline, reader):
                    return
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _check(self, pipeline: list[Expected], reader: asyncio.StreamReader) -> bool:
        """Reads the replies and compares them. Returns False if this connection is unusable from now on."""
        data, framer = bytearray(), ReplyFramer()
        due = sum(one.replies for one in pipeline)
        while due:
            more = await reader.read(1 << 20)
            if not more:
                break
            if framer.advance(more, 0, due) < len(more):
                raise Astray(f"{self._name} got {more[-200:]!r}, which is more than its replies")
            due -= framer.completed
            data += more
        if data == b"".join(one.exact for one in pipeline):
            self._load.answered += len(pipeline)
            return True
        return self._compare(pipeline, bytes(data))

    def _compare(self, pipeline: list[Expected], data: bytes) -> bool:
        framer = ReplyFramer()
        at = 0
        doubtful = False
        for one in pipeline:
            frames = []
            while len(frames) < one.replies and at < len(data):
                start, at = at, framer.advance(data, at, 1)
                frames.append(data[start:at])
            answer = b"".join(frames)
            if one.admits(answer):
                self._load.answered += 1
            elif (
                any(frame.startswith(_LOST) for frame in frames)
                or (at == len(data) and one.begins_with(answer))
                or (doubtful and self._is_mine(one, answer))
            ):
                doubtful = True
                self._load.lost += 1
            else:
                raise Astray(f"{self._name} asked {one.request[:200]!r} and got {answer[:300]!r}")
        return not doubtful

    def _is_mine(self, one: Expected, answer: bytes) -> bool:
        """Returns whether a reply may be this client's after a lost request.

        Replies that depend on that request hold an unknown value, but they name no other client.
        """
        named = re.findall(rb"\bc\d+:", answer)
        return not one.stateless and all(name == self._name.encode() + b":" for name in named)

    def _request(self) -> Expected:
        """Returns the next request. Its reply follows from all earlier requests on this connection."""
        self._count += 1
        tag = f"{self._name}:{self._count}:{'x' * self._dice.choice([0, 1, 20, 200])}".encode()
        key = f"{self._name}:{self._generation}"
        return self._dice.choices(_KINDS, self._weights)[0][1](self, tag, key)

    def _echo(self, tag: bytes, _key: str) -> Expected:
        return Expected(encode.command("ECHO", tag), _bulk(tag), stateless=True)

    def _set(self, tag: bytes, key: str) -> Expected:
        self._value = tag
        return Expected(encode.command("SET", f"{key}:v", tag), b"+OK\r\n")

    def _get(self, _tag: bytes, key: str) -> Expected:
        return Expected(encode.command("GET", f"{key}:v"), _bulk(self._value) if self._value else b"$-1\r\n")

    def _increment(self, _tag: bytes, key: str) -> Expected:
        self._number += 1
        return Expected(encode.command("INCR", f"{key}:n"), b":%d\r\n" % self._number)

    def _unknown(self, tag: bytes, _key: str) -> Expected:
        matching = rb"-ERR unknown command [`']" + re.escape(tag[:128]) + rb"x*['`](, with args [^\r]*)?\r\n"
        return Expected(encode.command(tag), b"?", matching, stateless=True)

    def _refused(self, tag: bytes, _key: str) -> Expected:
        beginning = re.escape(b":".join(tag.split(b":")[:2]) + b":")
        matching = rb"-NOPERM \[scope\.read\] app may not GET no:" + beginning + rb"[^\r]*\r\n"
        return Expected(encode.command("GET", b"no:" + tag), b"?", matching, stateless=True)

    def _transaction(self, tag: bytes, key: str) -> Expected:
        self._number += 1
        request = encode.command("MULTI") + encode.command("ECHO", tag)
        request += encode.command("INCR", f"{key}:n") + encode.command("EXEC")
        return Expected(
            request,
            b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n" + _bulk(tag) + b":%d\r\n" % self._number,
            replies=4,
        )

    def _pop(self, tag: bytes, key: str) -> Expected:
        request = encode.command("RPUSH", f"{key}:l", tag) + encode.command("BLPOP", f"{key}:l", 0)
        return Expected(request, b":1\r\n*2\r\n" + _bulk(f"{key}:l".encode()) + _bulk(tag), replies=2)

    def _big(self, tag: bytes, _key: str) -> Expected:
        return Expected(encode.command("ECHO", tag + b"y" * _BIG), _bulk(tag + b"y" * _BIG), stateless=True)


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


# Each kind, its weight for the clients that send all kinds, and for those that can share a connection.
_KINDS: list[tuple[str, Callable[[_Client, bytes, str], Expected], float, float]] = [
    ("echo", _Client._echo, 30, 30),
    ("set", _Client._set, 15, 15),
    ("get", _Client._get, 15, 15),
    ("increment", _Client._increment, 20, 20),
    ("refused", _Client._refused, 5, 5),
    ("transaction", _Client._transaction, 5, 5),
    # Requests that need a dedicated connection; most clients send none.
    ("unknown", _Client._unknown, 5, 0),
    ("pop", _Client._pop, 1, 0),
    ("big", _Client._big, 0.05, 0),
]
