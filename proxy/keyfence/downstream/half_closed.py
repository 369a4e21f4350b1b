"""A client that has sent its last byte, and waits for its last replies.

Rule: Redis learns that no more requests come as soon as all are sent. It then answers those that it has read,
but ends a blocked BLPOP, which would otherwise take an element for a client that has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keyfence.session.conversation.conversation import Conversation
from keyfence.upstream.links import Links

# How long such a client may wait, if Redis cannot be told that it sends no more.
LINGER_SECONDS = 5.0


class HalfClosed:
    """Passes the end of one client's requests on to Redis, and limits the client's wait."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        """`give_up` is called if the client has waited too long."""
        self._give_up = give_up
        self._wait: asyncio.TimerHandle | None = None

    def pass_end(self, conversation: Conversation, links: Links) -> None:
        """Tell Redis, once all requests are sent. Until then, the client's wait is limited."""
        if not conversation.holds_back and links.end():
            self.stop()
        elif self._wait is None and not conversation.wants_turn:
            self._wait = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._give_up)

    def stop(self) -> None:
        """Limit the wait no longer."""
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
