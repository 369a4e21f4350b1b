"""The requests of one client on its own connections, and the pieces of those that are too long to be held.

Rule: a request is read by the reader that has read it before it was authorized. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from keyfence.resp.limits import ProtocolError
from keyfence.resp.requests import RequestReader

from .cutting import LIMITS, NO_SLOT, arguments, leading_arguments, slot_of


class Part(NamedTuple):
    """A request, or a piece of a long one."""

    data: bytes
    name: bytes  # of the command, in upper case; b"": it is no array of bulk strings
    slot: int  # hash slot of its first key
    begins: bool = True
    ends: bool = True
    is_bare: bool = True  # it has no arguments


def whole_part(request: bytes, slot: int) -> Part:
    """A request that is sent again. Its name says what it leaves behind at its node."""
    return Part(request, bytes(arguments(request)[0]).upper(), slot)


class Parts:
    """Reads them from the bytes that are to be sent."""

    def __init__(self) -> None:
        self._reader = RequestReader(LIMITS)
        self.is_within = False  # the beginning of a long request has come, and its end has not
        self.is_unread = False  # bytes have come that are no request: the client passes unread

    def read(self, chunk: bytes) -> Iterator[Part]:
        """What these bytes complete."""
        reader = self._reader
        reader.feed(chunk)
        while True:
            try:
                argv = reader.next()
            except ProtocolError:
                self.is_unread = True
                yield Part(reader.rest(), b"", NO_SLOT)
                return
            if argv is not None:
                data = reader.span(reader.start, reader.end)
                if self.is_within:
                    self.is_within = False
                    yield Part(data, b"", NO_SLOT, begins=False)
                elif argv:
                    yield Part(data, bytes(argv[0]).upper(), slot_of(argv), is_bare=len(argv) == 1)
            elif reader.is_large:
                begins, self.is_within = not self.is_within, True
                data = reader.take_partial()
                known = leading_arguments(data) if begins else []
                yield Part(data, b"", slot_of(known) if known else NO_SLOT, begins=begins, ends=False)
                if reader.is_large:
                    return
            else:
                return
