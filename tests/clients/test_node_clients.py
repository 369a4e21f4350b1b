"""ioredis and node-redis, with their default settings, cannot distinguish keyfence from Redis."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer

NODE = PROJECT / "tests" / "node"
PREFIX = "app:v1:"
# One service may do everything under its prefix, the other may only read there.
POLICY = """
policy: node-clients
owner: {team: tests, contact: "#tests"}
claims: ["app:"]
services: [writer, reader]
scopes:
  app: {prefix: "app:v1:", writers: [writer], readers: [reader]}
keys:
  any: {key: "app:v1:<name>", type: [string, hash, list]}
placeholders:
  name: "[a-z]+"
unregistered_scripts: declared
"""

pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="no node here"),
    pytest.mark.skipif(not (NODE / "node_modules").is_dir(), reason="`npm ci` was not run in tests/node"),
]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def run(script: str, address: tuple[str, int]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", script, f"{address[0]}:{address[1]}", PREFIX],
        cwd=NODE,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def seen(script: str, address: tuple[str, int]) -> dict[str, object]:
    done = run(script, address)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers: dict[str, object] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("script", ["ioredis.js", "node_redis.js"])
def test_a_client_gets_the_same_as_without_keyfence(
    script: str,
    mode: str,
    policy: Path,
    start_redis: Callable[..., RedisServer],
    start_keyfence: Callable[..., Keyfence],
) -> None:
    server = start_redis(tcp=True)
    assert server.port is not None
    direct = seen(script, ("127.0.0.1", server.port))
    keyfence = start_keyfence(
        *("--policy", policy, "--mode", mode, "--upstream", server.url, "--service", "writer"),
        *("--listen", "127.0.0.1:0", "--admin", "none"),
    )
    assert seen(script, keyfence.address()) == direct
    assert direct["multi"] == [3, "OK", "ü\r\n"]
    assert str(direct["error"]).startswith("WRONGTYPE")


@pytest.mark.parametrize("script", ["ioredis.js", "node_redis.js"])
def test_a_client_gets_an_ordinary_error_for_a_refusal(
    script: str,
    policy: Path,
    start_redis: Callable[..., RedisServer],
    start_keyfence: Callable[..., Keyfence],
) -> None:
    server = start_redis(tcp=True)
    keyfence = start_keyfence(
        *("--policy", policy, "--mode", "enforce", "--upstream", server.url, "--service", "reader"),
        *("--listen", "127.0.0.1:0", "--admin", "none"),
    )
    refused = run(script, keyfence.address())
    assert refused.returncode != 0
    assert "NOPERM [scope.write] reader may not SET app:v1:a" in refused.stderr
    with server.client() as client:
        assert client.dbsize() == 0
