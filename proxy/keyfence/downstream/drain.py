"""Closes all clients when a process ends.

Rule: until the deadline, a client gets the reply to every command that is on its way to Redis. A command
without a reply has not run, except for commands that the deadline cuts off.

Clients leave one after the other, so that they do not all connect again at once. When a client's time has
come, it is closed right after its next reply: then it cannot have sent its next command unless it pipelines.
A little later a silent client is closed too, and no more requests are read, so that a client that never
pauses also ends. No client is closed while a reply is due or a MULTI is open. Clients that remain until the
deadline are blocked (BLPOP), in a transaction, or do not read.

A client that has asked for maintenance notifications is told at once that its connection moves, and when. It
connects again by itself before its time has come.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from keyfence.resp.notices import moving, new_number

from .context import ServerContext
from .flow import Leaving

DRAIN_SECONDS = 5.0
# For this time after a client's time has come, it is only closed right after a reply.
COURTESY_SECONDS = 0.15
POLL_SECONDS = 0.02
# Clients leave at this pace, or at a faster one, so that all have left after this part of the time.
CLIENTS_PER_SECOND = 200.0
SPREAD = 0.5


class Leaver(Protocol):
    """What a departure needs of a client."""

    @property
    def host(self) -> str: ...
    def leave(self, how: Leaving) -> None: ...
    def notify(self, notice: bytes, *, moves: bool) -> bool: ...


class Departures:
    """Which client leaves when. `now` is any clock's time, in seconds."""

    def __init__(self, begun: float, seconds: float) -> None:
        """All clients shall have left after `seconds`."""
        self._begun = begun
        self._longest = seconds * SPREAD  # within which the time of every client comes
        self._courtesy = min(COURTESY_SECONDS, seconds / 2)
        self._number = new_number()  # one for all, because they are one event for a pool of connections
        self._known: set[Leaver] = set()
        self._latest = begun  # when the last client of those that are not told leaves
        self._waiting: list[tuple[float, Leaver]] = []  # by the time that is theirs, the next one last
        self._asked: deque[tuple[float, Leaver]] = deque()  # their time has come
        self._pressed: list[Leaver] = []  # they read no more

    def advance(self, clients: Iterable[Leaver], now: float) -> None:
        """Have those of the clients leave whose time has come."""
        self._schedule([one for one in clients if one not in self._known])
        while self._waiting and self._waiting[-1][0] <= now:
            _, client = self._waiting.pop()
            client.leave(Leaving.AFTER_REPLY)
            self._asked.append((now + self._courtesy, client))
        while self._asked and self._asked[0][0] <= now:
            self._pressed.append(self._asked.popleft()[1])
        for client in self._pressed:
            client.leave(Leaving.AT_REST)

    def _schedule(self, new: list[Leaver]) -> None:
        """Give each new client its time. The order is random, for clients of one pool came together."""
        if not new:
            return
        self._known.update(new)
        spread = min(len(new) / CLIENTS_PER_SECOND, self._longest)
        random.shuffle(new)
        for client in new:
            notified = self._notify(client, spread)
            if notified:
                self._waiting.append((self._begun + notified, client))
            else:
                self._latest = min(self._latest + spread / len(new), self._begun + self._longest)
                self._waiting.append((self._latest, client))
        self._waiting.sort(key=lambda one: one[0], reverse=True)

    def _notify(self, client: Leaver, spread: float) -> int:
        """Tell a client that its connection moves. Returns the time that it is given; 0 if it does not know
        such notices, or if there is no time for one.

        Notices count in whole seconds, and a client connects again after half of that time. A pool heeds the
        first notice, so all clients of a host are given the same time.
        """
        seconds = 1 + zlib.crc32(client.host.encode()) % max(1, round(spread))
        notice = moving(self._number, seconds)
        return seconds if seconds <= self._longest and client.notify(notice, moves=True) else 0


async def drain(context: ServerContext, seconds: float, at_once: asyncio.Event | None = None) -> None:
    """Close all clients of the process, in at most `seconds`. Setting `at_once` skips the wait.

    The listeners must be closed already.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    departures = Departures(begun, seconds)
    while seconds > 0 and loop.time() < begun + seconds and not (at_once is not None and at_once.is_set()):
        # Connections accepted just before the listeners closed become clients in the next turns of the loop.
        await asyncio.sleep(POLL_SECONDS)
        departures.advance(context.clients, loop.time())
        if not context.clients and loop.time() >= begun + min(COURTESY_SECONDS, seconds / 2):
            break
    for client in list(context.clients):
        client.abort()
    await asyncio.sleep(0)  # transports call `connection_lost` in the next turn
