"""A Redis for each application, with keyfence and the application's policy in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.applications.application import Fence
from tests.servers import Keyfence, RedisServer, running_redis


@pytest.fixture(scope="package")
def _redis() -> Iterator[RedisServer]:
    """A server of one version. Apart from version checks, applications send the same to all versions."""
    with running_redis(tcp=True) as server:
        yield server


@pytest.fixture
def redis(_redis: RedisServer) -> RedisServer:
    """Empty."""
    _redis.clear()
    return _redis


@pytest.fixture
def fence(redis: RedisServer, tmp_path: Path) -> Iterator[Callable[[str | Path], Fence]]:
    """Starts keyfence with a policy, given as text or as a file.

    Its first service is everybody, and all is enforced.
    """
    with ExitStack() as stack:

        def start(policy: str | Path) -> Fence:
            path = policy if isinstance(policy, Path) else tmp_path / "policy.yaml"
            if isinstance(policy, str):
                path.write_text(policy)
            log = tmp_path / "decisions.jsonl"
            keyfence = stack.enter_context(
                Keyfence(
                    *("--policy", path, "--mode", "enforce", "--upstream", redis.url, "--service", "app"),
                    *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--decision-log", log),
                )
            )
            return Fence(keyfence, redis, log)

        yield start
