"""PROXY headers: the source that they name, and the errors of malformed ones."""

from __future__ import annotations

import ipaddress
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.net.proxy_protocol import SIGNATURE, HeaderError, HeaderReader, Source


def header(command: int, family: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return SIGNATURE + bytes([command, family]) + size.to_bytes(2, "big") + body


def ipv4(address: str, port: int, extensions: bytes = b"") -> bytes:
    source, destination = ipaddress.IPv4Address(address).packed, bytes([10, 0, 0, 1])
    body = source + destination + port.to_bytes(2, "big") + (6379).to_bytes(2, "big")
    return header(0x21, 0x11, body + extensions)


def ipv6(address: str, port: int) -> bytes:
    source = ipaddress.IPv6Address(address).packed
    return header(0x21, 0x21, source + bytes(16) + port.to_bytes(2, "big") + bytes(2))


def extension(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


def read(data: bytes, step: int = 1 << 20) -> Source:
    """Read a header as from a socket: at most the needed bytes at a time. All data must belong to the
    header."""
    reader = HeaderReader()
    at = 0
    while reader.needed and at < len(data):
        piece = data[at : at + min(step, reader.needed)]
        reader.feed(piece)
        at += len(piece)
    assert at == len(data)
    assert reader.source is not None
    return reader.source


HEADERS = {
    "ipv4": (ipv4("192.0.2.7", 40000), Source(False, "192.0.2.7", 40000)),
    "ipv6": (ipv6("2001:db8::7", 65535), Source(False, "2001:db8::7", 65535)),
    "ipv4 in ipv6": (ipv6("::ffff:192.0.2.7", 1), Source(False, "192.0.2.7", 1)),
    "a unix socket": (header(0x21, 0x31, b"/a".ljust(216, b"\0")), Source(False)),
    "a client that the balancer does not know": (header(0x21, 0x00), Source(False)),
    "the balancer's own check": (header(0x20, 0x00), Source(True)),
    "a check with addresses that mean nothing": (header(0x20, 0x11, b"xyz"), Source(True)),
    "extensions": (
        ipv4(
            "192.0.2.7",
            1,
            extension(0x04, b"") + extension(0x02, b"redis.example") + extension(0xEA, b"x" * 300),
        ),
        Source(False, "192.0.2.7", 1),
    ),
    "the longest": (
        ipv4("192.0.2.7", 1, extension(0x04, b"x" * (65535 - 15))),
        Source(False, "192.0.2.7", 1),
    ),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_a_header_names_the_client(name: str, step: int) -> None:
    data, expected = HEADERS[name]
    assert read(data, step) == expected


def test_no_byte_after_the_header_is_needed() -> None:
    reader = HeaderReader()
    data = ipv4("192.0.2.7", 1)
    assert reader.needed == 16
    reader.feed(data[:16])
    assert reader.needed == len(data) - 16
    reader.feed(data[16:])
    assert reader.needed == 0
    with pytest.raises(ValueError, match="1 bytes where 0 were needed"):
        reader.feed(b"*")


NO_HEADERS = {
    b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n"[
        :16
    ]: "version 1 of the PROXY protocol; set the balancer to version 2",
    b"PROXY": "version 1 of the PROXY protocol; set the balancer to version 2",
    b"*1\r\n$4\r\nPING\r\n": "no PROXY protocol header of version 2",
    b"\x16\x03\x01": "no PROXY protocol header of version 2",
    SIGNATURE[:-1] + b"x": "no PROXY protocol header of version 2",
    header(0x11, 0x11, bytes(12)): "PROXY protocol version 1; set the balancer to version 2",
    header(0x31, 0x11, bytes(12)): "PROXY protocol version 3; set the balancer to version 2",
    header(0x22, 0x11, bytes(12)): "unknown PROXY command 2",
    header(0x21, 0x41, bytes(12)): "unknown PROXY address family 4",
    header(0x21, 0x12, bytes(12)): "PROXY transport 2, which is not a stream",
    header(0x21, 0x11, bytes(11)): "PROXY addresses of 11 bytes instead of 12",
    header(0x21, 0x21, bytes(12)): "PROXY addresses of 12 bytes instead of 36",
    header(0x21, 0x31): "PROXY addresses of 0 bytes instead of 216",
    header(0x21, 0x11, bytes(13)): "a PROXY extension extends beyond the header",
    header(0x21, 0x11, bytes(12) + b"\x04\x00\x02x"): "a PROXY extension extends beyond the header",
}


@pytest.mark.parametrize("data", NO_HEADERS, ids=lambda data: repr(data)[:50])
def test_a_malformed_header_has_an_error_message(data: bytes) -> None:
    with pytest.raises(HeaderError) as caught:
        read(data)
    assert str(caught.value) == NO_HEADERS[data]


def test_a_wrong_byte_is_noticed_at_once() -> None:
    reader = HeaderReader()
    reader.feed(b"\r")
    with pytest.raises(HeaderError):
        reader.feed(b"*")


@given(data=st.binary(max_size=300), signed=st.booleans(), seed=st.integers())
def test_any_bytes_give_a_source_or_a_header_error(data: bytes, signed: bool, seed: int) -> None:
    data = SIGNATURE + data if signed else data
    pieces = random.Random(seed)
    reader = HeaderReader()
    at = 0
    try:
        while reader.needed and at < len(data):
            size = pieces.randint(1, reader.needed)
            reader.feed(data[at : at + size])
            at += size
    except HeaderError:
        return
    assert (reader.source is None) == bool(reader.needed)
