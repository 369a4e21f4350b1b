"""Addresses to listen on, and sockets bound to them.

Rule: an address is bound as a whole or not at all: all address families of a name, with the same port.
Binding blocks and needs no event loop, so a parent can bind sockets that its workers serve.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import passed
from .host_port import host_port, resolving

MAX_UNIX_PATH = 107  # bytes: sockaddr_un.sun_path without its NUL
PORT_ATTEMPTS = 20
_Resolved = Sequence[tuple[int, tuple[Any, ...]]]  # address family, and address as in getaddrinfo's result
_UNIX_PREFIX = re.compile(r"unix:(?://(?=/))?")


class Address(str):
    """`HOST:PORT`, `[IPV6]:PORT`, `:PORT` (all addresses of the machine) or `unix:PATH`, as written."""

    __slots__ = ()

    @property
    def unix_path(self) -> str:
        """The path of a unix socket, or "" for a TCP address."""
        prefix = _UNIX_PREFIX.match(self)
        return self[prefix.end() :] if prefix else ""

    @property
    def host_port(self) -> tuple[str, int]:
        host, _, port = self.rpartition(":")
        return host.strip("[]"), int(port)

    def relative_to(self, folder: Path) -> Address:
        """The address with the path of a unix socket resolved against a folder."""
        return Address(f"unix:{folder / self.unix_path}") if self.unix_path else self


def url_of(address: Address) -> str:
    """The URL of an admin listener on this machine, also of one on all its addresses."""
    host, port = address.host_port
    own = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{host_port(own, port)}"


def parse_address(text: str) -> Address:
    """Parse a TCP address. Raises ValueError that says what is allowed."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, as in 127.0.0.1:6380 or [::1]:6380")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:6380")
    return Address(text)


def parse_listen(text: str) -> Address:
    """Parse an address to listen on: a TCP address or `unix:/path`. Raises ValueError."""
    if not text.startswith("unix:"):
        return parse_address(text)
    address = Address(text)
    if not address.unix_path or address.unix_path.endswith("/") or "\0" in text:
        raise ValueError(f"{text!r} does not name a socket; write unix:/path/to/keyfence.sock")
    if len(os.fsencode(address.unix_path)) > MAX_UNIX_PATH:
        raise ValueError(f"{text!r}: a unix socket's path may have {MAX_UNIX_PATH} bytes; use a shorter one")
    return address


def ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address in `text`, or None. An IPv4 address mapped to IPv6 is returned as IPv4."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def is_this_machine(host: str) -> bool:
    """Whether only this machine can connect to a host: `localhost`, or a loopback address."""
    address = ip_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


@dataclasses.dataclass(eq=False)
class Bound:
    """The sockets of one address. They do not listen yet.

    A process that inherits the sockets creates its own `Bound(name, sockets)`.
    """

    name: str  # the address as written, with the actual port
    sockets: list[socket.socket]
    file: _UnixFile | None = None
    is_passed: bool = False  # a supervisor has bound the sockets, and keeps them open

    def close(self) -> None:
        """Close the sockets, and remove the file of a unix socket if this process created it."""
        for sock in self.sockets:
            sock.close()
        if self.file is not None:
            self.file.remove()


@dataclasses.dataclass(frozen=True)
class _UnixFile:
    path: str
    made: tuple[int, int]  # device and inode, because another process may have replaced the file
    owner: int  # the process that created it

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            now = os.lstat(self.path)
            if self.owner == os.getpid() and self.made == (now.st_dev, now.st_ino):
                os.unlink(self.path)


def url_at(bound: Bound) -> str:
    """The URL of an admin listener on these sockets."""
    return f"http://{host_port(*bound.sockets[0].getsockname()[:2])}"


def bind(address: Address, *, unix_mode: int | None = None, reuse_port: bool = False) -> Bound:
    """Bind an address, or take the sockets that a supervisor has passed for it. Port 0 picks a port that is
    free in all its families. Raises OSError.

    `unix_mode`: the permissions of a unix socket's file; by default the umask decides. `reuse_port`: allow
    several sockets with the same TCP address, among which the kernel distributes the connections.
    """
    if address.unix_path:
        if sockets := passed.take([address.unix_path]):
            return Bound(address, sockets, is_passed=True)
        return _bind_unix(address.unix_path, unix_mode)
    host, port = address.host_port
    with resolving(host):
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    resolved: _Resolved = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    if sockets := passed.take([where[:2] for _, where in resolved]):
        return Bound(host_port(host, port), sockets, is_passed=True)
    for _ in range(PORT_ATTEMPTS - 1):
        try:
            return _bind_tcp(host, resolved, port, reuse_port)
        except OSError as exc:
            # The port of the first family may be in use in the second.
            if port or exc.errno != errno.EADDRINUSE:
                raise
    return _bind_tcp(host, resolved, port, reuse_port)


def why_not(exc: OSError) -> str:
    """Why an address cannot be bound."""
    if exc.errno == errno.EADDRINUSE:
        return "the address is already in use"
    return (exc.strerror or str(exc)).lower()


def _bind_tcp(host: str, resolved: _Resolved, port: int, reuse_port: bool) -> Bound:
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        for family, where in resolved:
            try:
                sock = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((where[0], port, *where[2:]))
            except OSError as exc:
                if exc.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = exc  # without IPv6, listen on IPv4 alone
                continue
            port = sock.getsockname()[1]
            sockets.append(sock)
        if not sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, "the name has no address")
        opened.pop_all()
    return Bound(host_port(host, port), sockets)


def _bind_unix(path: str, mode: int | None) -> Bound:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if mode is None:
            sock.bind(path)
        else:
            before = os.umask(0o777 & ~mode)  # so that no one can connect before the mode is set
            try:
                sock.bind(path)
            finally:
                os.umask(before)
            os.chmod(path, mode)
        made = os.lstat(path)
    except OSError:
        sock.close()
        raise
    file = _UnixFile(path, (made.st_dev, made.st_ino), os.getpid())
    return Bound(f"unix:{path}", [sock], file)


def _remove_stale(path: str) -> None:
    """Remove the socket that a dead process left behind. Raises OSError for anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "the path is an existing file, not a socket; move the file away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its queue is full, so a process is listening
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
