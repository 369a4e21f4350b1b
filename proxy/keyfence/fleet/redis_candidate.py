"""The candidate of a policy in a Redis: one beside the versions, to be compared by every instance.

Rule: a newer candidate replaces an older one, and only what its author has seen is replaced, withdrawn or
promoted. Numbers of candidates rise and never come back.

    PREFIX:{NAME}:candidate            content, signature, author, message, time, sequence, base
    PREFIX:{NAME}:candidate:sequence   the number of the newest candidate; it stays when that goes
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from .model import Offer
from .redis_store import CANDIDATE, RedisStore, row_of
from .store import StoreError, Version


class RedisCandidate:
    """The candidate of one policy."""

    def __init__(self, store: RedisStore) -> None:
        self.shown = store.shown
        self._store = store

    @property
    def _watched(self) -> list[str]:
        """The keys of which none may change while something is stored."""
        key = self._store.key
        return [key("sequence"), key(CANDIDATE), key(CANDIDATE, "sequence")]

    async def last(self) -> int:
        """The number of the newest candidate, withdrawn ones included; 0: there was none. Raises
        StoreError."""
        async with self._store.connected(1) as client:
            return await self._last(client)

    async def _last(self, client: Redis) -> int:
        return await self._store.number(client, self._store.key(CANDIDATE, "sequence"))

    async def offer(self) -> Offer:
        """What stands in the candidate's place. Raises StoreError."""
        async with self._store.connected(1) as client:
            return await self._store.candidate(client) or Offer()

    # -- changes, each with a signal

    async def put(self, version: Version, after: int) -> None:
        """Make this the candidate, if the newest one still has the number `after`, and the newest version is
        the one that it is based on. Raises StoreError, and ValueError if a Redis cannot hold it."""

        async def check(client: Redis) -> None:
            if await self._last(client) != after:
                raise self._changed()

        manifest, key = version.manifest, self._store.key(CANDIDATE)
        commands = [
            ("DEL", key),
            ("HSET", key, *row_of(version)),
            ("SET", self._store.key(CANDIDATE, "sequence"), manifest.sequence),
        ]
        await self._exchange(commands, check, self._store.is_newest(manifest.base or 0))

    async def withdraw(self, seen: Offer) -> None:
        """Remove the candidate, if it still is this one. Raises StoreError."""
        await self._exchange([("DEL", self._store.key(CANDIDATE))], self._is_there(seen))

    async def promote(self, seen: Offer, version: Version, after: int) -> None:
        """Make `version` the newest version in place of the candidate, if that still is this one, and the
        newest version has the sequence `after`. Raises StoreError, and ValueError."""
        commands = [*self._store.added(version), ("DEL", self._store.key(CANDIDATE))]
        await self._exchange(commands, self._is_there(seen), self._store.is_newest(after))

    def _is_there(self, seen: Offer) -> Callable[[Redis], Awaitable[None]]:
        async def check(client: Redis) -> None:
            if await self._store.candidate(client, seen.signature) is not None:
                raise self._changed()

        return check

    def _changed(self) -> StoreError:
        return StoreError(f"the candidate of {self.shown} has changed meanwhile; look at it again")

    async def _exchange(
        self, commands: list[tuple[Any, ...]], *checks: Callable[[Redis], Awaitable[None]]
    ) -> None:
        signal = ("PUBLISH", self._store.channel, CANDIDATE)
        await self._store.exchange([*commands, signal], self._watched, *checks)
