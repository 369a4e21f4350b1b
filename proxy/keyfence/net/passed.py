"""Listening sockets that a supervisor has bound, and passes to this process: sd_listen_fds(3).

Rule: a passed socket serves the listener whose address it has, and the supervisor keeps it open. So
connections that come while one keyfence takes the place of another wait in the socket's queue, and are not
refused.

systemd passes the sockets of `keyfence.socket`. The descriptors begin at 3; LISTEN_FDS is their number, and
LISTEN_PID the process that they are for.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, MutableMapping

from .host_port import host_port

COUNT, PROCESS, NAMES = "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"
FIRST = 3

_left: list[socket.socket] = []  # no listener has taken them yet


class CannotTake(Exception):
    """What was passed is no socket to listen on. The text names the descriptor."""


def receive(environment: MutableMapping[str, str] | None = None) -> None:
    """Take over the sockets that this process was started with. The variables are removed, so that child
    processes do not take them for their own. Raises CannotTake."""
    environment = os.environ if environment is None else environment
    count, process = environment.pop(COUNT, ""), environment.pop(PROCESS, "")
    environment.pop(NAMES, None)
    if not count.isdecimal() or process != str(os.getpid()):
        return
    _left.extend(_socket_at(number) for number in range(FIRST, FIRST + int(count)))


def _socket_at(number: int) -> socket.socket:
    where = f"descriptor {number}, which {COUNT} names,"
    try:
        os.set_inheritable(number, False)
        one = socket.socket(fileno=number)
    except OSError as exc:
        raise CannotTake(f"{where} is no socket: {(exc.strerror or str(exc)).lower()}") from None
    if one.type is socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        return one
    one.close()
    raise CannotTake(f"{where} is no stream socket; the socket unit needs ListenStream=")


def take(names: Collection[object]) -> list[socket.socket]:
    """The passed sockets with one of these addresses: paths of unix sockets, or pairs of host and port. The
    caller owns them from now on."""
    found = [one for one in _left if _name(one) in names]
    for one in found:
        _left.remove(one)
    return found


def left() -> list[str]:
    """The addresses of the sockets that no listener has taken."""
    names = [_name(one) for one in _left]
    return [host_port(*name) if isinstance(name, tuple) else f"unix:{name}" for name in names]


def close_left() -> None:
    """Close the sockets that no listener has taken."""
    while _left:
        with contextlib.suppress(OSError):
            _left.pop().close()


def _name(one: socket.socket) -> tuple[str, int] | str:
    name = one.getsockname()
    return (name[0], name[1]) if isinstance(name, tuple) else os.fsdecode(name)
