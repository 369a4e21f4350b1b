"""How a process takes leave of its clients.

Rule: whoever has sent a command that is on its way to Redis gets the answer, until the deadline; a command
that gets no answer has run nowhere, but for those that the deadline cuts off.

A client is closed once nothing is awaited for it and no MULTI of its own is open. For a first moment that is
done right behind an answer only, when the client can't have sent its next command unless it pipelines; then
also with those that stay silent, and no further requests are read, so that a client which never stops comes
to its end as well. What remains until the deadline is blocked (BLPOP), in a transaction, or doesn't read.
"""

from __future__ import annotations

import asyncio

from .client import ServerContext

DRAIN_SECONDS = 5.0
# While this lasts, clients that are between two commands are only closed behind the second one's answer.
COURTESY_SECONDS = 0.15
POLL_SECONDS = 0.02


async def drain(gate: ServerContext, seconds: float, at_once: asyncio.Event | None = None) -> None:
    """Close every client of the process, in `seconds` at most; `at_once` ends the patience. The listeners
    must be closed already."""
    loop = asyncio.get_running_loop()
    gate.draining = True
    begun = loop.time()
    while seconds > 0 and loop.time() < begun + seconds and not (at_once is not None and at_once.is_set()):
        # Connections that were accepted just before the listeners closed come in with the loop's next turns.
        await asyncio.sleep(POLL_SECONDS)
        if loop.time() >= begun + min(COURTESY_SECONDS, seconds / 2):
            _dismiss_idle(gate)
            if not gate.clients:
                break
    for client in list(gate.clients):
        client.abort()
    await asyncio.sleep(0)  # transports tell their end in the next turn


def _dismiss_idle(gate: ServerContext) -> None:
    gate.reads_on = False
    for client in list(gate.clients):
        if client.is_idle:
            client.dismiss()
        else:
            client.stop_reading()
