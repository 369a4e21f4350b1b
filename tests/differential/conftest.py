"""The pairs of a Redis and a keyfence on which sessions are compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.pairs import UPSTREAM_MODES, Pair, running_pair
from tests.servers import ServerBinary


@pytest.fixture(scope="package", params=UPSTREAM_MODES)
def upstream_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="package")
def _everything(
    redis_binary: ServerBinary, upstream_mode: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    with running_pair(redis_binary, upstream_mode, tmp_path_factory.mktemp("everything")) as pair:
        yield pair


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def pair(_everything: Pair, request: pytest.FixtureRequest) -> Pair:
    """Sessions in both protocols. Tests share the server: do not change its settings."""
    return _everything.speaking(request.param)


@pytest.fixture
def plain_pair(_everything: Pair) -> Pair:
    """Sessions that choose their protocol themselves."""
    return _everything


@pytest.fixture(scope="package")
def _refusing(
    redis_binary: ServerBinary, upstream_mode: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("refusing")
    with running_pair(redis_binary, upstream_mode, folder, "refusing") as pair:
        yield pair


@pytest.fixture
def refusing_pair(_refusing: Pair) -> Pair:
    """The same, with a policy that refuses keys under no:."""
    return _refusing
