"""One look at Redis on a connection of its own: whether it is up, and what it says about itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import hiredis

from .handshake import Greeting, GreetingError, describe

# The errors of a Redis that is reachable but not ready.
NOT_READY = ("LOADING", "MASTERDOWN")


class Silence:
    """Whether Redis does not answer the prober, though a connection may be made: its process stands still, or
    the network drops what it sends."""

    def __init__(self, seconds: float, goes_on: Callable[[], None]) -> None:
        """Redis is silent if it has not answered after so many seconds. From then on `goes_on` is called, as
        often, until it answers or the prober gives up."""
        self.is_silent = False
        self.is_dead = False  # others say so, and it has not answered since
        self._seconds = seconds
        self._goes_on = goes_on
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """The prober asks within this. Only an answer, or an error but TimeoutError, ends the silence."""
        self._wait()
        try:
            yield
            self.is_silent = False
        except OSError as exc:
            self.is_silent = self.is_silent and isinstance(exc, TimeoutError)
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._is_over)

    def _is_over(self) -> None:
        self.is_silent = True
        self._goes_on()
        self._wait()


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
