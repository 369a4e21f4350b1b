"""A keyfence with its page, and services that send it right and wrong commands."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from tests.clients.running import POLICY, ROUTE, ask
from tests.servers import Keyfence, RedisServer

TOKEN = "the-token-of-these-tests-0123456789"
MASTER, PROXY, API, SIDECAR = SERVICES = ("CubeMaster", "CubeProxy", "CubeAPI", "cube-proxy-sidecar")
SECRET = "s3cr3t-t0k3n-0f-a-sess10n"  # fits the placeholder <token>, which is secret
NODE = "cube:v1:master:node:metric:node-1"

RIGHT = (
    (MASTER, "HSET", ROUTE, "HostIP", "10.0.0.7"),
    (PROXY, "HGET", ROUTE, "HostIP"),
    (MASTER, "HSET", NODE, "mvm_num", "12"),
    (MASTER, "EXPIRE", NODE, "600"),
    (API, "SET", "cube:v1:api:setting:theme", "dark", "EX", "60"),
)
WRONG = (
    (PROXY, "HSET", ROUTE, "HostIP", "10.0.0.8"),
    (MASTER, "HSET", "7c8fbcd45ffe450fb8f7fb223ad45507", "ins_id", "node-1"),
    (MASTER, "KEYS", "*"),
    (MASTER, "SET", "somewhere:else", "x"),
    (API, "SET", "session:42", "x"),
    (SIDECAR, "SET", "cube:v1:shared:sandbox:lifecycle:state:7c8f", "running"),
    (PROXY, "GET", f"cube:v1:api:session:{SECRET}"),
)

# Without secrets, keys are shown as they are.
OPEN_POLICY = """
policy: open
owner: {team: tests, contact: "#tests"}
claims: ["app:"]
services: [writer]
placeholders: {name: "[a-z]+"}
keys:
  thing: {key: "app:v1:<name>", writers: [writer]}
"""
HOSTILE = {
    "HTML": b"<img src=x onerror=window.hacked=1><script>window.hacked=1</script>'\"&lt;",
    "terminal escapes": b"\x1b[31mred\x1b]0;title\x07\r\n\x9b31m",
    "right to left": "abc\u202egpj.exe\u202c\u200f\u2067def".encode(),
    "8 KiB": b"Long" * 2048,
    "not UTF-8": b"\xff\xfe\x80\xc3\x28",
}


class Site:
    """A running keyfence, its folder, and a client of each service."""

    def __init__(self, keyfence: Keyfence, folder: Path) -> None:
        self.keyfence = keyfence
        self.folder = folder
        self.url = keyfence.ready.admin
        self._clients: dict[str, redis.Redis] = {}

    def send(self, service: str, *words: str | bytes) -> None:
        """Send a command. What Redis answers does not matter."""
        if service not in self._clients:
            self._clients[service] = self.keyfence.client(service, client_name=f"{service}-1")
        with contextlib.suppress(RedisError):
            self._clients[service].execute_command(*words)

    def findings(self, **filter_: str) -> list[dict[str, Any]]:
        """The findings, as programs get them."""
        query = "&".join(f"{name}={value}" for name, value in filter_.items())
        status, text = ask(self.keyfence, f"/findings?{query}")
        assert status == 200, text
        found: list[dict[str, Any]] = json.loads(text)["findings"]
        return found

    def finding(self, **filter_: str) -> str:
        """The path of the only finding that fits."""
        (one,) = self.findings(**filter_)
        return f"/findings/{one['id']}"

    def audit(self) -> list[dict[str, str]]:
        """The lines of the audit log."""
        path = self.folder / "audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@contextlib.contextmanager
def running_site(
    folder: Path,
    server: RedisServer,
    *,
    policy: str = "",
    services: Sequence[str] = SERVICES,
    token: bool = True,
    more: str = "",
    expect_stderr: str = "",
) -> Iterator[Site]:
    """A keyfence that observes, with its own copy of a policy and a waivers file. `more` is a further line of
    its configuration."""
    (folder / "policy.yaml").write_text(policy or POLICY.read_text())
    (folder / "waivers.yaml").write_text("waivers: []\n")
    admin = 'listen: "127.0.0.1:0"'
    if token:
        (folder / "token").write_text(TOKEN + "\n")
        (folder / "token").chmod(0o600)
        admin += ", token_file: token, audit_log: audit.log"
    lines = ["policy: policy.yaml", "waivers: waivers.yaml", f"upstream: {server.url}"]
    lines += [f"admin: {{{admin}}}", *([more] if more else []), "listeners:"]
    lines += [f'  - {{listen: "127.0.0.1:0", service: {name}}}' for name in services]
    config = folder / "keyfence.yaml"
    config.write_text("\n".join(lines) + "\n")
    with Keyfence("--config", config, expect_stderr=expect_stderr) as keyfence:
        site = Site(keyfence, folder)
        try:
            yield site
        finally:
            site.close()
