"""An HTTPS server for policies that does what it is told: it serves, waits, stalls, truncates, and lies.

Rule: it is a thread on loopback, on a free port. It writes bytes itself, because a library would write no
answer that is wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.servers import Certificates

Respond = Callable[["PolicyServer", dict[str, str]], bytes | None]  # None: stall until the client gives up


def reply(content: bytes, status: str = "200 OK", *, length: int | None = None, **headers: str) -> bytes:
    """Returns an answer, with a length that may be wrong; -1: it says none."""
    said = len(content) if length is None else length
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
    lines += [] if said < 0 else [f"Content-Length: {said}"]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + content


def properly(server: PolicyServer, headers: dict[str, str]) -> bytes:
    """Answers with the policy, or 304 for its ETag; waits for a change if `server.waits`."""
    etag = server.etag
    if headers.get("if-none-match") == etag:
        applied = {}
        if server.waits and headers.get("prefer", "").startswith("wait="):
            wait = float(headers["prefer"].removeprefix("wait="))
            applied = {"Preference_Applied": headers["prefer"]}
            deadline = time.monotonic() + wait
            with server.changed:
                while server.etag == etag and (left := deadline - time.monotonic()) > 0:
                    server.changed.wait(left)
        if server.etag == etag:
            return reply(b"", "304 Not Modified", length=-1, ETag=etag, **applied)
        return reply(server.policy, ETag=server.etag, **applied)
    return reply(server.policy, ETag=etag)


class PolicyServer:
    """A server with one policy. `respond` says how it answers."""

    def __init__(self, policy: str | bytes = "", tls: Certificates | None = None) -> None:
        self.policy = policy.encode() if isinstance(policy, str) else policy
        self.respond: Respond = properly
        self.waits = False
        self.changed = threading.Condition()
        self.requests: list[dict[str, str]] = []  # the headers of each, and its path under ":path"
        self._tls: ssl.SSLContext | None = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(tls.certificate, tls.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/shop.yaml"

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.policy).hexdigest()[:16]}"'

    def put(self, policy: str) -> None:
        """Serve another policy from now on."""
        with self.changed:
            self.policy = policy.encode()
            self.changed.notify_all()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse connections from now on, and close those there are."""
        self._ended.set()
        with contextlib.suppress(OSError):  # it was closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # so that `accept` returns
        self._listener.close()
        for sock in list(self._open):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with self._tls.wrap_socket(sock, server_side=True) if self._tls else sock as connection:
                self._open.add(connection)
                self._answer(connection)
                self._open.discard(connection)
        except OSError:  # the client has gone, or does not trust it
            sock.close()

    def _answer(self, connection: socket.socket) -> None:
        text = b""
        while b"\r\n\r\n" not in text:
            piece = connection.recv(4096)
            if not piece:
                return
            text += piece
            if text[0] == 0x16:  # TLS' first byte; a server for HTTP takes it for a bad request
                connection.sendall(reply(b"", "400 Bad Request"))
                return
        first, *lines = text.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        headers[":path"] = first.split(" ")[1]
        self.requests.append(headers)
        answer = self.respond(self, headers)
        if answer is None:
            self._ended.wait(60)
        else:
            connection.sendall(answer)
