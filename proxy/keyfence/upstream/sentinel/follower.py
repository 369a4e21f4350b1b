"""Asks the Sentinels who the primary is, and follows it.

Rule: every Sentinel is heard (`+switch-master`), and all are asked from time to time, so a failover is
noticed as long as one of them can be reached. While the primary is in doubt, the pauses between questions
grow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

import hiredis

from keyfence.upstream.address import Sentinels
from keyfence.upstream.doubt import LEAST_SECONDS, MOST_SECONDS, Doubt
from keyfence.upstream.handshake import describe
from keyfence.upstream.health import Upstream

from .answers import SWITCHED, Named, NotNamed, chosen, is_about, named_in, why_not
from .conversation import Conversation, conversation

POLL_SECONDS = 10.0  # on average, between two questions to all Sentinels while nothing happens
LATE_SECONDS = 0.5  # for which other answers are awaited after the first one
SILENT_SECONDS = 5.0  # after which a Sentinel that says nothing gets a PING
# After a failover, until all Sentinels know of it: each tells the others every 2 s.
SETTLED_SECONDS = 10.0


class Follower:
    """Has an upstream connect to the primary that its Sentinels name."""

    def __init__(
        self, upstream: Upstream, sentinels: Sentinels, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.followed: Named | None = None
        self.troubles: dict[str, str] = {}  # by Sentinel: why it names no primary now
        self._upstream = upstream
        self._sentinels = sentinels
        self._doubt = Doubt()
        self._clock = clock
        self._settled_at = 0.0  # when a failover is old enough for most Sentinels to undo it
        upstream.looked_for_by(self._doubt)

    @property
    def trouble(self) -> str:
        """Why no Sentinel names a primary now; "": one does."""
        if len(self.troubles) < len(self._sentinels.hosts):
            return ""
        each = "; ".join(f"{host}: {why}" for host, why in self.troubles.items())
        return f"no Sentinel names the primary ({each})"

    async def find(self) -> bool:
        """Ask all Sentinels once. Returns whether a primary is known; never raises."""
        asked = [asyncio.ensure_future(self._ask(*host)) for host in self._sentinels.hosts]
        try:
            waiting = set(asked)
            while waiting and not any(one.result() for one in asked if one.done()):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting, timeout=LATE_SECONDS)
        finally:
            for one in asked:
                one.cancel()
        self._take((one.result() for one in asked if one.done() and not one.cancelled()), "the Sentinels")
        if self.followed is None:
            self._upstream.unnamed = self.trouble
        return self.followed is not None

    async def follow_forever(self) -> None:
        """Hear and ask all Sentinels."""
        hearing = (self._hear_forever(*host) for host in self._sentinels.hosts)
        await asyncio.gather(self._ask_forever(), *hearing)

    async def _ask_forever(self) -> None:
        while True:
            await self._doubt.wait(POLL_SECONDS * random.uniform(0.5, 1.5))
            before = self.followed
            await self.find()
            if self.followed != before:
                self._doubt.calm()

    async def _hear_forever(self, host: str, port: int) -> None:
        """Subscribe to one Sentinel, again and again."""
        pause = LEAST_SECONDS
        while True:
            try:
                async with self._talk(host, port) as talk:
                    await talk.call("SUBSCRIBE", SWITCHED)
                    pause = LEAST_SECONDS
                    self._doubt.look_again()  # what was said before this, nobody has heard
                    await self._hear(talk, host, port)
            except OSError:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, MOST_SECONDS)

    async def _hear(self, talk: Conversation, host: str, port: int) -> None:
        """Take in the messages of a subscription, until the connection ends. Raises OSError."""
        while True:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    message = await talk.next()
            except TimeoutError:
                message = await talk.call("PING")
            if is_about(message, self._sentinels.name):
                answer = await self._ask(host, port)
                self._take([answer], f"the Sentinel {host}:{port} ({SWITCHED})")

    async def _ask(self, host: str, port: int) -> Named | None:
        """The primary that one Sentinel names; None: it names none, for the reason in `troubles`."""
        try:
            async with self._talk(host, port) as talk:
                reply = await talk.call("SENTINEL", "MASTER", self._sentinels.name)
            if isinstance(reply, hiredis.ReplyError):
                raise NotNamed(why_not(str(reply), self._sentinels.name))
            named = named_in(reply)
        except (NotNamed, PermissionError) as exc:
            self.troubles[f"{host}:{port}"] = str(exc)
        except OSError as exc:
            self.troubles[f"{host}:{port}"] = describe(exc)
        else:
            self.troubles.pop(f"{host}:{port}", None)
            return named
        return None

    def _talk(self, host: str, port: int) -> AbstractAsyncContextManager[Conversation]:
        upstream = self._upstream
        return conversation(self._sentinels, host, port, upstream.tls, upstream.connect_timeout)

    def _take(self, answers: Iterable[Named | None], who: str) -> None:
        """Follow the primary that these answers name."""
        named = [one for one in answers if one is not None]
        before = self.followed
        is_settled = self._clock() >= self._settled_at
        now = self.followed = chosen(named, before, len(self._sentinels.hosts), is_settled=is_settled)
        if now is None or (before is not None and now.is_at(before)):
            return
        self._settled_at = self._clock() + SETTLED_SECONDS
        self._upstream.move(now.host, now.port, who)
