"""A connection to one Sentinel: commands, and messages of a subscription.

Rule: nothing waits for a Sentinel longer than its timeout, and a Sentinel cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import hiredis

from keyfence.net.host_port import resolving
from keyfence.resp import encode
from keyfence.upstream.address import Sentinels
from keyfence.upstream.patience import at_most

LONGEST_REPLY = 1024 * 1024  # bytes


class Conversation:
    """Sends commands and reads replies, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout = timeout
        self._replies = hiredis.Reader()
        self._unread = 0  # bytes since the last whole reply

    async def call(self, *words: str) -> object:
        """Send a command and return its reply; an error is a `hiredis.ReplyError`. Raises OSError, of which
        TimeoutError is a subclass."""
        self._writer.write(encode.command(*words))
        async with at_most(self._timeout):
            return await self.next()

    async def next(self) -> object:
        """The next reply or message. Raises OSError."""
        try:
            while (reply := self._replies.gets()) is False:
                data = await self._reader.read(65536)
                self._unread += len(data)
                if not data:
                    raise ConnectionError("it closed the connection")
                if self._unread > LONGEST_REPLY:
                    raise ConnectionError("its answer is too long")
                self._replies.feed(data)
        except (hiredis.HiredisError, ValueError) as exc:
            raise ConnectionError(f"it does not speak RESP ({exc})") from None
        self._unread = 0
        return reply


@contextlib.asynccontextmanager
async def conversation(
    sentinels: Sentinels, host: str, port: int, tls: ssl.SSLContext | None, timeout: float
) -> AsyncIterator[Conversation]:
    """A connection to one Sentinel, logged in. Raises OSError; PermissionError if it refuses the login."""
    async with at_most(timeout):
        with resolving(host):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        talk = Conversation(reader, writer, timeout)
        if sentinels.password:
            user = [sentinels.username] if sentinels.username else []
            reply = await talk.call("AUTH", *user, sentinels.password)
            if isinstance(reply, hiredis.ReplyError):
                raise PermissionError(f"it refused keyfence's login: {reply}")
        yield talk
    finally:
        writer.transport.abort()
