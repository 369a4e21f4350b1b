"""Redis Cluster's hash slots.

Rule: as in the cluster specification: CRC16 (XMODEM) of the key, or of the text in its first `{…}` if that is
not empty, modulo 16384.
"""

from __future__ import annotations

from binascii import crc_hqx

SLOTS = 16384


def hash_tag(key: bytes) -> bytes:
    """Returns the part of the key that decides its hash slot (Redis `cluster.c`, keyHashSlot)."""
    begin = key.find(b"{")
    if begin < 0:
        return key
    end = key.find(b"}", begin + 1)
    return key if end <= begin + 1 else key[begin + 1 : end]


def hash_slot(key: bytes) -> int:
    return crc_hqx(hash_tag(key), 0) % SLOTS
