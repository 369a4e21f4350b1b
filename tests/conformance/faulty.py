"""Proxies with a fault each, in front of a real Redis: the checks must find it.

Rule: a fault is one that a proxy may well have.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from keyfence.resp.replies import ReplyFramer

Frame = bytes
Upstream = Callable[[Frame], bytes]


class Faulty:
    """Answers one request after another. All clients share one connection to Redis if it `shares`."""

    def __init__(
        self, port: int, *, shares: bool = False, change: Callable[[bytes, bytes], bytes] | None = None
    ):
        """`change` gets a request and its reply, and says what the client gets; b"": nothing."""
        self._port = port
        self._change = change or (lambda _, reply: reply)
        self._lock = threading.Lock()
        self._shared = self._connect() if shares else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        redis = self._shared or self._connect()
        self._open.append(redis)
        answers = _frames(redis)
        with contextlib.suppress(OSError, StopIteration):
            for request in _frames(client):
                with self._lock if self._shared else contextlib.nullcontext():
                    redis.sendall(request)
                    reply = self._change(request, next(answers))
                client.sendall(reply)
        client.close()
        if not self._shared:
            redis.close()

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _frames(sock: socket.socket) -> Iterator[bytes]:
    """The requests or replies that come, one by one."""
    framer, frame = ReplyFramer(), b""
    while data := sock.recv(1 << 16):
        at = 0
        while at < len(data):
            end = framer.advance(data, at, 1, stop_after_push=True)
            frame, at = frame + data[at:end], end
            if framer.at_boundary:
                yield frame
                frame = b""
