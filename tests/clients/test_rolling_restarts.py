"""redis-py, ioredis, node-redis and redis-cli at work while keyfence's workers are replaced, and while a new
keyfence takes the place of an old one, which is how a new version comes into force.

Rule: no client sends anything twice. So a command that fails must have run nowhere: what Redis has is what
the clients know to have written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.failovers.clients import Client, Failed, Route
from benchmarks.failovers.libraries import Node, clients, libraries
from tests.clients.running import eventually
from tests.sentinel import POLICY
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, free_port, running_redis

WORKERS = 2
PORT = free_port()
# What libraries of Node say while they connect again: nothing was sent.
WITHOUT = {"ClientOfflineError", "Stream isn't writeable"}


class Stage(NamedTuple):
    server: RedisServer
    config: Path

    @property
    def route(self) -> Route:
        return Route("keyfence", ("127.0.0.1", PORT), [])

    def kept(self, client: Client) -> list[str]:
        with self.server.client(decode_responses=True) as redis:
            return list(redis.lrange(client.list, 0, -1))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("keyfence")
    (folder / "policy.yaml").write_text(POLICY)
    config = folder / "keyfence.yaml"
    with running_redis(tcp=True) as server:
        config.write_text(
            f"policy: policy.yaml\nupstream: {server.url}\nadmin: none\nfindings: none\nworkers: {WORKERS}\n"
            f'drain: 2s\nlisteners: [{{listen: "127.0.0.1:{PORT}", service: app}}]\n'
        )
        yield Stage(server, config)


@contextlib.contextmanager
def at_work(working: Sequence[Client]) -> Iterator[None]:
    """Have clients work, from before the body until each has written after it."""
    for one in working:
        one.start()
    try:
        for one in working:
            eventually(one.is_at_work, f"{one.name} begins to work")
        yield
        since = time.monotonic()
        for one in working:
            eventually(lambda one=one: one.is_at_work(since), f"{one.name} writes again")  # type: ignore[misc]
            eventually(lambda one=one: one.seen.signs[-1] > since, f"{one.name}'s subscriber hears again")  # type: ignore[misc]
    finally:
        for one in working:
            one.end()
        for one in working:
            one.join()


def check(stage: Stage, client: Client) -> None:
    seen = client.seen
    assert seen.wrong == []
    assert seen.falls == 0
    assert stage.kept(client) == [element for element, _ in seen.confirmed], client.name


def made_for(stage: Stage) -> list[Client]:
    """A client of each library, and a node-redis that insists on notices, if node is here."""
    stage.server.clear()
    found = clients(stage.route)
    if "node-redis" in [one.name for one in found]:
        insists = Node(stage.route, "redis", maintEndpointType="none", maintNotifications="enabled")
        found.append(Client("node-redis, notified", stage.route.path, insists))
    return found


def test_a_rolling_restart_under_load_fails_no_command_that_has_run(stage: Stage) -> None:
    """redis-py takes notices with RESP3, and sees no error. Others see connections close, once a worker."""
    with Keyfence("--config", stage.config) as keyfence, contextlib.ExitStack() as opened:
        working = made_for(stage)
        resting = {
            name: opened.enter_context(contextlib.closing(library.speak()))
            for name, library in libraries(stage.route).items()
            if name != "redis-cli"  # it looks at its connection only when it has sent a command
        }
        for speaker in resting.values():
            assert speaker.ask(("ECHO", "before")) == ["before"]
        with at_work(working):
            os.kill(keyfence.process.pid, signal.SIGUSR2)
            keyfence.wait_for_line(f"keyfence: restarted {WORKERS} workers")
        for one in working:
            check(stage, one)
            lost = {name: number for name, number in one.seen.errors.items() if name not in WITHOUT}
            most = 0 if one.name == "redis-py 3" else WORKERS
            assert sum(lost.values()) <= most, (one.name, one.seen.errors)
        # redis-py reads the notice only now, and does not see the end of the connection behind it.
        with contextlib.suppress(Failed):
            resting["redis-py 3"].ask(("ECHO", "lost"))
        for name, speaker in resting.items():
            assert speaker.ask(("ECHO", "after")) == ["after"], name


def test_a_complete_restart_under_load_fails_no_command_that_has_run(stage: Stage) -> None:
    """Between the two, nothing listens: connections are refused, and what fails has run nowhere."""
    working = made_for(stage)
    with contextlib.ExitStack() as opened:
        former = opened.enter_context(contextlib.ExitStack())
        former.enter_context(Keyfence("--config", stage.config))
        with at_work(working):
            former.close()
            opened.enter_context(Keyfence("--config", stage.config))
        for one in working:
            check(stage, one)


@pytest.mark.parametrize("order", ["the old one ends first", "the new one starts first"])
def test_an_upgrade_under_load_refuses_no_connection_if_a_supervisor_keeps_the_sockets(
    stage: Stage, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py takes notices with RESP3, and sees no error. Others see a connection close between two
    commands, and connect again. If the old keyfence ends first, they wait in the socket's queue."""
    monkeypatch.setattr("benchmarks.failovers.libraries.ANSWER_SECONDS", PATIENCE_SECONDS)
    # After a notice redis-py waits for ten seconds at most, in which a busy machine may start nothing.
    without = WITHOUT | ({"TimeoutError"} if order == "the old one ends first" else set())
    working = made_for(stage)
    with socket.create_server(("127.0.0.1", PORT), backlog=128) as kept, contextlib.ExitStack() as opened:
        former = opened.enter_context(contextlib.ExitStack())
        former.enter_context(Keyfence("--config", stage.config, passes=[kept]))
        with at_work(working):
            if order == "the old one ends first":
                former.close()
            opened.enter_context(Keyfence("--config", stage.config, passes=[kept]))
            former.close()
        for one in working:
            check(stage, one)
            lost = {name: number for name, number in one.seen.errors.items() if name not in without}
            assert sum(lost.values()) <= (0 if one.name == "redis-py 3" else 1), (one.name, one.seen.errors)
