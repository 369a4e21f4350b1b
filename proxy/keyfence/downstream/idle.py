"""Clients that keep a connection and make no use of it.

Rule: who waits for something isn't idle, and nobody answers for a delay that is keyfence's or Redis'.

One look at all clients each second or so, in place of a timer for each: what a client does costs it an
attribute. So a limit is kept to within one look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from keyfence.config.limits import ClientLimits

LONGEST_INTERVAL = 1.0  # seconds between two looks
SHORTEST_INTERVAL = 0.02


class Watched(Protocol):
    """What is looked at in a client; times are the loop's."""

    active: bool
    idle_since: float
    partial_since: float

    @property
    def waits(self) -> bool: ...
    @property
    def holds_back(self) -> bool: ...
    def give_up(self, reason: str) -> None: ...


def interval(limits: ClientLimits) -> float:
    """Seconds until the next look."""
    quarters = [limit / 4 for limit in (limits.idle, limits.request_time) if limit]
    return max(min([*quarters, LONGEST_INTERVAL]), SHORTEST_INTERVAL)


def look(clients: Iterable[Watched], limits: ClientLimits, now: float) -> None:
    """End those who have been idle too long, or take too long over a request."""
    if not limits.idle and not limits.request_time:
        return
    for client in list(clients):
        if client.active or client.waits:
            client.active = False
            client.idle_since = now
        elif limits.idle and now - client.idle_since >= limits.idle:
            client.give_up("idle")
            continue
        if limits.request_time and client.partial_since:
            if client.holds_back:
                client.partial_since = now
            elif now - client.partial_since >= limits.request_time:
                client.give_up("request_time")
