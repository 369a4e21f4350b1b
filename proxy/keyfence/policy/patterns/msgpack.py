"""Checks for one well-formed MessagePack value (https://github.com/msgpack/msgpack/blob/master/spec.md).

Rule: each length is compared with the available bytes before it is used. The check builds no values and does
not recurse: it only counts the values that must still follow.
"""

from __future__ import annotations

# Values of a fixed size: how many bytes follow the first byte.
_FIXED = {
    0xCA: 4,  # float 32
    0xCB: 8,
    0xCC: 1,  # unsigned integers
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,  # signed integers
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,  # extensions of a fixed size, with their type
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
# Values with a length: how many bytes hold the length, and how many bytes follow in addition to that length.
_SIZED = {
    0xC4: (1, 0),  # binary
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),  # extensions, with their type
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),  # texts
    0xDA: (2, 0),
    0xDB: (4, 0),
}
# Containers: how many bytes hold the number of elements, and how many values make up one element.
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _whole(first: int) -> int:
    """The total length of a value with this first byte; 0 if more bytes are needed to know it."""
    if first in _FIXED:
        return 1 + _FIXED[first]
    if 0xA0 <= first <= 0xBF:
        return 1 + (first & 0x1F)
    return 0 if 0x80 <= first <= 0x9F or (0xC1 <= first < 0xE0 and first not in (0xC2, 0xC3)) else 1


_WHOLE = tuple(_whole(first) for first in range(256))


def is_msgpack(data: bytes) -> bool:
    """Whether `data` is exactly one value. Texts may hold any bytes, because older writers store binary data
    in them."""
    at, wanted, size = 0, 1, len(data)
    while wanted and at < size:
        first = data[at]
        wanted -= 1
        length = _WHOLE[first]
        if length:
            at += length
            continue
        at += 1
        if first <= 0x9F:
            wanted += (first & 0x0F) * (1 if first & 0x10 else 2)
        elif first in _SIZED:
            width, extra = _SIZED[first]
            at += width + extra + int.from_bytes(data[at : at + width], "big")
        elif first in _CONTAINERS:
            width, values = _CONTAINERS[first]
            wanted += values * int.from_bytes(data[at : at + width], "big")
            at += width
        else:
            return False
        if wanted > size - at:
            return False  # each value takes at least one byte
    return wanted == 0 and at == size
