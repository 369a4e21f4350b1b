"""A Redis with a keyfence in front of it: both ways to it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from keyfence.config.upstream import UpstreamModel
from tests.differential.differences import Difference
from tests.differential.sides import Step
from tests.differential.ways import Ways
from tests.servers import Keyfence, RedisServer, ServerBinary, running_redis

HERE = Path(__file__).parent
# If set, both sides connect to Redis directly: any difference is a fault of the harness or belongs in
# `differences`.
CONTROL = bool(os.environ.get("KEYFENCE_CONTROL"))
UPSTREAM_MODES = ("shared", "dedicated") if "mode" in UpstreamModel.model_fields else ("dedicated",)

# The only lines that keyfence may print, when a test cuts its connections. Several that are cut in a row
# before Redis has answered are an outage, which ends with the next connection.
_STDERR = (
    r"\A(keyfence: the upstream does not list its commands .*\n"
    r"|keyfence: upstream \S+ is unreachable: "
    r"(broken pipe|connection reset by peer|it closed the connection)\n"
    r"|keyfence: upstream \S+ is up again after \d\.\d s\n)*\Z"
)

# If set: thousands of examples and a million commands, which take too long for every test run.
LONG = bool(os.environ.get("KEYFENCE_SOAK"))

Words = str | bytes | tuple[str | bytes | int, ...]


def step(
    on: str,
    *words: Words,
    ignoring: Sequence[Difference] = (),
    replies: int = 0,
    silent: bool = False,
    pieces: Sequence[int] = (),
    closes: bool = False,
    half_closes: bool = False,
) -> Step:
    """Returns a step. Text is a command, split at spaces; bytes are sent as they are."""
    split = tuple(tuple(one.split()) if isinstance(one, str) else one for one in words)
    return Step(on, split, tuple(ignoring), replies, silent, tuple(pieces), closes, half_closes)


def debuggable(binary: ServerBinary) -> tuple[str, ...]:
    """Returns the options under which a server executes DEBUG."""
    return () if binary.version.startswith("6.") else ("--enable-debug-command", "yes")


def configuration(folder: Path, upstream: str, mode: str, policy: str) -> Path:
    """Writes a configuration that enforces a policy of this folder, or at a path without `.yaml`. `upstream`
    is a URL, or other fields in its place."""
    where = upstream if ": " in upstream else f"url: {upstream}"
    through = f"{{{where}, mode: {mode}}}" if "mode" in UpstreamModel.model_fields else f"{{{where}}}"
    observed = ["command.unknown", "channel.read", "channel.write"]
    if policy == "refusing":
        observed += ["key.unregistered", "scan.scope", "script.keys"]
    lines = [
        f"policy: {HERE / policy}.yaml",
        f"upstream: {through}",
        "admin: none",
        'listeners: [{listen: "127.0.0.1:0", service: app}]',
        "limits: {request: 1GB, client_output: 1GB}",
        "modes:",
        *(f"  - {{rule: {rule}, mode: observe}}" for rule in observed),
        "  - {mode: enforce}",
    ]
    path = folder / f"{Path(policy).name}-{mode}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


class Pair(Ways):
    """Both ways to one server: directly and through keyfence."""

    def __init__(self, server: RedisServer, keyfence: Keyfence, resp: int = 2) -> None:
        self.server = server
        self.keyfence = keyfence
        through = self._to_redis if CONTROL else self._to_keyfence
        super().__init__(self._to_redis, through, server.client, resp)

    def speaking(self, resp: int) -> Pair:
        return Pair(self.server, self.keyfence, resp)

    def _to_redis(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.server.socket_path))
        return connection

    def _to_keyfence(self) -> socket.socket:
        connection = self.keyfence.connect()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


@contextlib.contextmanager
def running_pair(
    binary: ServerBinary,
    mode: str,
    folder: Path,
    policy: str = "everything",
    *,
    password: str = "",
    acl: Sequence[str] = (),
) -> Iterator[Pair]:
    """Starts a server, and a keyfence in front of it."""
    with running_redis(binary, password=password, acl=acl, arguments=debuggable(binary)) as server:
        path = configuration(folder, server.url, mode, policy)
        with Keyfence("--config", path, expect_stderr=_STDERR) as keyfence:
            yield Pair(server, keyfence)
