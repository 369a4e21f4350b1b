"""Tells the requests that only read from all others.

Rule: a request is read by the reader that has read it before it was authorized. What is not surely a read is
none. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from keyfence.resp.limits import GIB, MAX_ARGUMENTS, ProtocolError, RequestLimits
from keyfence.resp.requests import RequestReader

_LIMITS = RequestLimits(max_arguments=max(MAX_ARGUMENTS, 1 << 30), max_request=GIB)


class Piece(NamedTuple):
    """Requests that stand together, and take the same connection."""

    data: bytes
    replies: int  # that they get
    reads: bool  # whether they only read


class Sorter:
    """Cuts admitted requests into pieces."""

    def __init__(self, reads: Collection[bytes]) -> None:
        """`reads`: the names of commands that only read."""
        self._reads = frozenset(reads)

    def pieces(self, data: bytes, count: int) -> list[Piece]:
        """The pieces of `count` requests. If one is MULTI, all of them stay together."""
        reader = RequestReader(_LIMITS)
        reader.feed(data)
        cuts: list[tuple[int, int, int, bool]] = []  # start, end, count, reads
        found = 0
        while (name := _next_name(reader)) is not None:
            if name == b"MULTI":
                break
            reads = name in self._reads
            found += 1
            if cuts and cuts[-1][3] is reads:
                start, _, before, _ = cuts[-1]
                cuts[-1] = (start, reader.end, before + 1, reads)
            else:
                cuts.append((reader.start, reader.end, 1, reads))
        if found != count:
            return [Piece(data, count, False)]
        if len(cuts) == 1:
            return [Piece(data, count, cuts[0][3])]
        return [Piece(reader.span(start, end), number, reads) for start, end, number, reads in cuts]


def _next_name(reader: RequestReader) -> bytes | None:
    """The name of the next request, in upper case; None: there is none."""
    if reader.peek():
        return reader.data()[reader.name_at : reader.name_end].upper()
    try:
        argv = reader.next()
    except ProtocolError:
        return None
    return bytes(argv[0]).upper() if argv else None
