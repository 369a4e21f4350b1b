# cython: annotation_typing=False
"""Who a client is: all that the owner of its connection, and a session that reads nothing, know of it.

Rule: the service is a plain attribute, so that compiled modules reach it without a look-up by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.resp.replies import ErrorPart


class Identity:
    """Who a client is."""

    def __init__(self, service: str) -> None:
        self.service = service  # the client's service

    def errors_came(self, data: bytes, errors: Sequence[ErrorPart], at: int) -> bytes:
        """A part of the bytes from Redis for this client has noted errors. `data` began at `at` of the bytes
        in which these were found. Returns the bytes that the client gets in place of `data`."""
        del errors, at  # a client whose replies are not read has none
        return data

    def hides_notice(self, word: bytes) -> bool:
        """Redis sends a notice that begins with this word, one of `commands.addresses.NOTICE_WORDS`. Returns
        whether the client must not get it."""
        del word  # a client whose replies are not read gets all
        return False

    @property
    def can_move(self) -> bool:
        """Whether the client can follow a MOVING that names no address."""
        return False

    def leave(self) -> None:
        """The client has gone."""
