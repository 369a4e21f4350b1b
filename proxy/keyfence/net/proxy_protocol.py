"""The header by which a balancer says whom it connects for: PROXY protocol, version 2.

Rule: sans-I/O, and never a byte too many: `needed` says how much to read next, so what follows the header
stays in the socket for whoever speaks next (TLS or Redis' protocol).

The format is that of HAProxy's `doc/proxy-protocol.txt`, section 2.2: a signature of 12 bytes, version and
command, family and transport, the length of the rest; then the addresses, then extensions (TLVs), which are
passed over. Version 1, a line of text, is refused by name.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED = 16  # bytes up to and including the length
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED, _IPV4, _IPV6, _UNIX = 0, 1, 2, 3
_STREAM = 1
_ADDRESSES = {_UNSPECIFIED: 0, _IPV4: 12, _IPV6: 36, _UNIX: 216}  # bytes of both addresses and ports


class Source(NamedTuple):
    """Where a connection comes from, as the header says.

    `local`: the balancer itself connects, for a check of its own; its own address counts. Else `address` is
    that of its client, or "" where that has none (a unix socket) or the balancer doesn't know it.
    """

    local: bool
    address: str = ""
    port: int = 0


class HeaderError(Exception):
    """What came is no header of version 2. `str` says what is wrong, for operators."""


class HeaderReader:
    """Reads one header. Feed it exactly the bytes that it asks for, in pieces as they come."""

    def __init__(self) -> None:
        self.source: Source | None = None  # once the header is complete
        self._data = bytearray()
        self._size = _FIXED

    @property
    def needed(self) -> int:
        """How many bytes more may be read; 0 once the header is complete."""
        return 0 if self.source is not None else self._size - len(self._data)

    def feed(self, data: bytes) -> None:
        """Take in at most `needed` bytes. Raises HeaderError as soon as they can't be a header's."""
        if len(data) > self.needed:
            raise ValueError(f"{len(data)} bytes where {self.needed} were needed")
        self._data += data
        self._check_signature()
        if len(self._data) >= _FIXED:
            self._size = _FIXED + int.from_bytes(self._data[14:16])
            if len(self._data) == self._size:
                self.source = _source(self._data[12], self._data[13], bytes(self._data[_FIXED:]))

    def _check_signature(self) -> None:
        came = bytes(self._data[: len(SIGNATURE)])
        if SIGNATURE.startswith(came):
            return
        if came.startswith(b"PROXY "[: len(came)]):
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
        return Source(local=True)  # whatever stands behind it is to be ignored
    if family not in _ADDRESSES:
        raise HeaderError(f"unknown PROXY address family {family}")
    size = _ADDRESSES[family]
    if len(body) < size:
        raise HeaderError(f"PROXY addresses of {len(body)} bytes where {size} are due")
    _pass_over_extensions(body, size)
    if family in (_IPV4, _IPV6) and transport != _STREAM:
        raise HeaderError(f"PROXY transport {transport}, which is no stream")
    if family == _IPV4:
        return Source(False, str(ipaddress.IPv4Address(body[:4])), int.from_bytes(body[8:10]))
    if family == _IPV6:
        ip = ipaddress.IPv6Address(body[:16])
        return Source(False, str(ip.ipv4_mapped or ip), int.from_bytes(body[32:34]))
    return Source(local=False)


def _pass_over_extensions(body: bytes, at: int) -> None:
    """Each is a type, a length of two bytes and a value; all have to lie within the header."""
    while at < len(body):
        end = at + 3 + int.from_bytes(body[at + 1 : at + 3])
        if at + 3 > len(body) or end > len(body):
            raise HeaderError("a PROXY extension reaches beyond the header")
        at = end
