"""Redis as the store of a policy: a hash for each version, the newest sequence, and a signal by pub/sub.

Rule: everything is bounded: times, sizes, the number of versions. What the store says counts only as far as
it is signed. No message holds a login, or text of the server.

    PREFIX:{NAME}:sequence       the sequence of the newest version
    PREFIX:{NAME}:version:7      content, signature, author, message, time, sequence
    PREFIX:{NAME}:changed        a channel: the new sequence, or that the candidate has changed
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool, Redis, SSLConnection
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
    WatchError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyfence.net.trust import client_context
from keyfence.policy.source.files import MAX_BYTES

from .manifest import MAX_SEQUENCE, MAX_SIGNED, BadManifest, check_path, parse_signed
from .model import Answer, NotFetched, Offer, PolicyServer
from .redis_url import RedisPlace, parse_redis_url
from .store import KEPT_VERSIONS, Conflict, StoreError, Version

REPLY_SECONDS = 3.0  # for a connection, and for each reply
CANDIDATE = "candidate"  # the key beside the versions
_Reply = TypeVar("_Reply")
_UNREADABLE = Offer(b"", b"\n")  # what stands in the place of a candidate cannot be one


class _Connection(SSLConnection):
    """Trusts what the rest of keyfence does. Left alone, redis-py checks the name only from version 6 on."""

    def __init__(self, trust: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = trust


class RedisStore:
    """The versions of one policy, in a Redis."""

    def __init__(self, place: RedisPlace, name: str, ca: str = "") -> None:
        self.shown = f"{place.shown}/{name}"
        self._place = place
        self._ca = ca
        self._base = f"{place.prefix}:{{{name}}}"

    @property
    def channel(self) -> str:
        return f"{self._base}:changed"

    @contextlib.asynccontextmanager
    async def connected(self, retries: int = 0) -> AsyncIterator[Redis]:
        """A client. Raises StoreError for what fails within the body."""
        client = None
        try:
            client = await self._client(retries)
            yield client
        except WatchError:
            raise
        except (RedisError, OSError) as exc:
            raise StoreError(f"{self.shown} {_why(exc)}") from None
        finally:
            if client is not None:
                with contextlib.suppress(RedisError, OSError):
                    await client.aclose()

    async def _client(self, retries: int) -> Redis:
        place = self._place
        tls: dict[str, Any] = {}
        if place.is_tls:
            trust = await asyncio.to_thread(client_context, self._ca)
            tls = {"connection_class": _Connection, "trust": trust}
        pool = ConnectionPool(
            host=place.host,
            port=place.port,
            db=place.database,
            username=place.username or None,
            password=place.password or None,
            socket_timeout=REPLY_SECONDS,
            socket_connect_timeout=REPLY_SECONDS,
            retry=Retry(NoBackoff(), retries),
            **tls,
        )
        return Redis.from_pool(pool)

    async def sequence(self, client: Redis) -> int:
        """The newest sequence; 0: there is none. Raises StoreError."""
        return await self.number(client, self.key("sequence"))

    async def number(self, client: Redis, key: str) -> int:
        """The number that a key holds; 0: there is none. Raises StoreError."""
        text = await self._asked(bytes, client, "GETRANGE", key, 0, 20)
        if not text:
            return 0
        if not text.isdigit() or int(text) > MAX_SEQUENCE:
            raise StoreError(
                f"{self.shown} has no sequence in the key {key}; remove that key, and push with --sequence"
            )
        return int(text)

    def key(self, *parts: str | int) -> str:
        return ":".join([self._base, *map(str, parts)])

    async def files(self, client: Redis, sequence: int) -> tuple[bytes, bytes]:
        """Content and signature of a version; empty: it is not there. Raises StoreError."""
        key = self.key("version", sequence)
        for field, limit in (("content", MAX_BYTES), ("signature", MAX_SIGNED)):
            if await self._asked(int, client, "HSTRLEN", key, field) > limit:
                raise StoreError(f"{self.shown} has a version with a {field} of more than {limit} bytes")
        content, signature = await self._fields(client, key, "content", "signature")
        return content, signature

    async def _fields(self, client: Redis, key: str, *names: str) -> list[bytes]:
        """Fields of a hash; those that it lacks are empty. Raises StoreError."""
        found = await self._asked(list, client, "HMGET", key, *names)
        if len(found) != len(names) or not all(one is None or isinstance(one, bytes) for one in found):
            raise StoreError(f"{self.shown} answers HMGET as no Redis does")
        return [one or b"" for one in found]

    async def _asked(self, kind: type[_Reply], client: Redis, *command: str | int) -> _Reply:
        """The reply to a command, of this type. Raises StoreError."""
        reply = await _send(client, *command)
        if not isinstance(reply, kind):
            raise StoreError(f"{self.shown} answers {command[0]} as no Redis does")
        return reply

    async def candidate(self, client: Redis, known: bytes = b"") -> Offer | None:
        """The candidate; None: it is still the one with the signature `known`. What cannot be one is no
        error: a policy is taken all the same."""
        key = self.key(CANDIDATE)
        try:
            if await self._asked(int, client, "HSTRLEN", key, "signature") > MAX_SIGNED:
                return None if known == _UNREADABLE.signature else _UNREADABLE
            (signature,) = await self._fields(client, key, "signature")
            if signature == known:
                return None
            if await self._asked(int, client, "HSTRLEN", key, "content") > MAX_BYTES:
                return Offer(b"", signature)
            content, signature = await self._fields(client, key, "content", "signature")
        except ResponseError:
            return None if known == _UNREADABLE.signature else _UNREADABLE
        return Offer(content, signature)

    # -- as those who publish use it

    async def last(self) -> int:
        async with self.connected(1) as client:
            return await self.sequence(client)

    async def read(self, sequence: int) -> Version | None:
        async with self.connected(1) as client:
            content, signature = await self.files(client, sequence)
        try:
            signed = parse_signed(signature)
        except BadManifest:
            return None
        return Version(signed, {signed.manifest.files[0][0]: content})

    async def add(self, version: Version, after: int) -> None:
        await self.exchange(self.added(version), [self.key("sequence")], self.is_newest(after))

    def is_newest(self, after: int) -> Callable[[Redis], Awaitable[None]]:
        """A check for `exchange`: the newest version still has this sequence."""

        async def check(client: Redis) -> None:
            if (last := await self.sequence(client)) != after:
                raise Conflict(self.shown, last)

        return check

    def added(self, version: Version) -> list[tuple[Any, ...]]:
        """The commands that make this the newest version. Raises ValueError."""
        sequence = version.manifest.sequence
        key, old = self.key("version", sequence), self.key("version", sequence - KEPT_VERSIONS)
        return [
            ("DEL", key),
            ("HSET", key, *row_of(version)),
            ("SET", self.key("sequence"), sequence),
            *([("DEL", old)] if sequence > KEPT_VERSIONS else []),
            ("PUBLISH", self.channel, sequence),
        ]

    async def exchange(
        self,
        commands: Sequence[tuple[Any, ...]],
        watched: Sequence[str],
        *checks: Callable[[Redis], Awaitable[None]],
    ) -> None:
        """Send commands as one transaction, if all checks pass and no watched key changes meanwhile. Raises
        StoreError."""
        try:
            async with self.connected() as client, client.pipeline() as pipe:
                await pipe.watch(*watched)
                for check in checks:
                    await check(pipe)
                pipe.multi()  # type: ignore[no-untyped-call]
                for command in commands:
                    _send(pipe, *command)
                await pipe.execute()
        except WatchError:
            raise Conflict(self.shown, await self.last()) from None


def row_of(version: Version) -> list[Any]:
    """The fields of the hash of a version or a candidate, and their values. Raises ValueError."""
    if len(version.contents) != 1:
        raise ValueError(
            "a policy in Redis is one file that names scripts by sha1; push a folder, or scripts, to a folder"
        )
    manifest = version.manifest
    ((name, content),) = version.contents.items()
    check_path(name)
    row: dict[str, Any] = {
        "content": content,
        "signature": version.signed.text(),
        "author": manifest.author,
        "message": manifest.message,
        "time": manifest.time,
        "sequence": manifest.sequence,
        **({} if manifest.base is None else {"base": manifest.base}),
    }
    return [part for field in row.items() for part in field]


def _send(client: Any, *command: str | int | bytes) -> Any:
    """Send a command, or add it to a transaction. Not all versions of redis-py have types for it."""
    return client.execute_command(*command)


def _why(exc: Exception) -> str:
    """What is wrong, without text of the server."""
    behind = (exc, exc.__cause__, exc.__context__)
    if any(isinstance(one, ssl.SSLError) for one in behind):
        return "shows a certificate that is not trusted, or speaks no TLS; check the URL and ca"
    if any(isinstance(one, FileNotFoundError | PermissionError) for one in behind):
        return "cannot be asked: the file under ca cannot be read"
    if isinstance(exc, AuthenticationError):
        return "does not accept the login; check user and password"
    if isinstance(exc, NoPermissionError):
        return "does not let this user do so; the documentation has the ACL rule"
    if isinstance(exc, ResponseError):
        return "refuses a command; its keys may hold something else"
    if isinstance(exc, TimeoutError | RedisTimeoutError):
        return f"does not answer within {REPLY_SECONDS:g} s"
    return "cannot be reached"


async def fetch(server: PolicyServer, etag: str = "", wait: float = 0.0, known: bytes = b"") -> Answer:
    """Ask for the newest version, unless it is the one with this ETag, which is its sequence, and for the
    candidate, unless it is the one with the signature `known`. Waits for a signal, `wait` seconds at most.
    Raises NotFetched."""
    place = parse_redis_url(server.url)
    if server.password:
        place = place._replace(username=server.username, password=server.password)
    store = RedisStore(place, server.signed_as, server.ca)
    try:
        async with store.connected(1) as client, client.pubsub() as signals:
            if wait:
                await _subscribed(signals, store.channel)  # first, so that no change comes between
            candidate = await store.candidate(client, known)
            if wait and candidate is None and str(await store.sequence(client)) == etag:
                await _signal(signals, wait)
                candidate = await store.candidate(client, known)
            answer = await _newest(store, client, etag, waits=bool(wait))
            return answer._replace(candidate=candidate)
    except StoreError as exc:
        raise NotFetched(str(exc).removeprefix(f"{store.shown} ")) from None


async def _newest(store: RedisStore, client: Redis, etag: str, *, waits: bool) -> Answer:
    sequence = await store.sequence(client)
    if not sequence:
        raise NotFetched("has no version of this policy; store one with keyfence push")
    if str(sequence) == etag:
        return Answer(None, etag, waits)
    content, signature = await store.files(client, sequence)
    if not content:
        raise NotFetched(f"lacks its newest version, {sequence}; push it again")
    return Answer(content, str(sequence), waits, signature)


async def _subscribed(signals: PubSub, channel: str) -> None:
    """Subscribe, and wait until Redis has done so: questions go over another connection, and Redis may answer
    them before."""
    await signals.subscribe(channel)
    if await signals.get_message(timeout=REPLY_SECONDS) is None:
        raise RedisTimeoutError("SUBSCRIBE was not confirmed")


async def _signal(signals: PubSub, seconds: float) -> None:
    """Wait for a signal. If it cannot come any more, the next question shows why."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    with contextlib.suppress(RedisError, OSError):
        while (left := end - loop.time()) > 0:
            if await signals.get_message(ignore_subscribe_messages=True, timeout=left) is not None:
                return
