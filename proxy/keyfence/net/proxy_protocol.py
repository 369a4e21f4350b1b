"""The PROXY protocol header, version 2, in which a load balancer names the client of a connection.

Rule: no I/O, and never read too much. `needed` is the number of bytes to read next, so the bytes after the
header stay in the socket for the next protocol (TLS or RESP).

The format is in HAProxy's `doc/proxy-protocol.txt`, section 2.2: a signature of 12 bytes, version and
command, family and transport, and the length of the rest; then the addresses; then extensions (TLVs), which
are skipped. Version 1, a line of text, is refused with its own error.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED = 16  # bytes of the header, up to and including the length
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED, _IPV4, _IPV6, _UNIX = 0, 1, 2, 3
_STREAM = 1
_ADDRESSES = {_UNSPECIFIED: 0, _IPV4: 12, _IPV6: 36, _UNIX: 216}  # bytes of both addresses and ports


class Source(NamedTuple):
    """The source of a connection according to the header.

    `local`: the load balancer connects for its own health check, and its own address counts. Otherwise
    `address` is its client's address, or "" if the client has none (a unix socket) or it is unknown.
    """

    local: bool
    address: str = ""
    port: int = 0


class HeaderError(Exception):
    """The bytes are not a header of version 2. `str` is a message for operators."""


class HeaderReader:
    """Reads one header. Feed it at most the `needed` bytes, in pieces of any size."""

    def __init__(self) -> None:
        self.source: Source | None = None  # set once the header is complete
        self._data = bytearray()
        self._size = _FIXED

    @property
    def needed(self) -> int:
        """How many more bytes may be read; 0 once the header is complete."""
        return 0 if self.source is not None else self._size - len(self._data)

    def feed(self, data: bytes) -> None:
        """Add at most `needed` bytes. Raises HeaderError as soon as they cannot belong to a header."""
        if len(data) > self.needed:
            raise ValueError(f"{len(data)} bytes where {self.needed} were needed")
        self._data += data
        self._check_signature()
        if len(self._data) >= _FIXED:
            self._size = _FIXED + int.from_bytes(self._data[14:16])
            if len(self._data) == self._size:
                self.source = _source(self._data[12], self._data[13], bytes(self._data[_FIXED:]))

    def _check_signature(self) -> None:
        received = bytes(self._data[: len(SIGNATURE)])
        if SIGNATURE.startswith(received):
            return
        if received.startswith(b"PROXY "[: len(received)]):
            raise HeaderError("version 1 of the PROXY protocol; set the balancer to version 2")
        raise HeaderError("no PROXY protocol header of version 2")


def _source(version_and_command: int, family_and_transport: int, body: bytes) -> Source:
    version, command = divmod(version_and_command, 16)
    family, transport = divmod(family_and_transport, 16)
    if version != 2:
        raise HeaderError(f"PROXY protocol version {version}; set the balancer to version 2")
    if command not in (_LOCAL, _PROXY):
        raise HeaderError(f"unknown PROXY command {command}")
    if command == _LOCAL:
        return Source(local=True)  # the specification says to ignore the rest
    if family not in _ADDRESSES:
        raise HeaderError(f"unknown PROXY address family {family}")
    size = _ADDRESSES[family]
    if len(body) < size:
        raise HeaderError(f"PROXY addresses of {len(body)} bytes instead of {size}")
    _skip_extensions(body, size)
    if family in (_IPV4, _IPV6) and transport != _STREAM:
        raise HeaderError(f"PROXY transport {transport}, which is not a stream")
    if family == _IPV4:
        return Source(False, str(ipaddress.IPv4Address(body[:4])), int.from_bytes(body[8:10]))
    if family == _IPV6:
        ip = ipaddress.IPv6Address(body[:16])
        return Source(False, str(ip.ipv4_mapped or ip), int.from_bytes(body[32:34]))
    return Source(local=False)


def _skip_extensions(body: bytes, at: int) -> None:
    """Check that all extensions end within the header. Each is a type, a two-byte length and a value."""
    while at < len(body):
        end = at + 3 + int.from_bytes(body[at + 1 : at + 3])
        if at + 3 > len(body) or end > len(body):
            raise HeaderError("a PROXY extension extends beyond the header")
        at = end
