#!/usr/bin/env python3
"""Guided fuzzing of the request reader: any bytes, in any pieces.

Rule: the requests depend only on the bytes, not on their pieces or on whether the reader is compiled. The
joined spans of the requests and the unread rest are the bytes that were fed.
"""

from __future__ import annotations

from harness import Choices, fuzz, instrumented, interpreted

with instrumented("keyfence.resp"):
    from keyfence.resp import encode
    from keyfence.resp.limits import IDENTIFIED, UNIDENTIFIED, ProtocolError, RequestLimits
    from keyfence.resp.requests import RequestReader

Interpreted = interpreted("keyfence.resp.requests").RequestReader
LIMITS = [
    IDENTIFIED,
    UNIDENTIFIED,
    RequestLimits(max_arguments=4, max_bulk=20, max_inline=32, max_request=64),
    RequestLimits(max_inline=24, max_request=1024),  # longer than the longest header that `peek` reads
]
Reading = tuple[list[tuple[list[bytes], bytes]], str, bytes]


def read(reader: RequestReader, pieces: list[bytes]) -> Reading:
    """Reads the pieces. Returns the requests with their bytes, the error, and the unread rest."""
    requests: list[tuple[list[bytes], bytes]] = []
    error = ""
    for piece in pieces:
        reader.feed(piece)
        try:
            while (argv := reader.next()) is not None:
                requests.append((argv, reader.span(reader.start, reader.end)))
        except ProtocolError as exc:
            error = f"{type(exc).__name__}: {exc}"
    pending = reader.pending()
    rest = reader.rest()
    assert len(rest) == pending
    assert reader.pending() == 0
    return requests, error, rest


def check(data: bytes) -> None:
    """Checks what the reader returns against other pieces, the interpreted reader and the encoder."""
    choices = Choices(data)
    limits = LIMITS[choices.number() % len(LIMITS)]
    pieces = choices.pieces()
    whole = b"".join(pieces)
    requests, error, rest = read(RequestReader(limits), pieces)
    assert b"".join(span for _, span in requests) + rest == whole
    assert read(RequestReader(limits), [whole]) == (requests, error, rest)
    assert read(Interpreted(limits), pieces) == (requests, error, rest)
    for argv, span in requests:
        assert len(argv) <= limits.max_arguments or not span.startswith(b"*")
        if span.startswith(b"*") and argv:
            assert len(span) <= limits.max_request + 2
            if span.startswith(b"*%d\r\n" % len(argv)):
                assert encode.command(*argv) == span, "not the canonical encoding"


if __name__ == "__main__":
    fuzz(check)
