"""A Redis, a fault proxy and keyfence, for each upstream mode; and what they must leave behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from keyfence.config.upstream import UpstreamModel
from tests.adversity.fault_proxy import NONE, FaultProxy
from tests.adversity.stage import ILL, Footprint, Stage, configure
from tests.clients.running import open_files
from tests.servers import Keyfence, RedisServer, running_redis

MODES = ["dedicated", "shared"] if "mode" in UpstreamModel.model_fields else [""]


@pytest.fixture(scope="package")
def _redis() -> Iterator[RedisServer]:
    with running_redis(tcp=True) as server:
        yield server


@pytest.fixture(scope="package", params=MODES, ids=lambda mode: mode or "one-mode")
def upstream_mode(request: pytest.FixtureRequest) -> str:
    """How keyfence connects to Redis; "" where it knows one way only."""
    return str(request.param)


@pytest.fixture(scope="package")
def _stage(
    _redis: RedisServer, upstream_mode: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    assert _redis.port is not None
    folder = tmp_path_factory.mktemp("adversity")
    with ExitStack() as stack:
        faults = stack.enter_context(FaultProxy(_redis.port))
        config = configure(folder, faults.url, upstream_mode)
        keyfence = stack.enter_context(Keyfence("--config", config, expect_stderr=ILL))
        yield Stage(keyfence, _redis, faults, upstream_mode, folder)


@pytest.fixture(scope="package")
def _first_files(_stage: Stage) -> Counter[str]:
    """What keyfence has open at rest, before the first test: each one must come back to it."""
    _stage.rest()
    return open_files(_stage.keyfence)


@pytest.fixture
def stage(_stage: Stage, _first_files: Counter[str]) -> Iterator[Stage]:
    """All at rest before the test, and again after it: nothing open or kept, no fault of its own."""
    _stage.redis.clear()
    _stage.rest()
    before = Footprint(_first_files, _stage.memory())
    yield _stage
    _stage.faults.faults = NONE
    _stage.faults.come_back()
    _stage.nothing_is_left(before)


@pytest.fixture
def start_stage(_redis: RedisServer, upstream_mode: str, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Starts a stage of the test's own, with more lines of configuration, or before another port."""
    assert _redis.port is not None
    _redis.clear()
    with ExitStack() as stack:

        def start(
            *more: str, target: int | None = None, upstream: str = "", expect_stderr: str = ""
        ) -> Stage:
            faults = stack.enter_context(FaultProxy(target or _redis.port or 0))
            config = configure(tmp_path, upstream or faults.url, upstream_mode, *more)
            keyfence = stack.enter_context(Keyfence("--config", config, expect_stderr=expect_stderr))
            return Stage(keyfence, _redis, faults, upstream_mode, tmp_path)

        yield start
