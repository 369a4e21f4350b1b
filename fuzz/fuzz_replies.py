#!/usr/bin/env python3
"""Guided fuzzing of the reply framer: any bytes, in any pieces.

Rule: the ends of replies depend only on the bytes, not on their pieces or on whether the framer is compiled.
A complete reply ends at the same byte for hiredis.
"""

from __future__ import annotations

import hiredis
from harness import Choices, fuzz, instrumented, interpreted

with instrumented("keyfence.resp"):
    from keyfence.resp.replies import ReplyError, ReplyFramer

_interpreted = interpreted("keyfence.resp.replies")
Frames = tuple[list[tuple[int, bool, int]], bool, str]


def frames(framer: ReplyFramer, failure: type[Exception], pieces: list[bytes]) -> Frames:
    """Where each frame ends, whether it is a push, and its kind; whether it ends between two; the error."""
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
    """What must hold of every input."""
    pieces = Choices(data).pieces()
    whole = b"".join(pieces)
    found, between, error = frames(ReplyFramer(), ReplyError, pieces)
    assert frames(ReplyFramer(), ReplyError, [whole])[:2] == (found, between)
    assert frames(_interpreted.ReplyFramer(), _interpreted.ReplyError, pieces) == (found, between, error)
    answers = [end for end, push, _ in found if not push]
    if answers:
        assert in_one_go(whole, len(answers)) == (answers[-1], len(answers))
    hiredis_agrees(whole, [end for end, _, _ in found])


def hiredis_agrees(data: bytes, ends: list[int]) -> None:
    """A frame is a whole reply to hiredis too, unless it finds a fault with what the frame holds."""
    if b"=" in data:
        return  # hiredis 3.5.0 reads some bytes beyond a verbatim string's end
    reader = hiredis.Reader()
    start = 0
    for end in ends:
        reader.feed(data[start:end])
        try:
            if reader.gets() is False and not data[start:end].startswith((b"#f", b"|")):
                raise AssertionError(f"hiredis wants more than {data[start:end]!r}")
        except (hiredis.ProtocolError, TypeError):  # a map may have keys that Python can't hash
            return
        start = end


if __name__ == "__main__":
    fuzz(check)
