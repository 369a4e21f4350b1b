"""Closes idle clients, clients that take too long to send a request, and those that do not read their last
replies.

Rule: a client that waits for a reply is not idle, and clients are not charged for delays of keyfence or
Redis.

All clients are checked about once a second, instead of with a timer for each: activity only sets an
attribute. So a limit is exact to within one check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from keyfence.config.limits import ClientLimits
from keyfence.net.closures import IDLE, REQUEST_TIME, Closure

LONGEST_INTERVAL = 1.0  # seconds between two checks
SHORTEST_INTERVAL = 0.02


class Watched(Protocol):
    """The attributes of a client that are checked. Times are those of the loop."""

    active: bool
    idle_since: float
    partial_since: float

    @property
    def waits(self) -> bool: ...
    @property
    def holds_back(self) -> bool: ...
    def leaves(self, now: float) -> bool: ...
    def give_up(self, why: Closure) -> None: ...


def interval(limits: ClientLimits) -> float:
    """Seconds until the next check."""
    quarters = [limit / 4 for limit in (limits.idle, limits.request_time) if limit]
    return max(min([*quarters, LONGEST_INTERVAL]), SHORTEST_INTERVAL)


def look(clients: Iterable[Watched], limits: ClientLimits, now: float) -> None:
    """Note which clients are idle. Close those that have been so too long, or take too long to send a
    request."""
    for client in list(clients):
        if client.leaves(now):
            continue
        if client.active or (limits.idle and client.waits):
            client.active = False
            client.idle_since = now
        elif limits.idle and now - client.idle_since >= limits.idle:
            client.give_up(IDLE)
            continue
        if limits.request_time and client.partial_since:
            if client.holds_back:
                client.partial_since = now
            elif now - client.partial_since >= limits.request_time:
                client.give_up(REQUEST_TIME)
