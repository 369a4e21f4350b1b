"""Maintenance notifications: pushes that tell a client what happens to its connection.

Rule: no notice names an address. A client connects again to the address that it was given.

Redis Enterprise and Redis Cloud send them to clients that ask for them with CLIENT MAINT_NOTIFICATIONS (RESP3
only). Each has a number, by which a client recognizes a notice that came on several of its connections.
https://redis.io/docs/latest/develop/clients/sch/ says what clients do; `_parsers/base.py` of redis-py and
`enterprise-maintenance-manager.ts` of node-redis say which form they read.
"""

from __future__ import annotations

import time

# Which shards are concerned. keyfence has one for its clients. Lettuce reads a bulk string.
_SHARDS = b'$5\r\n["1"]\r\n'


def new_number() -> int:
    """A number for a notice. It grows, and differs between processes that follow each other."""
    return time.time_ns() // 1_000_000


def moving(number: int, seconds: int) -> bytes:
    """The connection ends in this number of seconds. The client should connect again before."""
    return b">4\r\n$6\r\nMOVING\r\n:%d\r\n:%d\r\n_\r\n" % (number, seconds)


def failing_over(number: int, seconds: int) -> bytes:
    """Replies may take up to this number of seconds longer, because another node becomes the primary."""
    return b">4\r\n$12\r\nFAILING_OVER\r\n:%d\r\n:%d\r\n%b" % (number, seconds, _SHARDS)


def failed_over(number: int) -> bytes:
    """What `failing_over` has announced is over."""
    return b">3\r\n$11\r\nFAILED_OVER\r\n:%d\r\n%b" % (number, _SHARDS)
