"""The stage of the adversity tests: keyfence between clients and a fault proxy, and its measurements."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer
from tests.adversity.fault_proxy import FaultProxy
from tests.clients.running import ask, eventually, metric, open_files, resident_bytes, settle
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer

MIB = 1024 * 1024
# The lines that keyfence may print on stderr while its Redis fails.
ILL = (
    r"\A(keyfence: (the upstream does not list its commands|[^\n]*does not read its replies|"
    r"upstream \S+ (is unreachable|is up again|has refused writes|was a primary|is a primary again))"
    r"[^\n]*\n)*\Z"
)
# The connections that keyfence opens when they are needed and then keeps, to Redis and to the findings store.
POOLED = 4
# Memory that allocators keep after it is freed, and bounded caches.
KEPT_BYTES = 72 * MIB

POLICY = """
policy: adversity
owner: {team: tests, contact: "#tests"}
claims: ["app:"]
services: [writer, reader]
placeholders: {name: "[a-z0-9-]{1,64}"}
scopes:
  app: {prefix: "app:", writers: [writer], readers: [reader]}
keys:
  any: {key: "app:<name>", type: [string, hash, list]}
  timed: {key: "app:timed:<name>", type: string, ttl: {max: 1h, at: write}}
"""


def configure(folder: Path, upstream: str, mode: str, *more: str) -> Path:
    """Writes a configuration that enforces POLICY, with a listener for each of its services."""
    (folder / "policy.yaml").write_text(POLICY)
    settings = f"url: '{upstream}', connect_timeout: 2s" + (f", mode: {mode}" if mode else "")
    path = folder / "keyfence.yaml"
    path.write_text(
        "policy: policy.yaml\n"
        "admin: 127.0.0.1:0\n"
        f"upstream: {{{settings}}}\n"
        "modes: [{mode: enforce}]\n"
        "listeners:\n"
        '  - {listen: "127.0.0.1:0", service: writer}\n'
        '  - {listen: "127.0.0.1:0", service: reader}\n' + "".join(f"{line}\n" for line in more)
    )
    return path


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The open files and the memory of a process."""

    files: Counter[str]
    memory: int


@dataclasses.dataclass(frozen=True)
class Stage:
    """keyfence in front of a fault proxy in front of a Redis."""

    keyfence: Keyfence
    redis: RedisServer
    faults: FaultProxy
    mode: str
    folder: Path

    @contextlib.contextmanager
    def client(self, service: str = "writer") -> Iterator[Wire]:
        with self.keyfence.connect(service) as connection:
            yield Wire(connection)

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.keyfence, f"keyfence_{name}", **labels)

    def closed_for(self, reason: str) -> float:
        return self.metric("closures_total", reason=reason)

    def value(self, key: str) -> bytes | None:
        """Returns a key's value, read directly from Redis."""
        with self.redis.client() as direct:
            found = direct.get(key)
        assert found is None or isinstance(found, bytes)
        return found

    def memory(self) -> int:
        return resident_bytes(self.keyfence)

    def footprint(self) -> Footprint:
        settle(self.keyfence)
        return Footprint(open_files(self.keyfence), self.memory())

    def rest(self) -> None:
        """Waits until no client is left and Redis is up for keyfence; then asks once, as a first client."""
        settle(self.keyfence)
        eventually(lambda: ask(self.keyfence, "/readyz")[0] == 200, "keyfence is ready")
        eventually(lambda: self.asked("PING") == b"+PONG\r\n", "a client is served")
        eventually(lambda: self.metric("connections_open") == 0, "all clients are gone")

    def asked(self, *words: str | bytes | int) -> bytes:
        """Returns the reply to the only request of a new client; b"" if the client is closed instead."""
        with self.client() as one, contextlib.suppress(ConnectionError):
            return one.says(*words)
        return b""

    def check_for_leaks(self, before: Footprint) -> None:
        """Asserts that files, memory and Redis' connections are as before, without an internal error."""
        self.rest()
        eventually(lambda: self._has_few_files(before.files), "nothing is open that was not before")
        assert self.memory() - before.memory < KEPT_BYTES
        assert self.metric("internal_errors_total") == 0

    def _has_few_files(self, before: Counter[str]) -> bool:
        more = open_files(self.keyfence) - before
        return set(more) <= {"socket", "store"} and max(more.values(), default=0) <= POOLED


class Wire:
    """A client that writes and reads raw RESP."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        self.socket = connection
        self._framer = ReplyFramer()
        self._data = b""
        self._at = 0

    def send(self, *words: str | bytes | int) -> None:
        self.socket.sendall(request(*words))

    def reply(self) -> bytes:
        """Returns the next complete reply; b"" if the connection ends before it is complete."""
        reply = b""
        while True:
            if self._at == len(self._data):
                try:
                    self._data, self._at = self.socket.recv(1 << 18), 0
                except ConnectionError:
                    self._data = b""
                if not self._data:
                    return b""
            end = self._framer.advance(self._data, self._at, 1)
            reply += self._data[self._at : end]
            self._at = end
            if self._framer.completed:
                return reply

    def says(self, *words: str | bytes | int) -> bytes:
        """Sends one request and returns its reply."""
        self.send(*words)
        return self.reply()

    def rest(self) -> bytes:
        """Returns everything received until the connection ends."""
        data = self._data[self._at :]
        with contextlib.suppress(ConnectionError):
            while chunk := self.socket.recv(1 << 18):
                data += chunk
        return data

    def is_closed(self) -> bool:
        """Returns whether the other side has closed the connection. Call it only while no reply is due."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)

    def vanish(self) -> None:
        """Closes with a reset, as a killed process with unread data does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def request(*words: str | bytes | int) -> bytes:
    """Returns a request as bytes; a single text is split at its spaces."""
    if len(words) == 1 and isinstance(words[0], str):
        words = tuple(words[0].split())
    return encode.command(*words)


def is_clear_error(reply: bytes) -> bool:
    """Returns whether a reply is a clear error of keyfence's own, or the end of the connection."""
    return not reply or reply.startswith(b"-ERR keyfence: upstream ")


def bulk(word: str | bytes) -> bytes:
    """Returns one argument as a bulk string of a request."""
    return encode.command(word).removeprefix(b"*1\r\n")
