"""Requests of keyfence's own between two of the client's, on the client's dedicated connection.

Rule: nothing is sent where Redis would not answer it as usual, and the client never sees the reply.
"""

from __future__ import annotations

from collections.abc import Callable

from .conversation import Conversation
from .reply_queue import ON
from .states import State


def ask_beside(conversation: Conversation, request: bytes, answered: Callable[[bytes], None]) -> bool:
    """Send a request, whatever replies are due; `answered` gets its reply. Returns False if that is not
    possible now: on a shared connection, inside MULTI, or if Redis would not answer as usual."""
    replies = conversation.replies
    can_ask = (
        conversation.state == State.READING
        and not conversation.route.is_shared
        and conversation.transaction is None
        and not conversation.partly_sent
        and not replies.closing
        and not conversation.is_subscriber
        and not replies.monitoring
        and replies.mode == ON
    )
    if can_ask:
        conversation.to_upstream.append(request)
        replies.drop(answered)
    return can_ask
