"""Messages to a supervisor, through a real notification socket."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
import redis

from keyfence.process.systemd import VARIABLE, notifier
from tests.clients.running import ask, configure
from tests.sentinel import POLICY
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


class Supervisor:
    """Listens as systemd does."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.settimeout(PATIENCE_SECONDS)
        self.environment = {VARIABLE: address}

    def heard(self) -> dict[str, str]:
        message = self.socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in message.split("\n"))


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Supervisor]:
    one = Supervisor(f"{tmp_path}/notify" if request.param == "path" else f"@keyfence-test-{os.getpid()}")
    with one.socket:
        yield one


def test_a_supervisor_gets_messages_about_start_reload_and_end(
    supervisor: Supervisor, server: RedisServer, tmp_path: Path, start_keyfence: Callable[..., Keyfence]
) -> None:
    config = configure(tmp_path, server.url, "workers: 1")
    keyfence = start_keyfence("--config", config, env=supervisor.environment)
    assert supervisor.heard() == {"READY": "1"}
    for text, status in [("", 200), ("nonsense: 1\n", 422)]:
        with config.open("a") as file:
            file.write(text)
        assert ask(keyfence, "/-/reload", {})[0] == status
        reloading = supervisor.heard()
        assert reloading["RELOADING"] == "1"
        assert int(reloading["MONOTONIC_USEC"]) > 0
        assert supervisor.heard() == {"READY": "1"}
    keyfence.expect_stderr = "nothing was reloaded"
    keyfence.process.send_signal(signal.SIGTERM)
    assert supervisor.heard() == {"STOPPING": "1"}
    keyfence.process.wait(PATIENCE_SECONDS)
    supervisor.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        supervisor.heard()


def follower_of(silent: socket.socket, pid: int) -> socket.socket:
    """The connection by which keyfence follows a cluster. It catches SIGHUP then, but not yet when it asks
    which commands the server has."""
    while True:
        connection = silent.accept()[0]
        status = Path(f"/proc/{pid}/status").read_text()
        if int(re.search(r"SigCgt:\s+(\w+)", status)[1], 16) >> (signal.SIGHUP - 1) & 1:  # type: ignore[index]
            return connection
        connection.close()


def test_a_reload_during_the_start_does_not_end_the_start(tmp_path: Path) -> None:
    """The nodes of a cluster are asked before anything listens. Here the only one says nothing yet."""
    supervisor = Supervisor(f"{tmp_path}/notify")
    (tmp_path / "policy.yaml").write_text(POLICY)
    with supervisor.socket, socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "keyfence.yaml"
        seed = f"127.0.0.1:{silent.getsockname()[1]}"
        config.write_text(
            "policy: policy.yaml\nadmin: none\nfindings: none\n"
            f'upstream: {{cluster: ["{seed}"], expose: single, connect_timeout: 60s}}\n'
            'listeners: [{listen: "127.0.0.1:0", service: app}]\n'
        )
        command = [sys.executable, "-m", "keyfence", "run", "--config", str(config)]
        with subprocess.Popen(
            command, env=os.environ | supervisor.environment, stdout=PIPE, stderr=PIPE, text=True
        ) as keyfence:
            try:
                with follower_of(silent, keyfence.pid):
                    keyfence.send_signal(signal.SIGHUP)
                    silent.close()
                    assert supervisor.heard() == {"READY": "1"}
            finally:
                keyfence.terminate()


def test_a_missing_supervisor_is_not_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/none")
    notify = notifier()
    notify("READY=1")
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("address", ["", "vsock:2:1", "relative"])
def test_without_a_supervisor_no_message_is_sent(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, address)
    notifier()("READY=1")


def test_a_passed_socket_serves_its_listener_and_stays_open(server: RedisServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:
        host, port = kept.getsockname()
        config = tmp_path / "keyfence.yaml"
        (tmp_path / "policy.yaml").write_text(POLICY)
        config.write_text(
            f"policy: policy.yaml\nupstream: {server.url}\nadmin: none\nfindings: none\nworkers: 2\n"
            f'listeners: [{{listen: "{host}:{port}", service: app}}]\n'
        )
        for _ in range(2):
            with Keyfence("--config", config, passes=[kept]), redis.Redis(host, port) as client:
                assert client.ping()
        with socket.create_connection((host, port)):
            pass  # it waits for the next keyfence


def test_a_passed_socket_that_no_listener_has_ends_the_start(server: RedisServer, tmp_path: Path) -> None:
    config = configure(tmp_path, server.url)
    with socket.create_server(("127.0.0.1", 0)) as kept:
        host, port = kept.getsockname()
        with pytest.raises(AssertionError, match=f"ended with 2; .*has the address {host}:{port}"):
            Keyfence("--config", config, passes=[kept]).__enter__()
