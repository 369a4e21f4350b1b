"""One attempt of a connection to reach Redis.

Rule: a connection has one transport. What comes of an attempt that was given up never reaches it.

To cancel the task that connects is not enough. In the turn of the loop in which it is cancelled, the
transport may be made all the same, and even bring data; uvloop then closes it without a word
(`connection_lost`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast


class Attempt:
    """Connects in a task of its own, for one host, which is an `asyncio.Protocol` by its methods."""

    def __init__(self, host: object) -> None:
        self._host: asyncio.Protocol | None = cast(asyncio.Protocol, host)  # None: it was given up
        self._task: asyncio.Task[None] | None = None
        self._is_made = False

    def begin(self, connect: Callable[[Attempt], Coroutine[Any, Any, None]]) -> Attempt:
        """Run what connects. Returns this attempt."""
        self._task = asyncio.get_running_loop().create_task(connect(self))
        return self

    def give_up(self) -> None:
        """The host wants no transport of this attempt any more."""
        self._host = None
        if self._task is not None:
            self._task.cancel()

    def protocol(self) -> asyncio.Protocol:
        """What a transport is made for."""
        return _Arrival(self)

    def made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the transport over to the host."""
        host = self._host
        if host is None or self._is_made:
            cast(asyncio.Transport, transport).abort()
            return
        self._is_made = True
        cast(asyncio.Transport, transport).set_protocol(host)
        host.connection_made(transport)

    def failed(self, exc: OSError) -> bool:
        """To connect has failed. Returns whether the host had its transport by then: it has lost that now."""
        if self._host is not None and self._is_made:
            self._host.connection_lost(exc)
        return self._is_made


class _Arrival(asyncio.Protocol):
    """The protocol of a transport until it is handed over."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._attempt.made(transport)
