# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Redis Cluster's hash slots.

Rule: as in the cluster specification: CRC16 (XMODEM) of the key, or of the text in its first `{…}` if that is
not empty, modulo 16384.

All indexes are in bounds: callers pass spans within `data`.
"""

from __future__ import annotations

from array import array
from binascii import crc_hqx

SLOTS = 16384
_SLOTS = SLOTS  # as a C integer when compiled
_OPEN, _CLOSE = 123, 125
# The CRC of each byte, then that of each byte with one zero byte behind it, with two, and with three. So four
# bytes are taken in at once: the CRC of all is that of each of them, with as many bytes behind it.
_CRC = array("H", [crc_hqx(bytes([byte]) + bytes(behind), 0) for behind in range(4) for byte in range(256)])


def hash_tag(key: bytes) -> bytes:
    """Returns the part of the key that decides its hash slot (Redis `cluster.c`, keyHashSlot)."""
    begin = key.find(b"{")
    if begin < 0:
        return key
    end = key.find(b"}", begin + 1)
    return key if end <= begin + 1 else key[begin + 1 : end]


def hash_slot(key: bytes) -> int:
    return crc_hqx(hash_tag(key), 0) % SLOTS


def slot_in(data: bytes, start: int, end: int) -> int:
    """The hash slot of the key `data[start:end]`; no object is made."""
    raw = data
    begin = start
    while begin < end and raw[begin] != _OPEN:
        begin += 1
    stop = begin + 1
    while stop < end and raw[stop] != _CLOSE:
        stop += 1
    if stop < end and stop > begin + 1:
        start = begin + 1
        end = stop
    crc = 0
    at = start
    while at + 4 <= end:
        crc = (
            _CRC[768 + ((crc >> 8) ^ raw[at])]
            ^ _CRC[512 + ((crc & 0xFF) ^ raw[at + 1])]
            ^ _CRC[256 + raw[at + 2]]
            ^ _CRC[raw[at + 3]]
        )
        at += 4
    while at < end:
        crc = ((crc << 8) & 0xFF00) ^ _CRC[(crc >> 8) ^ raw[at]]
        at += 1
    return crc % _SLOTS
