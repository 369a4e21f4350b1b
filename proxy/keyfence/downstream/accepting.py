"""Accepting connections on sockets that are bound already.

Rule: a want of file descriptors pauses the accepting, and ends nothing.

The loop's own servers aren't used: where file descriptors run out, uvloop's closes its socket for good and
asyncio's logs a traceback each time; neither can read a PROXY header before TLS begins, or turn a connection
away before it has cost anything.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

from keyfence.net.addresses import Bound

BACKLOG = 511  # as Redis' tcp-backlog
PAUSE_SECONDS = 0.5  # without accepting, where the machine has no room for more
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """The sockets of one address."""

    def __init__(
        self,
        bound: Bound,
        arrived: Callable[[socket.socket, Any], None],
        no_room: Callable[[str], None],
        per_turn: int,
    ) -> None:
        """`arrived` owns each connection, which comes with its peer's address. `no_room` is told why there is
        a pause. At most `per_turn` are accepted in one turn of the loop, so that a flood of connections holds
        up nobody who is connected."""
        self._bound = bound
        self._arrived = arrived
        self._no_room = no_room
        self._per_turn = per_turn
        self._pause: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        for sock in self._bound.sockets:
            sock.setblocking(False)
            sock.listen(BACKLOG)
        self._resume()

    def stop(self) -> None:
        """Accept no more, and give the address up."""
        if self._pause is not None:
            self._pause.cancel()
        self._stop_accepting()
        self._bound.close()

    def _resume(self) -> None:
        self._pause = None
        for sock in self._bound.sockets:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _stop_accepting(self) -> None:
        for sock in self._bound.sockets:
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._per_turn):
            try:
                sock, peer = listening.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in _NO_ROOM:
                    self._wait_for_room(exc)
                    return
                continue  # this connection ended before it was accepted: accept(2), "Error handling"
            sock.setblocking(False)
            self._arrived(sock, peer)

    def _wait_for_room(self, exc: OSError) -> None:
        """Connections wait in the kernel's queue meanwhile; the loop would only turn in vain."""
        self._stop_accepting()
        self._pause = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume)
        self._no_room((exc.strerror or str(exc)).lower())
