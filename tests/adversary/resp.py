"""A strict reader of RESP2 and RESP3, independent of keyfence's.

Rule: it accepts exactly what the specification says, at any depth of nesting. Some client would read any
other bytes differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LINE = re.compile(rb"[^\r\n]*\r\n")
_OF_LINES = {
    b"+"[0]: re.compile(rb"[^\r\n]*"),
    b"-"[0]: re.compile(rb"[^\r\n]*"),
    b":"[0]: re.compile(rb"[+-]?\d{1,19}"),
    b"_"[0]: re.compile(rb""),
    b"#"[0]: re.compile(rb"[tf]"),
    b","[0]: re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?|-?inf|-?nan"),
    b"("[0]: re.compile(rb"[+-]?\d+"),
}
_BULKS = b"$!="
_AGGREGATES = {b"*"[0]: 1, b"~"[0]: 1, b">"[0]: 1, b"%"[0]: 2, b"|"[0]: 2}
_LENGTH = re.compile(rb"0|[1-9]\d{0,17}")
_PUSH, _ATTRIBUTE = b">"[0], b"|"[0]
_LONGEST_LINE = 1 << 20


class BrokenReply(Exception):
    """The bytes are not RESP."""


class Frames:
    """Cuts a stream into its top-level frames."""

    def __init__(self) -> None:
        self.rest = b""  # the received part of an incomplete frame
        self.broken: BrokenReply | None = None  # set if the bytes after the frames so far are not a frame

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the complete frames."""
        data = self.rest + data
        frames, at = [], 0
        try:
            while self.broken is None and (end := frame_end(data, at)) is not None:
                frames.append(data[at:end])
                at = end
        except BrokenReply as exc:
            self.broken = exc
        self.rest = data[at:]
        return frames


def frame_end(data: bytes, at: int = 0) -> int | None:
    """Returns the end of the frame that begins here; None if it is incomplete. Raises BrokenReply."""
    open_ones: list[
        tuple[int, bool]
    ] = []  # missing frames of each open aggregate, and whether it is an attribute
    while at < len(data):
        kind = data[at]
        line = _LINE.match(data, at + 1)
        if line is None:
            _must_be_whole_line(data, at + 1)
            return None
        text, after = data[at + 1 : line.end() - 2], line.end()
        if (form := _OF_LINES.get(kind)) is not None:
            if not form.fullmatch(text):
                raise BrokenReply(f"{data[at:after]!r}")
        elif kind in _BULKS:
            length = _length(text, nullable=kind == b"$"[0])
            if length >= 0:
                after += length + 2
                if after > len(data):
                    return None
                if data[after - 2 : after] != b"\r\n":
                    raise BrokenReply(f"no CRLF behind {data[at : at + 60]!r}")
        elif (times := _AGGREGATES.get(kind)) is not None:
            if kind == _PUSH and open_ones:
                raise BrokenReply("a push inside of a reply")
            count = _length(text, nullable=kind == b"*"[0]) * times
            at = after
            if count > 0:
                open_ones.append((count, kind == _ATTRIBUTE))
                continue
            if kind == _ATTRIBUTE:
                continue
        else:
            raise BrokenReply(f"no type begins so: {data[at : at + 60]!r}")
        at = after
        if _close(open_ones):
            return at
    return None


def _close(open_ones: list[tuple[int, bool]]) -> bool:
    """Counts a finished frame. Returns whether it also finishes the outermost one."""
    while open_ones:
        left, is_attribute = open_ones.pop()
        if left > 1:
            open_ones.append((left - 1, is_attribute))
            return False
        if is_attribute:
            return False  # the attribute's own frame is still missing
    return True


def _must_be_whole_line(data: bytes, at: int) -> None:
    rest = data[at : at + _LONGEST_LINE]
    if re.search(rb"\n|\r(?!\n|\Z)", rest) or len(rest) == _LONGEST_LINE:
        raise BrokenReply(f"a line with more than its end in it: {rest[:60]!r}")


def _length(text: bytes, *, nullable: bool) -> int:
    if nullable and text == b"-1":
        return -1
    if not _LENGTH.fullmatch(text):
        raise BrokenReply(f"no length: {text[:60]!r}")
    return int(text)


def is_push(frame: bytes) -> bool:
    return frame[0] == _PUSH


def command(*words: str | bytes | int) -> bytes:
    """Returns a request as bytes."""
    return requests([words])


def requests(argvs: Sequence[Sequence[str | bytes | int]]) -> bytes:
    """Returns several requests as one piece."""
    parts = []
    for argv in argvs:
        parts.append(b"*%d\r\n" % len(argv))
        for word in argv:
            raw = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)
