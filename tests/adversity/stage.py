"""What the adversity tests do with keyfence between a client and a fault proxy, and what they measure."""

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
from tests.clients.running import ask, eventually, metric, open_files, resident_bytes
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer

MIB = 1024 * 1024
# What keyfence may say on stderr while its Redis is ill.
ILL = (
    r"\A(keyfence: (the upstream doesn't tell its commands|[^\n]*doesn't read its replies|"
    r"upstream \S+ is (unreachable|up again))[^\n]*\n)*\Z"
)
# The connections to Redis that are made where they are first needed, and then kept.
POOLED = 4
# What allocators keep of memory that is free again, and caches that have a limit.
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
    """A configuration that enforces POLICY, with a listener for each of its services."""
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
    """What a process holds."""

    files: Counter[str]
    memory: int


@dataclasses.dataclass(frozen=True)
class Stage:
    """keyfence before a fault proxy before a Redis."""

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
        """What Redis holds, asked past keyfence and the fault proxy."""
        with self.redis.client() as direct:
            found = direct.get(key)
        assert found is None or isinstance(found, bytes)
        return found

    def memory(self) -> int:
        return resident_bytes(self.keyfence)

    def footprint(self) -> Footprint:
        return Footprint(open_files(self.keyfence), self.memory())

    def rest(self) -> None:
        """Wait until no client is left and Redis is known to be there; then ask once, as a first client."""
        eventually(lambda: ask(self.keyfence, "/readyz")[0] == 200, "keyfence is ready")
        eventually(self._serves, "a client is served")
        eventually(lambda: self.metric("connections_open") == 0, "all clients are gone")

    def _serves(self) -> bool:
        with self.client() as one, contextlib.suppress(ConnectionError):
            return one.says("PING") == b"+PONG\r\n"
        return False

    def nothing_is_left(self, before: Footprint) -> None:
        """Files, memory and Redis' connections are as they were, and nothing went wrong inside."""
        self.rest()
        eventually(lambda: self._has_few_files(before.files), "nothing is open that wasn't before")
        assert self.memory() - before.memory < KEPT_BYTES
        assert self.metric("internal_errors_total") == 0

    def _has_few_files(self, before: Counter[str]) -> bool:
        more = open_files(self.keyfence) - before
        return set(more) <= {"socket"} and more["socket"] <= POOLED


class Wire:
    """A client that speaks the protocol by hand."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        self.socket = connection
        self._framer = ReplyFramer()
        self._data = b""
        self._at = 0

    def send(self, *words: str | bytes | int) -> None:
        self.socket.sendall(request(*words))

    def reply(self) -> bytes:
        """The next whole reply; b"" where the connection ends first, in a reply or between two."""
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
        """The reply to one request."""
        self.send(*words)
        return self.reply()

    def rest(self) -> bytes:
        """All that comes until the connection ends."""
        data = self._data[self._at :]
        with contextlib.suppress(ConnectionError):
            while chunk := self.socket.recv(1 << 18):
                data += chunk
        return data

    def is_closed(self) -> bool:
        """Whether the other side has ended it. To be asked while no reply is due."""
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
        """End with a reset, as a process that is killed with unread data does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def request(*words: str | bytes | int) -> bytes:
    """A request; one text is split at its spaces."""
    if len(words) == 1 and isinstance(words[0], str):
        words = tuple(words[0].split())
    return encode.command(*words)


def is_sorry(reply: bytes) -> bool:
    """A clear error of keyfence's own, or the end of the connection."""
    return not reply or reply.startswith(b"-ERR keyfence: upstream ")


def bulk(word: str | bytes) -> bytes:
    """One argument as it stands in a request."""
    return encode.command(word).removeprefix(b"*1\r\n")
