"""Closes all clients when a process ends.

Rule: until the deadline, a client gets the reply to every command that is on its way to Redis. A command
without a reply has not run, except for commands that the deadline cuts off.

A client is closed when no reply is due and it has no open MULTI. At first, a client is closed only right
after a reply, because then it cannot have sent its next command unless it pipelines. Later, silent clients
are closed too, and no requests are read, so that clients that never pause also end. Clients that remain until
the deadline are blocked (BLPOP), in a transaction, or do not read.
"""

from __future__ import annotations

import asyncio

from .client import ServerContext

DRAIN_SECONDS = 5.0
# During this time, clients are only closed right after a reply.
COURTESY_SECONDS = 0.15
POLL_SECONDS = 0.02


async def drain(context: ServerContext, seconds: float, at_once: asyncio.Event | None = None) -> None:
    """Close all clients of the process, in at most `seconds`. Setting `at_once` skips the wait.

    The listeners must be closed already.
    """
    loop = asyncio.get_running_loop()
    context.draining = True
    begun = loop.time()
    while seconds > 0 and loop.time() < begun + seconds and not (at_once is not None and at_once.is_set()):
        # Connections accepted just before the listeners closed become clients in the next turns of the loop.
        await asyncio.sleep(POLL_SECONDS)
        if loop.time() >= begun + min(COURTESY_SECONDS, seconds / 2):
            _dismiss_idle(context)
            if not context.clients:
                break
    for client in list(context.clients):
        client.abort()
    await asyncio.sleep(0)  # transports call `connection_lost` in the next turn


def _dismiss_idle(context: ServerContext) -> None:
    context.reads_on = False
    for client in list(context.clients):
        if client.is_idle:
            client.dismiss()
        else:
            client.stop_reading()
