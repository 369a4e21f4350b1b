"""Makes the PNG pictures of Chromium smaller: at most 256 colors, by a palette.

Rule: it needs the standard library only. The most frequent colors stay as they are; each other color becomes
the nearest of them.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLORS = 256
_CHANNELS = {2: 3, 6: 4}  # color type: bytes of a pixel


def reduced(png: bytes) -> bytes:
    """The picture with a palette. Raises ValueError unless it is an RGB picture of 8 bits, not interlaced."""
    width, height, size, data = _read(png)
    rows = list(_rows(data, width, height, size))
    counted: Counter[bytes] = Counter()
    for row in rows:
        counted.update(row[at : at + 3] for at in range(0, len(row), size))
    palette = [color for color, _ in counted.most_common(COLORS)]
    index = {color: number for number, color in enumerate(palette)}
    for color in counted:
        if color not in index:
            index[color] = min(range(COLORS), key=lambda number: _distance(palette[number], color))
    lines = (bytes([0, *(index[row[at : at + 3]] for at in range(0, len(row), size))]) for row in rows)
    parts = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", b"".join(palette)),
        _chunk(b"IDAT", zlib.compress(b"".join(lines), 9)),
        _chunk(b"IEND", b""),
    ]
    return SIGNATURE + b"".join(parts)


def _read(png: bytes) -> tuple[int, int, int, bytes]:
    """Width, height, bytes of a pixel, and the filtered rows."""
    if not png.startswith(SIGNATURE):
        raise ValueError("this is no PNG")
    at, data, header = len(SIGNATURE), b"", b""
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or color not in _CHANNELS or interlaced:
        raise ValueError("this is no RGB picture of 8 bits")
    return width, height, _CHANNELS[color], zlib.decompress(data)


def _rows(data: bytes, width: int, height: int, size: int) -> Iterator[bytes]:
    """The rows without their filters (RFC 2083, section 6)."""
    length = width * size
    before = bytearray(length)
    for number in range(height):
        start = number * (length + 1)
        row = bytearray(data[start + 1 : start + 1 + length])
        _unfilter(data[start], row, before, size)
        yield bytes(row)
        before = row


def _unfilter(kind: int, row: bytearray, before: bytearray, size: int) -> None:
    if kind == 1:
        for at in range(size, len(row)):
            row[at] = (row[at] + row[at - size]) & 255
    elif kind == 2:
        row[:] = bytes((one + up) & 255 for one, up in zip(row, before, strict=True))
    elif kind in (3, 4):
        for at, up in enumerate(before):
            left = row[at - size] if at >= size else 0
            corner = before[at - size] if at >= size else 0
            row[at] = (row[at] + ((left + up) // 2 if kind == 3 else _paeth(left, up, corner))) & 255


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    far_left, far_up, far_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    if far_left <= far_up and far_left <= far_corner:
        return left
    return up if far_up <= far_corner else corner


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
