#!/usr/bin/env python3
"""Guided fuzzing of the reply framer: any bytes, in any pieces.

Rule: the ends of replies depend only on the bytes, not on their pieces or on whether the framer is compiled.
hiredis finds the end of a complete reply at the same byte.
"""

from __future__ import annotations

import hiredis
from harness import Choices, fuzz, instrumented, interpreted

with instrumented("keyfence.resp"):
    from keyfence.resp.replies import ReplyError, ReplyFramer

_interpreted = interpreted("keyfence.resp.replies")
Frames = tuple[list[tuple[int, bool, int]], bool, str]


def frames(framer: ReplyFramer, failure: type[Exception], pieces: list[bytes]) -> Frames:
    """Returns each frame's end, push flag and kind; whether the data ends between frames; the error or ""."""
    found: list[tuple[int, bool, int]] = []
    before = 0
    for piece in pieces:
        at = 0
        while at < len(piece):
            try:
                end = framer.advance(piece, at, 1, True)
            except failure as exc:
                return found, False, str(exc)
            assert at < end <= len(piece)
            at = end
            if framer.at_boundary:
                found.append((before + at, framer.push, framer.kind))
        before += len(piece)
    return found, framer.at_boundary, ""


def in_one_go(data: bytes, replies: int) -> tuple[int, int] | None:
    framer = ReplyFramer()
    try:
        return framer.advance(data, 0, replies), framer.completed
    except ReplyError:
        return None


def check(data: bytes) -> None:
    """Checks the framer's ends of replies against other pieces, the interpreted framer and hiredis."""
    pieces = Choices(data).pieces()
    whole = b"".join(pieces)
    found, between, error = frames(ReplyFramer(), ReplyError, pieces)
    assert frames(ReplyFramer(), ReplyError, [whole])[:2] == (found, between)
    assert frames(_interpreted.ReplyFramer(), _interpreted.ReplyError, pieces) == (found, between, error)
    replies = [end for end, push, _ in found if not push]
    if replies:
        assert in_one_go(whole, len(replies)) == (replies[-1], len(replies))
    hiredis_agrees(whole, [end for end, _, _ in found])


def hiredis_agrees(data: bytes, ends: list[int]) -> None:
    """Checks that hiredis reads each frame as a whole reply, up to the first content that it rejects.

    `gets` returns False for an incomplete reply, and for a false Boolean: #f, #F and, in hiredis 3.5.0, a NUL
    byte. An attribute alone is no reply to hiredis.
    """
    if b"=" in data:
        return  # hiredis 3.5.0 reads some bytes beyond a verbatim string's end
    reader = hiredis.Reader()
    start = 0
    for end in ends:
        reader.feed(data[start:end])
        try:
            if reader.gets() is False and not data[start:end].startswith((b"#", b"|")):
                raise AssertionError(f"hiredis wants more than {data[start:end]!r}")
        except (hiredis.ProtocolError, TypeError):  # TypeError: Python cannot hash a map's key
            return
        start = end


if __name__ == "__main__":
    fuzz(check)
