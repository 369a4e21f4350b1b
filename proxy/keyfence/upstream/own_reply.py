"""Requests of keyfence's own on a shared connection.

Rule: the reply to such a request is keyfence's. It takes its place among the clients' replies as a client's
does, and no client gets it.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.resp.replies import ErrorPart

from .exchange import Share, Sharer


class OwnReply(Sharer):
    """The reply to one request of keyfence's own."""

    def __init__(self, answered: Callable[[bytes], None]) -> None:
        """`answered` gets the reply. It is not called if the connection is lost."""
        self._answered = answered
        self._reply = b""

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:  # noqa: ARG002
        self._reply += data
        if completed:
            self._answered(self._reply)

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:  # noqa: ARG002
        return data

    def shared_turn(self, link: Share) -> None:
        """It was taken in when it came."""

    def shared_lost(self, link: Share, reason: str) -> None:
        """The connection's clients are told, and the next one logs in anew."""
