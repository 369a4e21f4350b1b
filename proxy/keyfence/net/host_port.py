"""The text form of addresses."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


def host_port(host: str, port: int) -> str:
    """An address as written in URLs, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host(text: str) -> bool:
    """Whether a text can be the name of a host. `a..b` cannot: Python has no way to ask for it."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True


@contextlib.contextmanager
def resolving(host: str) -> Iterator[None]:
    """Around what resolves a host. Python has a UnicodeError for a text that can be no host, as `a..b`; here
    it is an OSError, as for a host that is not known."""
    try:
        yield
    except UnicodeError:
        raise OSError(errno.EINVAL, f"{host[:64]!r} is not a name of a host") from None
