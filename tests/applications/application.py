"""An application as a process, and the keyfence that it talks to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.clients.running import metric
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer

HERE = Path(__file__).parent
APPLICATIONS = PROJECT / "policies" / "applications"


@dataclasses.dataclass(frozen=True)
class Fence:
    """keyfence with an application's policy."""

    keyfence: Keyfence
    redis: RedisServer
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        return self.keyfence.address()

    @property
    def url(self) -> str:
        host, port = self.address
        return f"redis://{host}:{port}/0"

    def forwarded(self, command: str = "") -> float:
        """Returns how many commands passed, in total or of one name."""
        labels = {"command": command} if command else {}
        return metric(self.keyfence, "keyfence_commands_total", outcome="forwarded", **labels)

    def found(self) -> list[dict[str, object]]:
        """Returns the lines of the decision log, except those of probes."""
        found = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [one for one in found if not is_probe(one)]

    def found_nothing(self) -> None:
        """Asserts that the application broke no rule, and that keyfence followed every session."""
        assert self.found() == []
        assert metric(self.keyfence, "keyfence_sessions_opaque_total") == 0
        assert metric(self.keyfence, "keyfence_internal_errors_total") == 0

    def refuses(self, *command: str) -> None:
        """Asserts that the policy refuses a key that is not the application's."""
        with redis.Redis.from_url(self.url) as client, pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command)


def shipped(name: str) -> Path:
    """Returns the shipped policy for an application."""
    return APPLICATIONS / f"{name}.yaml"


def is_probe(found: dict[str, object]) -> bool:
    """CLIENT MAINT_NOTIFICATIONS: clients probe for it at connect and continue without it."""
    return (found["command"], found["rule"]) == ("CLIENT", "command.unknown")


def environment(**more: str) -> dict[str, str]:
    """Returns the environment for processes that import this project's tests."""
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "proxy")])
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | more


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Runs an application to its end, and returns what it printed on stdout."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd or HERE,
        env=environment(**env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def running(*command: str | Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Runs an application in the background, and ends it by its pid."""
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=HERE,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                said, _ = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
            print(said)  # shown by pytest where the test fails


def python(script: str) -> tuple[str | Path, ...]:
    return sys.executable, HERE / script
