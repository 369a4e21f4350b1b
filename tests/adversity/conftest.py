"""A Redis, a fault proxy and a keyfence for each upstream mode, with checks for leaks."""

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
    """How keyfence connects to Redis; "" if there is only one mode."""
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
    """keyfence's open files and memory at rest, before the first test. Every test must return to them."""
    _stage.rest()
    return open_files(_stage.keyfence)


@pytest.fixture
def stage(_stage: Stage, _first_files: Counter[str]) -> Iterator[Stage]:
    """A stage at rest before the test and after it: nothing stays open or in memory, no internal error."""
    _stage.redis.clear()
    _stage.rest()
    before = Footprint(_first_files, _stage.memory())
    yield _stage
    _stage.faults.faults = NONE
    _stage.faults.come_back()
    _stage.check_for_leaks(before)


@pytest.fixture
def start_stage(_redis: RedisServer, upstream_mode: str, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Starts a stage for one test, with further lines of configuration or another upstream port."""
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
