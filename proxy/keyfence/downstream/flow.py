# cython: annotation_typing=False
"""The flow control between a client and Redis.

Rule: a side that reads too slowly pauses the reading from the other side, so that no buffer exceeds its
limit.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum

from keyfence.session.conversation.conversation import Conversation
from keyfence.upstream.links import Links

# The bytes that may be received while a request waits for its connection to open.
MAX_UNSENT = 1024 * 1024
_MAX_UNSENT = MAX_UNSENT  # as a C integer when compiled
# While a client does not read, keyfence does not read from the client's dedicated connection either, so that
# the rest of a large reply waits in Redis. With more than this number of replies due it keeps reading, so
# that the output limit applies.
MOST_LEFT_WAITING = 64


class Leaving(IntEnum):
    """How a client is to leave when the process ends. Compiled modules use these as C integers."""

    NOT = 0
    AFTER_REPLY = 1  # right after a reply, when no other is due
    AT_REST = 2  # as soon as no reply is due; no more of its requests are read


_AT_REST = int(Leaving.AT_REST)


class Flow:
    """Which side of one client is full, and which side is read."""

    def __init__(self) -> None:
        self.is_reading = True  # from the client
        self.leaving = 0  # a `Leaving`
        self.is_full = False  # whether the client reads too slowly …
        self.upstream_is_paused = False  # … so that its dedicated connection is not read
        self.upstream_is_full = False  # whether Redis reads too slowly

    def settle_reading(self, transport: asyncio.Transport, conversation: Conversation, links: Links) -> None:
        """Read from the client only while its requests can be sent. Of a client that leaves when it is at
        rest, only a transaction is still read."""
        wanted = conversation.wants_input() and not self.upstream_is_full and links.unsent() < _MAX_UNSENT
        # Replies on a shared connection cannot be paused, so no more requests are read.
        wanted = wanted and not (self.is_full and conversation.route.is_shared)
        wanted = wanted and (self.leaving != _AT_REST or conversation.in_transaction)
        if wanted != self.is_reading and not transport.is_closing():
            self.is_reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def read_on(self, transport: asyncio.Transport) -> None:
        """Read from the client, whatever its requests wait for."""
        if not self.is_reading and not transport.is_closing():
            self.is_reading = True
            transport.resume_reading()

    def settle_upstream(self, conversation: Conversation, links: Links) -> None:
        """Read from the client's dedicated connection only while the client reads, if that is possible."""
        paused = self.is_full and conversation.outstanding <= MOST_LEFT_WAITING
        if paused != self.upstream_is_paused:
            self.upstream_is_paused = paused
            if paused:
                links.pause()
            else:
                links.resume()
