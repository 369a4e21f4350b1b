"""One look at Redis on a connection of its own: whether it is up, and what it says about itself."""

from __future__ import annotations

import asyncio

import hiredis

from .handshake import Greeting, GreetingError, describe

# The errors of a Redis that is reachable but not ready.
NOT_READY = ("LOADING", "MASTERDOWN")


class Probe(asyncio.Protocol):
    """Waits for the replies to greeting and PING, and then to HELLO. `trouble` is the error, or "" if Redis
    is up. `dropped`: the connection ended before any reply. `is_refused`: Redis refused the login. `about` is
    the reply to HELLO, None if there is none."""

    def __init__(self, greeting: int) -> None:
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()
        self.told: asyncio.Future[None] = loop.create_future()
        self.trouble = ""
        self.dropped = False
        self.is_refused = False
        self.about: object = None
        self._reader = hiredis.Reader()
        self._greeting = Greeting(greeting, logs_in_later=True)

    def data_received(self, data: bytes) -> None:
        try:
            rest = self._greeting.take(data)
        except GreetingError as exc:
            self.is_refused = bool(exc.refusal)
            self._settle(str(exc))
            self._end()
            return
        if self._greeting.expected or not rest:
            return
        try:
            self._reader.feed(rest)
            while (reply := self._reader.gets()) is not False:
                self._take(reply)
        except (hiredis.HiredisError, ValueError) as exc:
            self._settle(f"it does not speak RESP ({exc})")
            self._end()

    def _take(self, reply: object) -> None:
        if not self.settled.done():
            # NOAUTH and NOPERM also show that Redis is up, because clients bring their own credentials.
            answer = str(reply)
            self._settle(answer if answer.startswith(NOT_READY) else "")
        elif not self.told.done():
            self.about = reply
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(describe(exc), dropped=True)
        self._end()

    def _end(self) -> None:
        """No more will come about Redis."""
        if not self.told.done():
            self.told.set_result(None)

    def _settle(self, trouble: str, *, dropped: bool = False) -> None:
        if not self.settled.done():
            self.trouble, self.dropped = trouble, dropped
            self.settled.set_result(None)
