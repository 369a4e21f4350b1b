"""Plays the demo's traffic: one connection for each service, and the outcome of each command.

Rule: a refusal is an outcome like any other. Only a connection that breaks ends the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import redis.asyncio
from redis.exceptions import NoPermissionError, RedisError

from .traffic import Step

CLIENT_TIMEOUT = 10.0  # seconds


class DemoError(Exception):
    """The demo cannot be played. The message is one line for the user."""


class Outcome(NamedTuple):
    """The reply that a client got for a step."""

    step: Step
    got: str  # "OK", or the error line
    passed: bool  # whether keyfence let the command through, even if Redis answered with an error


def heed_cancellation() -> None:
    """Raises CancelledError if this task was cancelled, and a library that it awaited swallowed that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@dataclasses.dataclass
class Player:
    """One connection per service, and the outcome of each command."""

    clients: dict[str, redis.asyncio.Redis]
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)

    async def play(self, steps: Iterable[Step], pause: float = 0.0) -> None:
        """Send the commands in their order, with a pause (in seconds) after each. Raises DemoError."""
        for step in steps:
            reply = await self._send(step)
            heed_cancellation()
            if step.argv[0] == "XREADGROUP" and isinstance(reply, list):
                for ids in (tuple(item_id.decode() for item_id, _ in items) for _, items in reply):
                    group, stream = step.argv[2], step.argv[-2]
                    await self._send(Step(step.service, ("XACK", stream, group, *ids)))
            if pause:
                await asyncio.sleep(pause)

    async def _send(self, step: Step) -> Any:
        try:
            reply = await self.ask(step.service, *step.argv)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as exc:
            raise DemoError(f"{step.service}'s connection broke at {step.text}: {exc}") from None
        except RedisError as exc:
            refused = isinstance(exc, NoPermissionError)
            # redis-py removes the error code from the message.
            line = f"NOPERM {exc}" if refused else str(exc)
            self.outcomes.append(Outcome(step, line, not refused))
            return None
        self.outcomes.append(Outcome(step, "OK", True))
        return reply

    async def answered(self, service: str, *argv: str) -> Any:
        """Returns a reply, None if it is an error. Raises DemoError if there is no reply."""
        try:
            return await self.ask(service, *argv)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as exc:
            raise DemoError(f"{service}'s listener does not answer: {exc}") from None
        except RedisError:
            return None

    async def ask(self, service: str, *argv: str) -> Any:
        return await self.clients[service].execute_command(*argv)  # type: ignore[no-untyped-call]


@contextlib.asynccontextmanager
async def connected(addresses: dict[str, tuple[str, int]]) -> AsyncIterator[Player]:
    """Yields a player whose clients connect to these addresses."""
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for service, (host, port) in addresses.items():
            client = redis.asyncio.Redis(
                host=host,
                port=port,
                protocol=2,
                single_connection_client=True,
                socket_timeout=CLIENT_TIMEOUT,
                socket_connect_timeout=CLIENT_TIMEOUT,
            )
            stack.push_async_callback(client.aclose)
            clients[service] = client
        yield Player(clients)
