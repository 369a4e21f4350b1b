"""Checks the permissions of keyfence's own Redis user by trying each of its commands once.

Rule: a trial changes nothing and reads no data. Only Redis' NOPERM counts as a missing permission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import hiredis

from .handshake import Greeting, GreetingError
from .health import Upstream, UpstreamAddress
from .own_commands import OWN_COMMANDS, OwnCommand
from .patience import at_most

MAX_REPLIES = 64 * 1024  # bytes of all replies together


async def missing_permissions(upstream: Upstream) -> list[OwnCommand] | None:
    """The commands that the upstream's user may not run, or None if the check fails now."""
    greeting = upstream.address.login()
    trial = _Trial(len(greeting), len(OWN_COMMANDS))
    try:
        async with at_most(upstream.connect_timeout):
            transport, _ = await upstream.attempt(lambda: trial)
            try:
                requests = (one.request(*one.trial) for one in OWN_COMMANDS)
                transport.write(b"".join([*greeting, *requests]))
                replies = await trial.replies
            finally:
                transport.abort()
    except OSError:
        return None
    if replies is None:
        return None
    return [one for one, reply in zip(OWN_COMMANDS, replies, strict=True) if _forbids(reply)]


def what_is_missing(address: UpstreamAddress, missing: Sequence[OwnCommand]) -> str:
    """One sentence for operators: the missing permissions, their effects, and the remedy."""
    user = address.username or "default"
    remedy = f"ACL SETUSER {user}" if address.login() else "give the upstream's URL a user with"
    effects = "; ".join(f"{one.name.decode()}: {one.without}" for one in missing)
    permissions = " ".join(one.permission for one in missing)
    return (
        f"the upstream's user {user} lacks {permissions} ({effects}): {remedy} {permissions} "
        "(`keyfence acl self` prints all that keyfence needs)"
    )


def _forbids(reply: object) -> bool:
    """Whether a reply says that the command is forbidden. A NOPERM about the trial's key does not count,
    because the user may have access to other keys."""
    text = str(reply)
    return isinstance(reply, hiredis.ReplyError) and text.startswith("NOPERM") and "command" in text


class _Trial(asyncio.Protocol):
    """Collects one reply for each command, or None if they do not come."""

    def __init__(self, greeting: int, expected: int) -> None:
        self.replies: asyncio.Future[list[object] | None] = asyncio.get_running_loop().create_future()
        self._greeting = Greeting(greeting)
        self._reader = hiredis.Reader()
        self._expected = expected
        self._room = MAX_REPLIES
        self._collected: list[object] = []

    def data_received(self, data: bytes) -> None:
        if self.replies.done():
            return
        self._room -= len(data)
        if self._room < 0:
            self.replies.set_result(None)
            return
        try:
            self._reader.feed(self._greeting.take(data))
            while (reply := self._reader.gets()) is not False:
                self._collected.append(reply)
        except (GreetingError, hiredis.HiredisError, TypeError, ValueError):
            self.replies.set_result(None)
            return
        if len(self._collected) >= self._expected:
            self.replies.set_result(self._collected[: self._expected])

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.replies.done():
            self.replies.set_result(None)
