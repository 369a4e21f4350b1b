"""A complete reply as the tree of its frames, each with its place in the bytes.

Rule: nothing is copied and nothing is checked but the structure, so a reply can be sent on with a few frames
replaced and all others as they are.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_DEPTH = 8  # of the replies that are read like this
_BULKS = b"$=!"
_LISTS = b"*~>"
_PAIRS = b"%|"


class FrameError(Exception):
    """The bytes are not one reply of a kind that is read here."""


class Frame(NamedTuple):
    """A frame: `data[begin:end]`. `text` is the content of a frame without items; None is null."""

    kind: int
    begin: int
    end: int
    text: bytes | None
    items: tuple[Frame, ...] = ()


def tree(data: bytes) -> Frame:
    """Returns a reply as a tree. Raises FrameError."""
    try:
        frame = _frame(data, 0, MAX_DEPTH)
    except ValueError:
        raise FrameError("a number is no number, or a line has no end") from None
    if frame.end != len(data):
        raise FrameError("it ends elsewhere than its last frame")
    return frame


def _frame(data: bytes, begin: int, depth: int) -> Frame:
    line_end = data.index(b"\r\n", begin + 1)
    kind = data[begin]
    end = line_end + 2
    line = data[begin + 1 : line_end]
    if kind in _BULKS:
        size = int(line)
        stop = end + size
        if size < 0:
            return Frame(kind, begin, end, None)
        if data[stop : stop + 2] != b"\r\n":
            raise FrameError("a string has no end")
        return Frame(kind, begin, stop + 2, data[end:stop])
    if kind not in _LISTS and kind not in _PAIRS:
        return Frame(kind, begin, end, None if kind == ord("_") else line)
    count = int(line) * (2 if kind in _PAIRS else 1)
    if count < 0:
        return Frame(kind, begin, end, None)
    if not depth:
        raise FrameError(f"it is nested deeper than {MAX_DEPTH}")
    items = []
    for _ in range(count):
        items.append(frame := _frame(data, end, depth - 1))
        end = frame.end
    return Frame(kind, begin, end, None, tuple(items))
