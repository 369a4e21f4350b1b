"""keyfence in observe in front of a real Redis, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.running import configure
from tests.servers import Keyfence, RedisServer


@pytest.fixture(scope="module")
def _observing(_shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyfence]:
    path = configure(tmp_path_factory.mktemp("clients"), _shared_redis.url, mode="observe")
    with Keyfence("--config", path) as keyfence:
        yield keyfence


@pytest.fixture
def observing(redis_server: RedisServer, _observing: Keyfence) -> Keyfence:
    """keyfence in observe, with an empty Redis behind it."""
    assert redis_server
    return _observing
