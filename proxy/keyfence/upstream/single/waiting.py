"""The requests of one client that wait for their nodes, and the pieces of those that are too long to be held.

Rule: a request is read by the reader that has read it before it was authorized. No I/O.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyfence.resp.requests import RequestReader

from .cutting import LIMITS, NO_SLOT, arguments, leading_arguments, slot_of

_TRANSACTIONS = (b"MULTI", b"EXEC", b"DISCARD")


class Request(NamedTuple):
    """A request, or a piece of a long one."""

    data: bytes
    name: bytes  # of the command, in upper case; b"": it is no array of bulk strings
    slot: int  # hash slot of its first key
    begins: bool = True
    ends: bool = True
    is_bare: bool = True  # it has no arguments

    @property
    def is_whole(self) -> bool:
        return self.begins and self.ends


def refused_request(request: bytes, slot: int) -> Request:
    """A request that is sent again. Its name says what it leaves behind at its node."""
    return Request(request, bytes(arguments(request)[0]).upper(), slot)


class Waiting:
    """They wait in the client's order."""

    def __init__(self) -> None:
        self.size = 0  # bytes of all that waits
        self.is_within = False  # the beginning of a long request has come, and its end has not
        self._reader = RequestReader(LIMITS)
        self._waiting: deque[Request] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first(self) -> Request:
        return self._waiting[0]

    def take(self) -> Request:
        """The first one, which waits no longer."""
        request = self._waiting.popleft()
        self.size -= len(request.data)
        return request

    def put_back(self, requests: Sequence[Request]) -> None:
        """These come before all others."""
        self._waiting.extendleft(reversed(requests))
        self.size += sum(len(one.data) for one in requests)

    def add(self, chunk: bytes) -> None:
        """What these bytes complete comes behind all others."""
        for request in self._read(chunk):
            self._waiting.append(request)
            self.size += len(request.data)

    def slot_within(self) -> int:
        """The hash slot of the first key of the transaction that the first one begins, as far as that has
        come; NO_SLOT: there is none."""
        for request in itertools.islice(self._waiting, 1, None):
            if request.slot != NO_SLOT or request.name in _TRANSACTIONS:
                return request.slot
        return NO_SLOT

    def _read(self, chunk: bytes) -> Iterator[Request]:
        reader = self._reader
        reader.feed(bytes(chunk))  # the beginning of a large request may be a bytearray
        while True:
            argv = reader.next()
            if argv is not None:
                data = reader.span(reader.start, reader.end)
                if self.is_within:
                    self.is_within = False
                    yield Request(data, b"", NO_SLOT, begins=False)
                elif argv:
                    yield Request(data, bytes(argv[0]).upper(), slot_of(argv), is_bare=len(argv) == 1)
            elif reader.is_large:
                begins, self.is_within = not self.is_within, True
                data = reader.take_partial()
                known = leading_arguments(data) if begins else []
                yield Request(data, b"", slot_of(known) if known else NO_SLOT, begins=begins, ends=False)
                if reader.is_large:
                    return
            else:
                return
