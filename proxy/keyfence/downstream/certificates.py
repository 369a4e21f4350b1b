"""The certificates that the settings name: which ones have changed, and when they expire.

Rule: a file that cannot be read is left out here. `tls` reports it.
"""

from __future__ import annotations

import calendar
import hashlib
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from keyfence.config.settings import Settings
from keyfence.policy.source.files import Unreadable, read_file
from keyfence.policy.units import clock_text

_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Certificates(NamedTuple):
    """The certificates of one file."""

    digest: bytes
    expires: float | None  # when the first of them does, in Unix seconds; None: it cannot be read


def certificates_of(settings: Settings) -> dict[str, Certificates]:
    """The certificates of all listeners and of the connection to Redis, by file."""
    found = {}
    for path in dict.fromkeys(filter(None, _files(settings))):
        try:
            text = read_file(path).decode("latin-1")
        except Unreadable:
            continue
        found[path] = Certificates(hashlib.sha256(text.encode("latin-1")).digest(), _first_end(text))
    return found


def renewed(before: Mapping[str, Certificates], after: Mapping[str, Certificates]) -> list[str]:
    """The files whose certificates have changed, each with the time at which it expires."""
    changed = [path for path, one in after.items() if path in before and before[path].digest != one.digest]
    return [f"certificate {path} ({_expiry(after[path].expires)})" for path in changed]


def _expiry(at: float | None) -> str:
    return "its expiry cannot be read" if at is None else f"expires {clock_text(at)}"


def _files(settings: Settings) -> Iterator[str]:
    for listener in settings.listeners:
        if listener.tls is not None:
            yield from (listener.tls.cert, listener.tls.client_ca)
    yield from (settings.upstream_cert, settings.upstream_ca)


def _first_end(text: str) -> float | None:
    try:
        ends = [not_after(ssl.PEM_cert_to_DER_cert(found[0])) for found in _PEM.finditer(text)]
    except (ValueError, IndexError):
        return None
    return min(ends, default=None)


def not_after(certificate: bytes) -> float:
    """When a certificate in DER expires, in Unix seconds. Raises ValueError or IndexError if it is none.

    RFC 5280, 4.1: version (optional), serial number, algorithm, issuer, and then the validity's two times.
    """
    _, body, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, body)
    tag, _, end = _element(certificate, at)
    for _ in range(4 if tag == _VERSION else 3):
        at, end = end, _element(certificate, end)[2]
    _, begin, _ = _element(certificate, at)
    _, _, after_begin = _element(certificate, begin)
    tag, at, end = _element(certificate, after_begin)
    # UTCTime has two digits of the year, GeneralizedTime four.
    form = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}.get(tag, "")
    return float(calendar.timegm(time.strptime(certificate[at:end].decode("ascii"), form)))


_VERSION = 0xA0


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the DER element at a place, and where its content begins and ends."""
    tag, size = data[at], data[at + 1]
    begin = at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[at + 2 : begin], "big")
    return tag, begin, begin + size
