"""Accepts connections on bound sockets.

Rule: if file descriptors run out, accepting pauses; nothing ends.

The event loop's own servers are not used. When file descriptors run out, uvloop's server closes its socket
for good, and asyncio's logs a traceback each time. Neither can read a PROXY header before TLS begins, or
reject a connection before it has used resources.
"""

from __future__ import annotations

import _socket
import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

from keyfence.net.addresses import Bound

BACKLOG = 511  # same as Redis' tcp-backlog
PAUSE_SECONDS = 0.5  # how long accepting pauses if resources run out
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Accepted(socket.socket):
    """A socket that tells its family and type as plain integers. To make enums of them, which the loop asks
    for too, takes as long as to accept a connection."""

    __slots__ = ()
    family = _socket.socket.family  # type: ignore[assignment]
    type = _socket.socket.type  # type: ignore[assignment]


class Acceptor:
    """Accepts connections on the sockets of one address."""

    def __init__(
        self,
        bound: Bound,
        arrived: Callable[[socket.socket, Any], None],
        no_room: Callable[[str], None],
        per_turn: int,
    ) -> None:
        """`arrived` takes over each connection, with the peer's address; its socket may block. `no_room` is
        called with the reason of each pause. At most `per_turn` connections are accepted in one turn of the
        loop, so that a flood of connections does not delay connected clients."""
        self._bound = bound
        self._arrived = arrived
        self._no_room = no_room
        self._per_turn = per_turn
        self._pause: asyncio.TimerHandle | None = None
        self._listens = False
        self._refuses = False

    def listen(self) -> None:
        self._listens = True
        for sock in self._bound.sockets:
            sock.setblocking(False)
            sock.listen(BACKLOG)
        self._resume()

    def refuse(self, refuses: bool) -> None:
        """Have connections refused, as if nobody listened, or accept them again. The ports are kept. Where
        the system cannot do that, connections wait meanwhile."""
        if not self._listens or refuses == self._refuses:
            return
        self._refuses = refuses
        if not refuses:
            self.listen()
            return
        self._stop_accepting()
        for sock in self._bound.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RD)

    def stop(self) -> None:
        """Stop accepting, and close the sockets."""
        self._listens = False
        self._stop_accepting()
        self._bound.close()

    def _resume(self) -> None:
        self._pause = None
        for sock in self._bound.sockets:
            kind = int(sock.family), int(sock.type), sock.proto
            asyncio.get_running_loop().add_reader(sock, self._accept, sock, kind)

    def _stop_accepting(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for sock in self._bound.sockets:
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock)

    def _accept(self, listening: socket.socket, kind: tuple[int, int, int]) -> None:
        for _ in range(self._per_turn):
            try:
                descriptor, peer = listening._accept()  # type: ignore[attr-defined]  # as `accept` does
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in _NO_ROOM:
                    self._wait_for_room(exc)
                    return
                continue  # the connection ended before it was accepted: accept(2), "Error handling"
            self._arrived(_Accepted(*kind, fileno=descriptor), peer)

    def _wait_for_room(self, exc: OSError) -> None:
        """Pause accepting. Connections wait in the kernel's queue, and the loop does not spin."""
        self._stop_accepting()
        self._pause = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume)
        self._no_room((exc.strerror or str(exc)).lower())
