"""redis-cli, as people use it at the prompt and in scripts."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from keyfence.resp import encode
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer

CLI = shutil.which("redis-cli")
pytestmark = pytest.mark.skipif(CLI is None, reason="redis-cli is not on PATH")


def cli(keyfence: Keyfence, *arguments: str, stdin: bytes = b"") -> str:
    host, port = keyfence.address("CubeMaster")
    run = subprocess.run(
        [str(CLI), "-h", host, "-p", str(port), *arguments],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return run.stdout.decode()


def test_redis_cli_runs_one_command(observing: Keyfence) -> None:
    assert cli(observing, "SET", "k", "a b") == "OK\n"
    assert cli(observing, "GET", "k") == "a b\n"
    assert cli(observing, "-3", "HGETALL", "none") == "\n"
    assert cli(observing, "NOSUCH", "x").startswith("ERR unknown command")


def test_redis_cli_reads_standard_input(observing: Keyfence) -> None:
    lines = b'SET k "a\\nb"\nMULTI\nINCR n\nINCR n\nEXEC\nGET k\n'
    assert cli(observing, stdin=lines).split() == ["OK", "OK", "QUEUED", "QUEUED", "1", "2", "a", "b"]


def test_redis_cli_mass_insertion(observing: Keyfence, redis_server: RedisServer) -> None:
    data = b"".join(encode.command("SET", f"key:{number}", number) for number in range(5_000))
    assert "errors: 0, replies: 5000" in cli(observing, "--pipe", stdin=data)
    with redis_server.client() as direct:
        assert direct.dbsize() == 5_000
    assert len(cli(observing, "--scan", "--pattern", "key:*").split()) == 5_000


def test_redis_cli_s_own_requests(observing: Keyfence) -> None:
    assert "redis_version" in cli(observing, "INFO", "server")
    assert cli(observing, "--no-raw", "ECHO", "x") == '"x"\n'
    assert cli(observing, "-n", "0", "-r", "3", "PING") == "PONG\n" * 3
