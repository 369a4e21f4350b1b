"""The commands that keyfence sends on its own behalf, and a Redis user with exactly these permissions."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.resp import encode
from keyfence.upstream.address import parse_upstream
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import OWN_COMMANDS, OwnCommand, acl_rules
from keyfence.upstream.own_user import missing_permissions
from tests.clients.running import eventually
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer

APP = "app on >app-password ~* &* +@all"
POLICY = """
policy: p
services: [app]
scopes: {all: {prefix: "k:", writers: [app]}}
keys: {a: {key: "k:<any>", ttl: {max: 100s, grace: 100ms}, max_value: 1kb, max_fields: 9, max_members: 9}}
placeholders: {any: "[a-z0-9]+"}
"""


def configuration(folder: Path, server: RedisServer, *more: str, password: str = "kf-password") -> Path:
    (folder / "policy.yaml").write_text(POLICY)
    path = folder / "keyfence.yaml"
    upstream = f"url: '{server.url}', username: kf, password: {password}"
    lines = [
        f"upstream: {{{upstream}}}",
        "policy: policy.yaml",
        "admin: none",
        "decision_log: decisions.jsonl",
        'listeners: [{listen: "127.0.0.1:0", service: app}]',
        *more,
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


class Monitor:
    """All commands that a server receives, by connection."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(str(server.socket_path))
        self._socket.sendall(encode.command("AUTH", server.password) + encode.command("MONITOR"))
        self._seen = b""
        self._asked = 0
        self._read_until(b"+OK\r\n+OK\r\n")

    def _read_until(self, end: bytes) -> None:
        while end not in self._seen:
            data = self._socket.recv(1 << 16)
            assert data, "MONITOR was ended"
            self._seen += data

    def commands(self) -> dict[str, list[str]]:
        """The names of the commands so far, by the client's address."""
        self._asked += 1
        with self._server.client() as admin:
            admin.echo(f"so far {self._asked}")
        self._read_until(b'"ECHO" "so far %d"\r\n' % self._asked)
        found: dict[str, list[str]] = {}
        for address, name in re.findall(rb'^\+[0-9.]+ \[\d+ ([^\]]+)\] "([^"]*)"', self._seen, re.MULTILINE):
            found.setdefault(address.decode(), []).append(name.decode().upper())
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    users = [f"kf on >kf-password {acl_rules()}", APP]
    return start_redis(acl=users, password="admin", tcp=True)


@pytest.fixture
def monitor(server: RedisServer) -> Iterator[Monitor]:
    one = Monitor(server)
    yield one
    one.close()


@pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["one process", "workers"])
def test_keyfence_sends_exactly_the_listed_commands(
    more: tuple[str, ...],
    server: RedisServer,
    monitor: Monitor,
    start_keyfence: Callable[..., Keyfence],
    tmp_path: Path,
) -> None:
    keyfence = start_keyfence("--config", configuration(tmp_path, server, *more))
    logged_in = {"username": "app", "password": "app-password"}
    for protocol, database in [(2, 0), (3, 1), (2, 0)]:
        with keyfence.client(protocol=protocol, db=database, **logged_in) as client:
            client.hset(f"k:x{database}", "f", "v")
            client.eval("return redis.call('SET', KEYS[1], 'v')", 1, "k:script")
            with client.pipeline() as pipeline:
                pipeline.get("k:x").expire("k:x", 10)
                pipeline.execute()
            for number in range(600):  # more than the requests between two barriers
                client.get(f"k:{number}")
    log = tmp_path / "decisions.jsonl"
    eventually(lambda: {"k:x0", "k:x1"} <= late_keys(log), "keyfence has asked for times to live")
    listed = {one.name.decode() for one in OWN_COMMANDS}
    eventually(lambda: sent_by_keyfence(monitor) >= listed, "keyfence has asked how large keys are")
    with server.client() as admin:
        assert admin.execute_command("ACL", "LOG") == []
    assert sent_by_keyfence(monitor) - {"AUTH", "HELLO"} == listed


def sent_by_keyfence(monitor: Monitor) -> set[str]:
    """The commands on connections without commands of clients."""
    own = [names for names in monitor.commands().values() if not is_of_a_client(names)]
    return {name for names in own for name in names}


def late_keys(log: Path) -> set[object]:
    whole_lines = log.read_text().split("\n")[:-1]
    return {line["key"] for line in map(json.loads, whole_lines) if line["action"] == "late"}


def is_of_a_client(names: list[str]) -> bool:
    """Whether a connection has carried commands of clients, or belongs to the test."""
    own = {one.name.decode() for one in OWN_COMMANDS} | {"AUTH", "HELLO"}
    of_clients = {"HSET", "EVAL", "GET", "MULTI", "EXEC", "EXPIRE", "SET", "CLIENT", "ACL", "CONFIG", "INFO"}
    assert set(names) <= own | of_clients, names
    return bool(of_clients & set(names)) or names == ["ECHO"]  # the end of `Monitor.commands`


@pytest.mark.parametrize("lacking", OWN_COMMANDS, ids=lambda one: one.name.decode())
def test_a_missing_permission_is_one_sentence_at_the_start(
    lacking: OwnCommand,
    start_redis: Callable[..., RedisServer],
    start_keyfence: Callable[..., Keyfence],
    tmp_path: Path,
) -> None:
    denied = f"-{lacking.name.decode().lower()}"
    server = start_redis(acl=[f"kf on >kf-password {acl_rules()} {denied}", APP], password="admin")
    keyfence = start_keyfence(
        "--config",
        configuration(tmp_path, server),
        expect_stderr=rf"\Akeyfence: the upstream's user kf lacks \+{denied[1:]} \([^\n]*: ACL SETUSER kf "
        rf"\+{denied[1:]} \(`keyfence acl self` prints all that keyfence needs\)\n\Z",
    )
    if lacking.name != b"SELECT":
        with keyfence.client(username="app", password="app-password") as client:
            assert client.hset("k:x", "f", "v")


def test_a_user_without_any_permission_is_one_sentence(
    start_redis: Callable[..., RedisServer], start_keyfence: Callable[..., Keyfence], tmp_path: Path
) -> None:
    server = start_redis(acl=["kf on >kf-password", APP], password="admin")
    everything = " ".join(re.escape(one.permission) for one in OWN_COMMANDS)
    config = configuration(tmp_path, server)
    start_keyfence("--config", config, expect_stderr=rf"\A[^\n]* user kf lacks {everything} [^\n]*\n\Z")


def test_a_user_that_may_read_only_some_keys_lacks_no_permission(
    start_redis: Callable[..., RedisServer], start_keyfence: Callable[..., Keyfence], tmp_path: Path
) -> None:
    rules = acl_rules().replace("~*", "~k:*")
    server = start_redis(acl=[f"kf on >kf-password {rules}", APP], password="admin")
    start_keyfence("--config", configuration(tmp_path, server))


def test_an_endless_answer_does_not_show_permissions() -> None:
    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"$1000000000\r\n" + b"x" * 65_536)
                await writer.drain()

    async def ask() -> list[OwnCommand] | None:
        async with await asyncio.start_server(flood, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = parse_upstream(f"redis://127.0.0.1:{port}")
            return await missing_permissions(Upstream(address, connect_timeout=PATIENCE_SECONDS))

    assert asyncio.run(ask()) is None


def test_the_permissions_are_printed() -> None:
    def printed(*arguments: str) -> str:
        command = [sys.executable, "-m", "keyfence", "acl", "self", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT).stdout

    assert printed("--rules") == f"{acl_rules()}\n"
    assert printed("--user", "kf").startswith(f"user kf on >PASSWORD {acl_rules()}\n")
    assert all(f"{one.permission} " in printed() for one in OWN_COMMANDS)


def test_the_documentation_has_the_rules() -> None:
    assert acl_rules() in (PROJECT / "docs" / "operations.md").read_text()


def test_the_list_makes_all_own_requests_of_keyfence() -> None:
    """This holds for the rooms with own connections to Redis, except for the login."""
    room = PROJECT / "proxy" / "keyfence" / "upstream"
    files = [*room.glob("*.py"), PROJECT / "proxy" / "keyfence" / "process" / "serving" / "ttl_check.py"]
    allowed = {b"AUTH", b"HELLO"}  # which every user may send
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "encode.command":
                first = node.args[0]
                if path.name == "own_commands.py":
                    continue
                assert isinstance(first, ast.Constant), (path, ast.unparse(node))
                assert first.value in allowed, (path, ast.unparse(node))
