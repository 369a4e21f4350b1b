"""A policy that an HTTPS server has is in force within a poll, and the server can do no harm."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.fleet.model import PolicyServer as Configured
from tests.clients.running import ask, configure, eventually, metric
from tests.fleet.policy_server import PolicyServer, properly, reply
from tests.servers import PATIENCE_SECONDS, PROJECT, Certificates, Keyfence, RedisServer, running_redis

POLICY = """policy: fleet
claims: ["a:"]
services: [CubeMaster, CubeProxy, cube-proxy-sidecar]
placeholders: {word: "[a-z]+"}
scopes: {s: {prefix: "a:", writers: [WRITER]}}
keys: {words: {key: "a:<word>", type: string}}
"""
FAULTY = POLICY.replace("WRITER", "Nobody")
SET = b"SET a:k v\r\n"


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


def by(writer: str) -> str:
    return POLICY.replace("WRITER", writer)


class Fleet:
    """A keyfence whose policy a server has, and that server."""

    def __init__(self, folder: Path, redis: RedisServer, ca: Path) -> None:
        redis.clear()
        self._folder, self._redis, self._ca = folder, redis, ca
        self._running = contextlib.ExitStack()
        (folder / "token").write_text("SECRET\n")

    def run(self, server: PolicyServer, *more: str, policy: str = "", **options: Any) -> None:
        config = configure(self._folder, self._redis.url, *more, mode="enforce")
        said = f"url: '{server.url}?sig=SECRET', ca: {self._ca}, credentials: 'file:token', poll: 1s{policy}"
        lines = config.read_text().splitlines()
        config.write_text("\n".join([f"policy: {{{said}}}", *lines[1:]]) + "\n")
        self.config = config
        env = {"STATE_DIRECTORY": str(self._folder / "state")}
        self.keyfence = self._running.enter_context(Keyfence("--config", config, env=env, **options))

    def stop(self) -> None:
        self._running.close()

    def writer(self) -> str:
        """Who may write, of two services; "" if clients are refused."""
        return "".join(one for one in ("CubeMaster", "CubeProxy") if self.answer(one).startswith(b"+OK"))

    def answer(self, service: str) -> bytes:
        try:
            with self.keyfence.connect(service) as connection:
                connection.sendall(SET)
                return connection.recv(1000)
        except ConnectionError:
            return b""

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask(self.keyfence, "/status")[1])
        return found

    def is_strictly_ready(self) -> bool:
        return ask(self.keyfence, "/readyz?strict")[0] == 200

    def reload(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "keyfence", "reload", "--admin", self.keyfence.ready.admin]
        return subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False
        )


@pytest.fixture
def fleet(tmp_path: Path, redis: RedisServer, certificates: Certificates) -> Iterator[Fleet]:
    one = Fleet(tmp_path, redis, certificates.ca)
    yield one
    one.stop()


def test_workers_serve_what_the_server_has_and_a_faulty_policy_changes_nothing(
    fleet: Fleet, certificates: Certificates
) -> None:
    with PolicyServer(by("CubeMaster"), certificates) as server:
        server.waits = True
        fleet.run(server, "workers: 2", expect_stderr=r"'Nobody'(.|\n)*nothing was reloaded")
        assert fleet.writer() == "CubeMaster"
        server.put(by("CubeProxy"))
        eventually(lambda: fleet.writer() == "CubeProxy", "what the server has is in force")
        assert {one["authorization"] for one in server.requests} == {"Bearer SECRET"}
        assert "wait=1" in {one.get("prefer") for one in server.requests}
        assert fleet.is_strictly_ready()
        server.put(FAULTY)
        eventually(lambda: not fleet.is_strictly_ready(), "a faulty policy is refused")
        assert fleet.writer() == "CubeProxy"
        (warning,) = json.loads(ask(fleet.keyfence, "/readyz")[1])["warnings"]
        assert f"{server.url}:5:" in warning, "the server is named, with the line"
        told = fleet.reload()
        assert (told.returncode, "'Nobody'" in told.stderr) == (1, True)
        server.put(by("CubeProxy"))
        eventually(fleet.is_strictly_ready, "the faulty policy was taken back")
        policy = fleet.status()["policy"]
        assert (policy["file"], policy["refused"]) == (server.url, None)
        assert policy["server"]["confirmed"] > 0
        assert "SECRET" not in json.dumps(fleet.status()) + ask(fleet.keyfence, "/metrics")[1]


def test_a_server_that_is_away_or_lies_leaves_the_policy_in_force_over_a_restart(
    fleet: Fleet, certificates: Certificates
) -> None:
    with PolicyServer(by("CubeMaster"), certificates) as server:
        fleet.run(server, expect_stderr="sends an answer that ends early(.|\n)*answers again")
        whole = server.policy
        server.respond = lambda *_: reply(whole[:40], length=len(whole))
        failures = "keyfence_policy_fetch_failures_total"
        eventually(lambda: metric(fleet.keyfence, failures) > 0, "truncated answers count")
        server.respond, server.policy = (
            lambda server, _: reply(server.policy, ETag='"same"'),
            by("CubeProxy").encode(),
        )
        eventually(lambda: fleet.writer() == "CubeProxy", "content counts, and not the ETag")
        fleet.stop()
    fleet.run(server, expect_stderr="cannot be reached")
    assert fleet.writer() == "CubeProxy"
    assert not fleet.is_strictly_ready()
    ready, body = ask(fleet.keyfence, "/readyz")
    assert ready == 200
    assert "the policy is the copy on disk" in json.loads(body)["warnings"][0]
    assert (fleet.config.parent / "state" / "policy.yaml").read_text() == by("CubeProxy")


@pytest.mark.parametrize("then", ["observe", "refuse"])
def test_a_policy_that_is_too_old_is_not_enforced(
    then: str, fleet: Fleet, certificates: Certificates
) -> None:
    with PolicyServer(by("CubeMaster"), certificates) as server:
        more = ["workers: 2"] if then == "refuse" else []
        stale = f", stale_after: 5s, then: {then}"
        fleet.run(server, *more, policy=stale, expect_stderr="is stale(.|\n)*is confirmed")
        eventually(lambda: fleet.writer() == "CubeMaster", "it is confirmed")
        with fleet.keyfence.connect("CubeMaster") as connected:
            connected.sendall(SET)
            assert connected.recv(100) == b"+OK\r\n"
            server.respond = lambda *_: reply(b"", "503 Service Unavailable")
            eventually(lambda: metric(fleet.keyfence, "keyfence_policy_stale") == 1, "it is too old")
            ready = ask(fleet.keyfence, "/readyz")[0]
            if then == "observe":
                assert (fleet.writer(), ready) == ("CubeMasterCubeProxy", 200)
            else:
                assert (fleet.writer(), ready) == ("", 503)
                assert b"serves no client: the policy is older" in fleet.answer("CubeMaster")
                assert connected.recv(100) == b"", "clients are closed"
        assert not fleet.is_strictly_ready()
        server.respond = properly
        eventually(lambda: fleet.writer() == "CubeMaster", "it is enforced again")
        eventually(fleet.is_strictly_ready, "it is confirmed")
        assert json.loads(ask(fleet.keyfence, "/status")[1])["break_glass"] == []


def test_without_a_server_and_a_copy_keyfence_does_not_start(tmp_path: Path, redis: RedisServer) -> None:
    with PolicyServer() as server:
        pass
    config = configure(tmp_path, redis.url)
    lines = config.read_text().splitlines()
    config.write_text("\n".join([f"policy: {{url: '{server.url}?sig=SECRET'}}", *lines[1:]]))
    done = subprocess.run(
        [sys.executable, "-m", "keyfence", "run", "--config", config],
        cwd=PROJECT,
        env=os.environ | {"STATE_DIRECTORY": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    shown = Configured(server.url).shown
    assert f"{shown}:1:1: error: this server cannot be reached" in done.stderr
    assert "there is no copy of its policy" in done.stderr
    assert "SECRET" not in done.stderr
