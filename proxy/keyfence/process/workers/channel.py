"""Messages between a parent and its worker, over a socketpair that no other process can reach.

Rule: a message is a frame of bounded length. A worker faces the network, so its messages are JSON and are
never executed. The parent's messages are pickled, because they carry settings and compiled policies.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
from collections.abc import Callable
from typing import Any, cast

MAX_FRAME = 1 << 28  # bytes; a policy of 2,000 entries has two million
_LENGTH = struct.Struct(">I")

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


def to_json(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def to_pickle(message: object) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


class Channel(asyncio.Protocol):
    """One end. After `on_end` no message arrives, and `send` does nothing."""

    def __init__(
        self,
        encode: Encode,
        decode: Decode,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self.is_full = False  # the other end does not read fast enough
        self._encode = encode
        self._decode = decode
        self._on_message = on_message
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._coming = bytearray()

    def send(self, message: object) -> None:
        """Send a message. Raises ValueError if it is too large."""
        frame = self._encode(message)
        if len(frame) > MAX_FRAME:
            raise ValueError(f"a message of {len(frame)} bytes is too large")
        if self._transport is not None:
            self._transport.writelines([_LENGTH.pack(len(frame)), frame])

    def close(self) -> None:
        """Close the channel once everything sent has been written."""
        if self._transport is not None:
            self._transport.close()

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._coming += data
        at = 0
        while len(self._coming) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._coming, at)
            end = at + _LENGTH.size + length
            if length > MAX_FRAME:
                self._give_up()
                return
            if end > len(self._coming):
                break
            frame = bytes(self._coming[at + _LENGTH.size : end])
            at = end
            try:
                message = self._decode(frame)
            except ValueError:
                self._give_up()
                return
            self._on_message(message)
        del self._coming[:at]

    def _give_up(self) -> None:
        """The other end sends invalid frames: end the channel."""
        self._coming.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._on_end()
