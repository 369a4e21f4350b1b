"""A Redis with a keyfence in front of it, and the comparison of a session over both."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from keyfence.config.upstream import UpstreamModel
from tests.clients.running import eventually
from tests.differential.differences import Difference
from tests.differential.sides import Heard, Side, Step, first_difference
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
    """Writes a configuration that enforces a policy of this folder."""
    through = f"{{url: {upstream}, mode: {mode}}}" if "mode" in UpstreamModel.model_fields else upstream
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
    path = folder / f"{policy}-{mode}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


class Pair:
    """Plays sessions on both sides of one server: directly and through keyfence."""

    def __init__(self, server: RedisServer, keyfence: Keyfence, resp: int = 2) -> None:
        self.server = server
        self.keyfence = keyfence
        self.resp = resp

    def speaking(self, resp: int) -> Pair:
        return Pair(self.server, self.keyfence, resp)

    def _direct(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.server.socket_path))
        return connection

    def _through(self) -> socket.socket:
        connection = self.keyfence.connect()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def same(self, *steps: Step, digest: bool = True) -> None:
        """Fails unless every reply, and the resulting data, is the same on both sides."""
        direct, data = self.directly(steps)
        through, data_through = self.through(steps, direct)
        report = list(first_difference(steps, direct, through))
        assert not report, "\n".join(["answered otherwise", *report])
        assert len(direct) == len(through)
        if digest:
            assert data == data_through, "\n".join(["the data differ after", *map(str, steps)])

    def directly(self, steps: Sequence[Step]) -> tuple[list[Heard], bytes]:
        """Plays a session directly on Redis. Returns the replies and a digest of the resulting data."""
        return self._play(Side(self._direct, [self._direct]), steps, ())

    def through(self, steps: Sequence[Step], expected: Sequence[Heard]) -> tuple[list[Heard], bytes]:
        """Plays the session through keyfence, up to the first step whose reply is not the expected one."""
        connect = self._direct if CONTROL else self._through
        return self._play(Side(connect, [connect, self._direct]), steps, expected)

    def _play(
        self, side: Side, steps: Sequence[Step], expected: Sequence[Heard]
    ) -> tuple[list[Heard], bytes]:
        try:
            self.empty()
            heard = side.play(steps, self.resp, expected)
            side.settle()
            return heard, self._digest()
        finally:
            side.close()
            self._until_alone()

    def _digest(self) -> bytes:
        with self.server.client() as admin:
            return bytes(admin.execute_command("DEBUG", "DIGEST"))

    def empty(self) -> None:
        """Removes everything that a session may have left in the server."""
        with self.server.client() as admin:
            admin.flushall()
            admin.script_flush()
            if self.server.version_info >= (7,):
                admin.execute_command("FUNCTION", "FLUSH")
            admin.config_resetstat()
            admin.slowlog_reset()
            admin.execute_command("ACL", "LOG", "RESET")

    def _until_alone(self) -> None:
        """Waits for closed connections to go. They stay for a moment, and PUBLISH would count them."""
        with self.server.client() as admin:
            admin.execute_command("CLIENT", "UNPAUSE")
            eventually(
                lambda: all(map(_is_plain, admin.client_list())), "the session's connections have ended"
            )


def _is_plain(client: dict[str, str]) -> bool:
    """Returns whether a connection keeps no state of a session, so that keyfence may hold it for others."""
    return (
        client["flags"] in ("N", "U")
        and client["multi"] == "-1"
        and int(client["sub"]) + int(client["psub"]) + int(client.get("ssub", 0)) == 0
    )


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
