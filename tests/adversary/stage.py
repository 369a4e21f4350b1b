"""The stage of the searches: a Redis, a keyfence in front of it, victims and an attacker.

Rule: an attacker does only what a client can do. Tests do not touch keyfence's internals, and read the data
at stake from Redis itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import redis

from tests.adversary.calls import LIBRARY
from tests.adversary.resp import Frames, command
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, ServerBinary, running_redis

POLICY = Path(__file__).with_name("hunted.yaml")
SERVICES = ("stock", "web", "audit", "lax", "ops")
ENFORCED = ("stock", "web", "audit", "ops")  # `lax` is only observed
# Redis lets every user do everything; only keyfence separates them.
ACL = [f"{name} on >{name}-password ~* &* +@all" for name in SERVICES]

# The lines that keyfence may print: about clients that do not read, but about no internal error.
_STDERR = r"\A(keyfence: (?!internal).*\n)*\Z"


class Stage:
    """The Redis, the keyfence, and the folder of keyfence's log."""

    def __init__(self, server: RedisServer, keyfence: Keyfence, folder: Path) -> None:
        self.server = server
        self.keyfence = keyfence
        self.folder = folder
        self.direct: redis.Redis = server.client()  # past keyfence

    def client(self, service: str) -> Client:
        return Client(self.keyfence.connect(service))

    def log(self) -> list[dict[str, object]]:
        """The decision log so far."""
        return [json.loads(line) for line in (self.folder / "decisions.jsonl").read_text().splitlines()]

    def resident(self) -> int:
        """keyfence's memory, in bytes."""
        return int(self._proc("status").partition("VmRSS:")[2].split()[0]) * 1024

    def cpu_seconds(self) -> float:
        """The CPU time that keyfence has used."""
        return sum(map(int, self._stat()[11:13])) / os.sysconf("SC_CLK_TCK")

    def sleeps(self) -> bool:
        """Returns whether keyfence waits for an event."""
        return self._stat()[0] == "S"

    def _stat(self) -> list[str]:
        return self._proc("stat").rpartition(")")[2].split()

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.keyfence.process.pid}/{name}").read_text()


@contextlib.contextmanager
def running_stage(
    binary: ServerBinary, folder: Path, *more: str, shared_connections: int = 1
) -> Iterator[Stage]:
    """Starts both servers. `more` are lines of the configuration."""
    with running_redis(binary, acl=ACL) as server:
        lines = [
            f"policy: {POLICY}",
            f"upstream: {{url: {server.url}, shared_connections: {shared_connections}}}",
            "admin: none",
            "decision_log: decisions.jsonl",
            "drain: 500ms",
            "listeners:",
            *(f'  - {{listen: "127.0.0.1:0", service: {name}}}' for name in SERVICES),
            "modes:",
            "  - {service: lax, mode: observe}",
            "  - {rule: script.unregistered, mode: observe}",
            "  - {mode: enforce}",
            *more,
        ]
        (folder / "keyfence.yaml").write_text("\n".join(lines) + "\n")
        with Keyfence("--config", folder / "keyfence.yaml", expect_stderr=_STDERR) as keyfence:
            stage = Stage(server, keyfence, folder)
            with contextlib.suppress(redis.ResponseError):  # before Redis 7
                stage.direct.execute_command("FUNCTION", "LOAD", LIBRARY)  # type: ignore[no-untyped-call]
            try:
                yield stage
            finally:
                stage.direct.close()


class Ended(Exception):
    """keyfence closed the connection."""


class Client:
    """A plain connection, and the frames received on it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()
        self._come: list[bytes] = []

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends bytes. Raises Ended if the connection is closed."""
        try:
            self.socket.sendall(data)
        except OSError as exc:
            raise Ended(str(exc)) from None

    def ask(self, *words: str | bytes | int) -> bytes:
        """Returns one command's reply."""
        self.send(command(*words))
        return self.frames(1)[0]

    def frames(self, count: int) -> list[bytes]:
        """Waits for this number of frames. Raises Ended."""
        while len(self._come) < count:
            if self._frames.broken:
                raise self._frames.broken
            self._read()
        frames, self._come = self._come[:count], self._come[count:]
        return frames

    def drain(self, patience: float) -> list[bytes]:
        """Returns the frames that arrive until nothing comes for a moment."""
        with contextlib.suppress(Ended):
            while select.select([self.socket], [], [], patience)[0]:
                self._read()
        frames, self._come = self._come, []
        return frames

    def _read(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except OSError as exc:
            raise Ended(str(exc)) from None
        if not data:
            raise Ended("closed")
        self._come += self._frames.feed(data)

    def unread(self) -> bytes:
        """The bytes of an incomplete or broken frame."""
        return self._frames.rest


class Victim:
    """A client that writes and reads its own data, and knows each reply."""

    def __init__(self, stage: Stage, name: str, resp: int) -> None:
        self._client = stage.client("web")
        self._key = f"hunt:web:{name}"
        self._secret = f"secret-of-{name}-"
        self._round = 0
        self._expected: list[bytes] = []
        self._id = 0
        if resp == 3:
            hello = self._client.ask("HELLO", 3)
            self._id = int(hello.partition(b"$2\r\nid\r\n:")[2].partition(b"\r\n")[0])

    def send(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self._round += 1
            secret = f"{self._secret}{self._round}".encode()
            self._client.send(
                command("SET", self._key, secret)
                + command("GET", self._key)
                + command("STRLEN", self._key)
                + command("GET", self._key)
            )
            bulk = b"$%d\r\n%b\r\n" % (len(secret), secret)
            self._expected += [b"+OK\r\n", bulk, b":%d\r\n" % len(secret), bulk]

    def check(self) -> None:
        """Fails unless each reply is this client's own."""
        expected, self._expected = self._expected, []
        try:
            got = self._client.frames(len(expected))
        except Ended as exc:
            raise AssertionError(f"a victim's connection ended: {exc}") from None
        assert got == expected, "a victim got what is not its own"

    @property
    def connection_id(self) -> int:
        """The id that this client was shown of its own connection; 0 for none."""
        return self._id

    def close(self) -> None:
        self._client.close()


class Attacker(Client):
    """Sends an attack's bytes in pieces, and reads the replies."""

    def play(self, pieces: Iterable[bytes], pause: float = 0.0) -> None:
        """Sends all pieces, until the connection closes."""
        with contextlib.suppress(Ended):
            for piece in pieces:
                self.send(piece)
                if pause:
                    time.sleep(pause)


def attacker(stage: Stage, service: str) -> Attacker:
    connection = stage.keyfence.connect(service)
    connection.settimeout(PATIENCE_SECONDS)
    return Attacker(connection)
