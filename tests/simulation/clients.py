"""Models of clients, which know what each of their replies must be.

Rule: a client sends nothing twice. What it writes is unique and begins with its name, so a reply shows
whose it is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import hiredis

from keyfence.resp.encode import command
from tests.simulation.dataset import BIG, BIG_SIZE
from tests.simulation.invariants import Witness
from tests.simulation.journal import Journal
from tests.simulation.keyfence_under_test import ADDRESS, PORT
from tests.simulation.network import End, Host, Network

CHANNEL = b"news"
BLOCKS_SECONDS = 0.3


class Due(NamedTuple):
    """A reply that is due: to what, and whether a reply is the right one."""

    request: bytes
    is_right: Callable[[Any], bool]
    since: float  # when it was sent
    mark: Any = None  # what a kind of client notes of it


class Client:
    """Base of the clients: one connection at a time, and the replies due on it (an `asyncio.Protocol`)."""

    def __init__(self, number: int, network: Network, host: Host, witness: Witness) -> None:
        self.name = f"client-{number}"
        self.network = network
        self.journal: Journal = network.journal
        self.dice: random.Random = network.dice
        self.witness = witness
        self.host = host
        self.resp = self.dice.choice([2, 2, 3])
        self.database = self.dice.choice([0, 0, 0, 1])
        self.end: End | None = None
        self.due: deque[Due] = deque()
        self.answered = 0  # replies that have come, errors included
        self.is_leaving = False
        self._is_connecting = False
        self._count = 0
        self._reader = hiredis.Reader()

    def unique(self) -> bytes:
        self._count += 1
        return b"%b:%d" % (self.name.encode(), self._count)

    # -- the connection

    async def connect(self) -> None:
        if self._is_connecting or self.end is not None:
            return
        self._is_connecting = True
        try:
            await self.network.connect(self.host, lambda: self, ADDRESS, PORT)
        finally:
            self._is_connecting = False

    def connection_made(self, end: End) -> None:
        self.end = end
        self._reader = hiredis.Reader()
        if self.is_leaving:
            end.close()
        else:
            self.greet()

    def connection_lost(self, exc: Exception | None) -> None:
        self.journal.add("%s is closed (%s), %d replies were due", self.name, exc or "end", len(self.due))
        self.end = None
        self.due.clear()
        if not self.is_leaving:
            loop = self.network.loop
            loop.call_later(
                self.dice.random() * 0.1, lambda: self.is_leaving or self.network.start(self.connect())
            )

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """It writes on."""

    def resume_writing(self) -> None:
        """It writes on."""

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self.take(reply)

    def take(self, reply: Any) -> None:
        """Check a reply."""
        self.answered += 1
        self.journal.add("%s gets %.60r", self.name, reply)
        if not self.due:
            self.journal.breaks(f"{self.name} got a reply that it had not asked for: {reply!r:.80}")
            return
        due = self.due.popleft()
        if isinstance(reply, hiredis.ReplyError):
            right = self._is_right_error(due, str(reply))
        else:
            right = due.is_right(reply)
        if not right:
            self.journal.breaks(f"{self.name} asked {due.request!r:.60} and got {reply!r:.80}")

    def _is_right_error(self, due: Due, text: str) -> bool:
        """A model's error ends with the last word of its request; Redis' other errors say nothing of it."""
        if text.startswith(("READONLY", "LOADING", "MASTERDOWN")):
            return text.endswith(due.request.decode().rpartition(" ")[2])
        if text.startswith("EXECABORT"):
            return due.request == b"EXEC"
        if text.startswith("UNBLOCKED"):
            return due.request.startswith(b"BLPOP")
        return text.startswith("ERR upstream")

    # -- requests

    def ask(self, *words: bytes, is_right: Callable[[Any], bool]) -> bytes:
        """Note that a reply is due, and return the bytes of the request."""
        self.due.append(Due(b" ".join(words), is_right, self.network.loop.now, self.mark_of(words)))
        return command(*words)

    def mark_of(self, words: Sequence[bytes]) -> Any:  # noqa: ARG002
        """What to note of a request."""
        return None

    def send(self, *requests: bytes) -> None:
        assert self.end is not None
        self.journal.add("%s sends %d requests, %d are due", self.name, len(requests), len(self.due))
        self.end.write(b"".join(requests))

    def greet(self) -> None:
        """What a library sends when it connects."""
        ok = _is(b"OK")
        out = []
        if self.resp == 3:
            out.append(
                self.ask(b"HELLO", b"3", is_right=lambda got: isinstance(got, dict) and b"role" in got)
            )
        if self.dice.random() < 0.5:
            out.append(self.ask(b"CLIENT", b"SETINFO", b"LIB-NAME", b"model", is_right=ok))
        if self.dice.random() < 0.2:
            out.append(self.ask(b"CLIENT", b"ID", is_right=lambda got: isinstance(got, int)))
        if self.dice.random() < 0.3:
            out.append(self.ask(b"CLIENT", b"SETNAME", self.name.encode(), is_right=ok))
        if self.database:
            out.append(self.ask(b"SELECT", b"%d" % self.database, is_right=ok))
        if out:
            self.send(*out)

    def begin(self) -> None:
        """Do something, if there is a connection."""

    def hang_up(self, how: str) -> None:
        """End the connection, to make another one."""
        getattr(self.end, how)()

    def leave(self) -> None:
        """Go for good, in one of the ways in which clients go."""
        self.is_leaving = True
        if self.end is not None:
            how = self.dice.choice(["close", "abort", "write_eof"])
            self.journal.add("%s leaves (%s)", self.name, how)
            self.hang_up(how)


def _is(right: Any) -> Callable[[Any], bool]:
    return lambda got: bool(got == right)


class Worker(Client):
    """A client that reads and writes its own keys, one request or a pipeline at a time."""

    def __init__(self, number: int, network: Network, host: Host, witness: Witness) -> None:
        super().__init__(number, network, host, witness)
        name = self.name.encode()
        self._value, self._list, self._counter, self._queue = (
            b"sim:" + kind + b":" + name for kind in (b"value", b"list", b"counter", b"queue")
        )
        self._prefix = name + b":"
        self._highest: dict[bytes, int] = {}  # that each counter was seen at
        self._holds_back = False  # whether it awaits the answer to MULTI
        self.patterns = (
            *(self._echo, self._set, self._increment, self._push) * 3,
            *(
                self._transaction,
                self._watch,
                self._pop,
                self._big,
                self._set_large,
                self._visit,
                self._whole_list,
            ),
        )

    def begin(self) -> None:
        if self.end is None or self.end.is_closing() or len(self.due) > 20 or self._holds_back:
            return
        if self.dice.random() < 0.03:
            self._stop_reading(self.end)
        if self.dice.random() < 0.05:
            self._begin_transaction()
            return
        out: list[bytes] = []
        for _ in range(self.dice.choice([1, 1, 1, 2, 5])):
            out += self.dice.choice(self.patterns)()
        self.send(*out)

    def greet(self) -> None:
        self._holds_back = False
        super().greet()

    def _stop_reading(self, end: End) -> None:
        self.journal.add("%s stops reading", self.name)
        end.pause_reading()
        self.network.loop.call_later(self.dice.random(), end.resume_reading)

    # -- what it asks

    def _echo(self) -> list[bytes]:
        value = self.unique()
        return [self.ask(b"ECHO", value, is_right=_is(value))]

    def _set(self) -> list[bytes]:
        value = self.unique()
        written = self.ask(b"SET", self._value, value, is_right=self._confirms(value, _is(b"OK")))
        return [written, self.ask(b"GET", self._value, is_right=self._is_own)]

    def _set_large(self) -> list[bytes]:
        """A value too large for a shared connection, which is streamed."""
        value = self.unique() + b":" + b"y" * self.dice.choice([10, 10, 80_000])
        return [self.ask(b"SET", self._value, value, is_right=self._confirms(value, _is(b"OK")))]

    def _visit(self) -> list[bytes]:
        """Subscribe to a channel, and leave it."""
        channel = self.unique()
        return [
            self.ask(b"SUBSCRIBE", channel, is_right=_is([b"subscribe", channel, 1])),
            self.ask(b"UNSUBSCRIBE", channel, is_right=_is([b"unsubscribe", channel, 0])),
        ]

    def _whole_list(self) -> list[bytes]:
        """All that it has written there, many times in a pipeline at times."""
        times = self.dice.choice([1, 1, 1, 1, 40])
        return [self.ask(b"LRANGE", self._list, b"0", b"-1", is_right=self._are_own) for _ in range(times)]

    def _confirms(self, value: bytes, is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def confirmed(got: Any) -> bool:
            if is_right(got):
                self.witness.confirmed(self.name, value)
                return True
            return False

        return confirmed

    def _is_own(self, got: Any) -> bool:
        return got is None or (isinstance(got, bytes) and got.startswith(self._prefix))

    def _are_own(self, got: Any) -> bool:
        return isinstance(got, list) and all(map(self._is_own, got)) and len(set(got)) == len(got)

    def _increment(self) -> list[bytes]:
        counter = self._counter
        self.witness.asks_increment((self.database, counter))
        return [
            self.ask(b"INCR", counter, is_right=partial(self._rises, counter)),
            self.ask(b"GET", counter, is_right=partial(self._has_not_fallen, counter)),
        ]

    def _rises(self, counter: bytes, got: Any) -> bool:
        least = self._highest.get(counter, 0) + 1
        return isinstance(got, int) and self._is_no_fall(counter, got, least, is_read=False)

    def _has_not_fallen(self, counter: bytes, got: Any) -> bool:
        least = self._highest.get(counter, 0)
        return (got is None or isinstance(got, bytes)) and self._is_no_fall(
            counter, int(got or 0), least, is_read=True
        )

    def _is_no_fall(self, counter: bytes, value: int, least: int, *, is_read: bool) -> bool:
        if value < least and not self.witness.may_fall((self.database, counter), value, is_read=is_read):
            before = self._highest.get(counter, 0)
            self.journal.breaks(f"{self.name}'s counter {counter!r} fell from {before} to {value}")
        self._highest[counter] = value
        return True

    def _push(self) -> list[bytes]:
        value = self.unique()
        pushed = self.ask(
            b"RPUSH", self._list, value, is_right=self._confirms(value, lambda got: isinstance(got, int))
        )
        return [pushed, self.ask(b"LRANGE", self._list, b"-3", b"-1", is_right=self._are_own)]

    def _transaction(self) -> list[bytes]:
        """One that is sent as a whole."""
        value = self.unique()

        def ran(got: Any) -> bool:
            if isinstance(got, list) and len(got) == 2 and isinstance(got[0], int) and got[1] == value:
                self.witness.confirmed(self.name, value)
                return True
            return False

        queued = _is(b"QUEUED")
        return [
            self.ask(b"MULTI", is_right=_is(b"OK")),
            self.ask(b"RPUSH", self._list, value, is_right=queued),
            self.ask(b"ECHO", value, is_right=queued),
            self.ask(b"EXEC", is_right=ran),
        ]

    def _begin_transaction(self) -> None:
        """One that has begun, and goes on when MULTI is answered."""
        rest_of_replies = list(self.due)
        begin, *rest = self._transaction()
        expected = list(self.due)[len(rest_of_replies) :]
        begun = Due(b"MULTI", lambda got: self._go_on(got, rest, expected[1:]), self.network.loop.now)
        self.due = deque([*rest_of_replies, begun])
        self._holds_back = True
        self.send(begin)

    def _go_on(self, got: Any, requests: list[bytes], due: list[Due]) -> bool:
        self._holds_back = False
        if got == b"OK" and self.end is not None and not self.end.is_closing():
            self.due.extend(due)
            self.send(*requests)
        return bool(got == b"OK")

    def _watch(self) -> list[bytes]:
        value = self.unique()

        def ran(got: Any) -> bool:
            if got == [b"OK"]:
                self.witness.confirmed(self.name, value)
            return got in ([b"OK"], None)

        return [
            self.ask(b"WATCH", self._value, is_right=_is(b"OK")),
            self.ask(b"GET", self._value, is_right=self._is_own),
            self.ask(b"MULTI", is_right=_is(b"OK")),
            self.ask(b"SET", self._value, value, is_right=_is(b"QUEUED")),
            self.ask(b"EXEC", is_right=ran),
        ]

    def _pop(self) -> list[bytes]:
        """Wait for an element, which may be there already."""
        out, queue = [], self._queue
        if self.dice.random() < 0.5:
            value = self.unique()
            out.append(self.ask(b"RPUSH", queue, value, is_right=lambda got: isinstance(got, int)))
        seconds = b"%.2f" % BLOCKS_SECONDS
        out.append(self.ask(b"BLPOP", queue, seconds, is_right=partial(self._is_popped, queue)))
        return out

    def _is_popped(self, queue: bytes, got: Any) -> bool:
        return got is None or (isinstance(got, list) and got[0] == queue and self._is_own(got[1]))

    def _big(self) -> list[bytes]:
        return [self.ask(b"GET", BIG, is_right=lambda got: got == b"x" * BIG_SIZE)]


class Subscriber(Client):
    """A client that listens to one channel."""

    def __init__(self, number: int, network: Network, host: Host, witness: Witness) -> None:
        super().__init__(number, network, host, witness)
        self.heard_at = 0.0  # when a message came last
        self.connected_at = 0.0  # when it was subscribed
        self._last = 0  # number of that message

    def greet(self) -> None:
        super().greet()
        self._last = 0
        self.heard_at = self.connected_at = 0.0
        self.send(self.ask(b"SUBSCRIBE", CHANNEL, is_right=self._is_subscribed))

    def _is_subscribed(self, got: Any) -> bool:
        self.connected_at = self.network.loop.now
        return bool(got == [b"subscribe", CHANNEL, 1])

    def is_deaf_since(self, time: float) -> bool:
        """Whether it subscribed before this time, and has heard nothing since."""
        return self.end is not None and 0.0 < self.connected_at < time and self.heard_at < time

    def take(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            self.heard_at = self.network.loop.now
            number = int(reply[2])
            if number <= self._last:
                self.journal.breaks(f"{self.name} got message {number} after {self._last}")
            self._last = number
        else:
            super().take(reply)
