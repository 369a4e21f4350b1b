"""Discovers the upstream's commands at the start, and again whenever the upstream comes back.

Rule: the request goes over a separate connection, with limits on time and size. A failure is counted, its
reason is reported once, and the commands learned before stay in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import hiredis

from .handshake import GreetingError, describe
from .health import Upstream
from .own_commands import COMMAND

MAX_REPLY = 16 * 1024 * 1024  # bytes; Redis 8 with all of its modules needs less than one MiB
RETRY_SECONDS = 60.0


class CannotLearn(Exception):
    """The upstream did not list its commands. `str` says why, for people."""


class NotAllowed(CannotLearn):
    """Redis lists them only after a login, or not for this user. That is normal if only clients have
    credentials."""


class Learner:
    """Calls `adopt` with the upstream's commands whenever they may have changed."""

    def __init__(
        self,
        upstream: Upstream,
        adopt: Callable[[object], None],
        on_failure: Callable[[CannotLearn], None] = lambda _reason: None,
    ) -> None:
        """`adopt` gets the raw reply: lists of bytes and integers. `on_failure` is called once per reason."""
        self.upstream = upstream
        self.failures = 0
        self._adopt = adopt
        self._on_failure = on_failure
        self._told: set[str] = set()
        self._wanted = asyncio.Event()

    async def learn(self) -> bool:
        """Ask once, and adopt the reply. Returns whether there was one; never raises."""
        self._wanted.clear()
        try:
            reply = await ask_for_commands(self.upstream)
        except CannotLearn as exc:
            self.failures += 1
            if str(exc) not in self._told and len(self._told) < 100:
                self._told.add(str(exc))
                self._on_failure(exc)
            return False
        self._adopt(reply)
        return True

    def upstream_changed(self, up: bool) -> None:
        """The upstream came back or went down."""
        if up:
            self._wanted.set()

    async def learn_forever(self) -> None:
        """Ask whenever the upstream has come back, and after a failure each RETRY_SECONDS."""
        known = self.failures == 0
        while True:
            try:
                async with asyncio.timeout(None if known else RETRY_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                if not self.upstream.up:
                    continue
            known = await self.learn()


async def ask_for_commands(upstream: Upstream) -> object:
    """The upstream's reply to COMMAND. Raises CannotLearn."""
    try:
        raw = await upstream.ask(upstream.address.greeting(), [COMMAND.request()], MAX_REPLY)
    except (OSError, GreetingError) as exc:
        raise CannotLearn(describe(exc)) from None
    return _decoded(raw)


def _decoded(raw: bytes) -> object:
    """Decode the single complete reply in `raw`. Raises CannotLearn."""
    reader = hiredis.Reader()
    reader.feed(raw)
    try:
        reply = reader.gets()
    except (hiredis.HiredisError, TypeError, ValueError) as exc:  # Python cannot hash some map keys
        raise CannotLearn(f"its answer is not RESP ({exc})") from None
    if isinstance(reply, hiredis.ReplyError):
        reason = str(reply)
        raise (NotAllowed if reason.startswith(("NOAUTH", "NOPERM")) else CannotLearn)(reason)
    if not isinstance(reply, list):
        raise CannotLearn("its answer is not a list")
    return cast(object, reply)
