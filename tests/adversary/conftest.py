"""Randomized searches for faults that an attacker would look for, one class of faults each.

Rule: a search is bounded by time, and makes a minimum number of attempts on any machine.

Every attempt has its own seed, and a failure names it: `KEYFENCE_ADVERSARY_SEED=… pytest …` tries that one
first. The seeds are the same in each run, so that chance does not decide whether a change passes.
`make adversary MINUTES=60` draws new ones, and gives each search its share of the time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.adversary.stage import Stage, running_stage
from tests.servers import RedisServer, ServerBinary, all_server_binaries, running_redis

# The default time of a search. `@pytest.mark.search_seconds` gives one more. All searches together take some
# six minutes of one processor in CI.
DEFAULT_SECONDS = 2.0


class Search:
    """One search. Iterating it yields a random generator for each attempt, until the time is over."""

    def __init__(self, name: str, seconds: float, first_seed: int | None, *, is_new: bool) -> None:
        """`is_new`: with seeds that differ in each run."""
        self.name = name
        self._seeds: random.Random = random.SystemRandom() if is_new else random.Random(name)
        self.seconds = seconds
        self._first_seed = first_seed
        self.seed = 0  # of the current attempt
        self.attempts = 0

    def attempts_of_at_least(self, least: int) -> Iterator[random.Random]:
        """Yields generators until the time is over, and at least `least` of them."""
        end = time.monotonic() + self.seconds
        while self.attempts < least or time.monotonic() < end:
            self.seed = self._seeds.getrandbits(48)
            if self.attempts == 0 and self._first_seed is not None:
                self.seed = self._first_seed
            yield random.Random(self.seed)
            self.attempts += 1

    def __iter__(self) -> Iterator[random.Random]:
        return self.attempts_of_at_least(10)


@pytest.fixture
def search(request: pytest.FixtureRequest) -> Search:
    """The search of this test."""
    given, seed = os.environ.get("KEYFENCE_ADVERSARY_SECONDS"), os.environ.get("KEYFENCE_ADVERSARY_SEED")
    marked = request.node.get_closest_marker("search_seconds")
    seconds = float(given) if given is not None else marked.args[0] if marked else DEFAULT_SECONDS
    return Search(request.node.name, seconds, int(seed) if seed else None, is_new=given is not None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Counts the attempts of each search, in any process, and names the seed of a failed one."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    found = getattr(item, "funcargs", {}).get("search")
    if report.when == "call" and isinstance(found, Search):
        report.user_properties.append(("attempts", found.attempts))
    if report.when == "call" and report.failed and isinstance(found, Search):
        again = f"KEYFENCE_ADVERSARY_SEED={found.seed} (attempt {found.attempts + 1})"
        report.sections.append(("the attempt that failed", again))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the number of attempts, if requested."""
    if "KEYFENCE_ADVERSARY_SECONDS" not in os.environ:
        return
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for report in sorted(reports, key=lambda one: one.nodeid):
        for name, attempts in report.user_properties:
            if name == "attempts":
                terminalreporter.write_line(f"{attempts:>9} attempts: {report.nodeid.rpartition('::')[2]}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a search with `each_binary` once for each installed or fetched server."""
    if "each_binary" in metafunc.fixturenames:
        binaries = all_server_binaries()
        metafunc.parametrize("each_binary", binaries, ids=[b.id for b in binaries], scope="session")


@pytest.fixture(scope="session")
def each_server(each_binary: ServerBinary) -> Iterator[RedisServer]:
    """A server of each kind, shared by the searches that need no other."""
    with running_redis(each_binary) as server:
        yield server


@pytest.fixture(scope="session")
def _stage_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[ServerBinary], Stage]]:
    """Returns a function that starts the stage of a server on its first call."""
    with ExitStack() as running:

        @cache
        def stage_of(binary: ServerBinary) -> Stage:
            return running.enter_context(running_stage(binary, tmp_path_factory.mktemp("stage")))

        yield stage_of


@pytest.fixture
def stage(each_binary: ServerBinary, _stage_of: Callable[[ServerBinary], Stage]) -> Stage:
    """A Redis with keyfence in front of it, once for each server. Tests share it: leave it unchanged."""
    return _stage_of(each_binary)


@pytest.fixture
def stages(_stage_of: Callable[[ServerBinary], Stage]) -> list[Stage]:
    """All stages, for a search over all servers at once."""
    return [_stage_of(binary) for binary in all_server_binaries()]
