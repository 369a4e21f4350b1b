"""Keeps the credentials of one process up to date.

Rule: each process fetches on its own. So no secret passes between processes, and a worker that starts late
waits for nobody; the jitter of `rotation` keeps the processes apart. A failure changes nothing but counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, Protocol

from .model import Credentials, NoCredentials, Source, fetched
from .rotation import Rotation

LOOK_SECONDS = 1.0  # on average, between two looks at whether the source has changed


class Target(Protocol):
    """Who logs in with the credentials: the upstream."""

    def log_in_with(self, credentials: Credentials, number: int) -> None: ...

    def try_again(self) -> None: ...


class Keeper:
    """Fetches credentials in time. `rotation` has those in force."""

    def __init__(
        self,
        target: Target,
        seconds: float,
        on_fetched: Callable[[], None],
        rotation: Rotation | None = None,
    ) -> None:
        """A fetch may take `seconds`. `on_fetched` is called after each one."""
        self.rotation = Rotation() if rotation is None else rotation
        self.trouble = ""  # why the last fetch has failed; "": it has not
        self.detail = ""  # what a command has written about it, for operators
        self._target = target
        self._source: Source | None = None
        self._seconds = seconds
        self._on_fetched = on_fetched
        self._mark: object = None
        self._wanted = asyncio.Event()

    @property
    def is_used(self) -> bool:
        return self._source is not None

    def take(self, source: Source | None) -> None:
        """Use this source from now on; None: the login does not change. The credentials in force stay until
        the source has given others."""
        is_same = source == self._source
        self._source = source  # its place may have changed in any case
        if is_same:
            return
        self.rotation.due()
        self._wanted.set()
        if source is None:
            self.rotation.current, self.trouble, self.detail = None, "", ""
            self._on_fetched()

    def refused(self, number: int) -> bool:
        """Redis has refused the credentials of this number. Returns whether there may be others soon."""
        if self._source is None or not self.rotation.refused(number):
            return False
        self._wanted.set()
        return True

    async def fetch(self) -> None:
        """Fetch once, if there is a source. Never raises."""
        source, rotation = self._source, self.rotation
        if source is None:
            return
        self._mark = await asyncio.to_thread(source.mark)  # before reading, so that a later change is seen
        is_new, was_doubted = False, rotation.is_doubted
        try:
            is_new = rotation.obtained(await fetched(source, self._seconds))
        except NoCredentials as exc:
            self.trouble, self.detail = str(exc), self._without_password(exc.detail)
            rotation.failed()
        else:
            self.trouble = self.detail = ""
        if is_new and rotation.current is not None:
            self._target.log_in_with(rotation.current, rotation.number)
        elif was_doubted:
            self._target.try_again()  # Redis' next refusal is its answer
        self._on_fetched()

    def _without_password(self, detail: str) -> str:
        current = self.rotation.current
        return "" if current is not None and current.password in detail else detail

    async def keep_forever(self) -> None:
        """Fetch each time that credentials are due, or their source has changed."""
        while True:
            left = self.rotation.seconds_left() if self.is_used else LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_SECONDS * random.uniform(0.5, 1.5))):
                    await self._wanted.wait()
            self._wanted.clear()
            source = self._source
            if source is None:
                continue
            if self.rotation.seconds_left() and await asyncio.to_thread(source.mark) != self._mark:
                self.rotation.due()
            if not self.rotation.seconds_left():
                await self.fetch()

    def status(self) -> dict[str, Any] | None:
        """The state for operators, without secrets; None: there is no source."""
        if self._source is None:
            return None
        current = self.rotation.current
        return {
            "source": self._source.shown,
            "since": self.rotation.obtained_at or None,
            "expires_at": current.expires_at if current is not None else None,
            "failures": self.rotation.failures,
            "trouble": self.trouble,
        }
