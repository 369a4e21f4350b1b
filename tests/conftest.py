"""Fixtures that tests in more than one room use: real Redis servers, and keyfence as a process."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from keyfence.session.conversation import conversation
from keyfence.telemetry import operator_log
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.servers import (
    NO_SERVER,
    Certificates,
    Keyfence,
    RedisServer,
    ServerBinary,
    make_certificates,
    running_redis,
    server_binaries,
)
from tools.may_rerun import STATUS

# No deadline: the time of one example depends on the machine more than on the code. The same examples in each
# run: whether a change passes must not depend on chance, and `make fuzz-properties` searches for new ones.
SEARCHES = bool(os.environ.get("KEYFENCE_SEARCH"))
settings.register_profile("keyfence", deadline=None, derandomize=not SEARCHES)
settings.load_profile("keyfence")

_NEED_A_SERVER = {"redis_binary", "redis_server", "fresh_redis", "start_redis"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ends the session with one line if tests need a Redis that is missing. Skipping them would hide that."""
    needed = any(_NEED_A_SERVER.intersection(getattr(item, "fixturenames", ())) for item in items)
    if needed and not server_binaries():
        pytest.exit(NO_SERVER, returncode=3)


def pytest_configure(config: pytest.Config) -> None:
    """Ends it at once if tests run in several processes, whose last lines are not shown. The findings stores
    of the tests' keyfences go to a directory of this run."""
    state = tempfile.TemporaryDirectory(prefix="keyfence-state-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    conversation.TURN_SECONDS = (
        3600.0  # no turn ends because the machine is slow; tests of turns set their own
    )
    if getattr(config.option, "numprocesses", None) and not server_binaries():
        pytest.exit(NO_SERVER, returncode=3)


def pytest_sessionstart(session: pytest.Session) -> None:
    _keep_status(session, -1)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    _keep_status(session, int(exitstatus))


def _keep_status(session: pytest.Session, status: int) -> None:
    """Writes the result where `tools.may_rerun` reads it.

    An interrupted run leaves -1 behind, or no failed test.
    """
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set(STATUS, status)


def pytest_runtest_teardown() -> None:
    """A test may freeze objects for the collector, as keyfence does when it serves. Hypothesis then takes its
    generator of random numbers for one that nobody holds, and fails the next test."""
    gc.unfreeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failed test at once: of a run that is ended, nothing else would say which test has failed."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed ({report.when}, after {report.duration:.1f} s)", flush=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that needs a real Redis once per installed version."""
    if "redis_binary" in metafunc.fixturenames:
        binaries = server_binaries()
        metafunc.parametrize("redis_binary", binaries, ids=[b.id for b in binaries], scope="session")


@pytest.fixture(autouse=True)
def no_fault_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process prints only its first faults, and other tests have some."""
    monkeypatch.setattr(operator_log, "_reported", 0)


@pytest.fixture
def shortest_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's turn ends as soon as it may."""
    monkeypatch.setattr(conversation, "TURN_SECONDS", 0.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters without replicas. Rooms and modules that need another cluster have a fixture of their
    own."""
    if cluster_binary() is None:
        pytest.skip(NO_CLUSTER)
    with running_cluster() as one:
        yield one


@pytest.fixture(scope="session")
def _shared_redis(redis_binary: ServerBinary) -> Iterator[RedisServer]:
    with running_redis(redis_binary) as server:
        yield server


@pytest.fixture
def redis_server(_shared_redis: RedisServer) -> RedisServer:
    """An empty server, once per version. Tests share it: do not stop it or change its settings."""
    _shared_redis.clear()
    return _shared_redis


@pytest.fixture
def fresh_redis(redis_binary: ServerBinary) -> Iterator[RedisServer]:
    """A server for one test, on a unix socket; the test may pause, kill or configure it."""
    with running_redis(redis_binary) as server:
        yield server


@pytest.fixture
def start_redis(redis_binary: ServerBinary) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers for one test, with `running_redis`' options (password, acl, tcp, tls)."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(running_redis(redis_binary, **options))


@pytest.fixture
def start_keyfence() -> Iterator[Callable[..., Keyfence]]:
    """Starts `keyfence run` with these arguments and stops it after the test; see `Keyfence`."""
    with ExitStack() as processes:
        yield lambda *arguments, **options: processes.enter_context(Keyfence(*arguments, **options))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for TLS on 127.0.0.1."""
    if not shutil.which("openssl"):
        pytest.skip("the openssl command is not installed")
    return make_certificates(tmp_path_factory.mktemp("certificates"))
