"""Real Sentinels on loopback, and the primary and replicas that they watch.

Rule: as for all servers of tests: child processes, ended by their own pids, on free ports.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import redis

from tests.servers import (
    PATIENCE_SECONDS,
    Keyfence,
    RedisServer,
    free_port,
    running_redis,
    server_binaries,
)

NAME = "main"
SENTINELS = 3
POLICY = """policy: p
services: [app]
scopes: {all: {prefix: "app:", writers: [app], unregistered: allow}}
"""
LISTENERS = '[{listen: "127.0.0.1:0", service: app}]'


class Watched(NamedTuple):
    """A primary, its replicas, and the ports of the Sentinels that watch them."""

    primary: RedisServer
    replicas: list[RedisServer]
    sentinels: list[int]

    @property
    def replica(self) -> RedisServer:
        """The only replica."""
        [replica] = self.replicas
        return replica

    def begin_to_fail_over(self) -> None:
        """Has the Sentinels make a replica the primary."""
        with _client(self.sentinels[0]) as sentinel:
            _until(lambda: _answers(sentinel, "SENTINEL", "FAILOVER", NAME))

    def fail_over(self) -> None:
        """Has the Sentinels make the replica the primary. Returns once the former primary is a replica."""
        self.begin_to_fail_over()
        with self.primary.client() as former:
            _until(lambda: former.role()[0] == b"slave")


@contextlib.contextmanager
def running_sentinels(folder: Path, down_after: int = 60_000, replicas: int = 1) -> Iterator[Watched]:
    """Starts the servers and waits until the Sentinels know all of them. A primary that does not answer for
    `down_after` milliseconds is replaced."""
    with contextlib.ExitStack() as servers:
        at_once = ["--repl-diskless-sync-delay", "0"]
        primary = servers.enter_context(running_redis(tcp=True, arguments=at_once))
        of_primary = ["--replicaof", "127.0.0.1", str(primary.port), *at_once]
        others = [
            servers.enter_context(running_redis(tcp=True, arguments=of_primary)) for _ in range(replicas)
        ]
        for one in others:
            with one.client() as client:
                _until(lambda client=client: client.info("replication")["master_link_status"] == "up")  # type: ignore[misc]
        ports = [free_port() for _ in range(SENTINELS)]
        for port in ports:
            servers.enter_context(_sentinel(folder, port, primary, down_after))
        for port in ports:
            with _client(port) as sentinel:
                _until(lambda client=sentinel: _knows_all(client, replicas))  # type: ignore[misc]
        yield Watched(primary, others, ports)


@contextlib.contextmanager
def _sentinel(folder: Path, port: int, primary: RedisServer, down_after: int) -> Iterator[None]:
    config = folder / f"sentinel-{port}.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\n"
        f"sentinel monitor {NAME} 127.0.0.1 {primary.port} 2\n"
        f"sentinel down-after-milliseconds {NAME} {down_after}\n"
        f"sentinel failover-timeout {NAME} 10000\n"
    )
    command = [server_binaries()[0].path, config, "--sentinel"]
    with (folder / f"sentinel-{port}.log").open("w") as log, subprocess.Popen(command, stdout=log) as process:
        try:
            yield
        finally:
            process.kill()


def _client(port: int) -> redis.Redis:
    return redis.Redis(port=port, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 100))


def _knows_all(sentinel: redis.Redis, replicas: int) -> bool:
    known = sentinel.execute_command("SENTINEL", "MASTER", NAME)
    if not isinstance(known, dict):
        known = dict(zip(known[::2], known[1::2], strict=True))
    known = {_text(name): _text(value) for name, value in known.items()}
    return (known["num-slaves"], known["num-other-sentinels"]) == (str(replicas), str(SENTINELS - 1))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _answers(sentinel: redis.Redis, *words: str) -> bool:
    """Whether the Sentinel obeys: right after its start it may not know a good replica yet."""
    try:
        sentinel.execute_command(*words)
    except redis.ResponseError:
        return False
    return True


def _until(check: object) -> None:
    assert callable(check)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < deadline, "the Sentinels never agreed"
        time.sleep(0.05)


@contextlib.contextmanager
def following(
    folder: Path,
    watched: Watched,
    more: str = "",
    *,
    told: str = "",
    listeners: str = LISTENERS,
    replicas: bool = False,
) -> Iterator[Keyfence]:
    """Runs a keyfence that follows the primary which the Sentinels name. `more` are lines of its
    configuration; its standard error must match `told`. `replicas`: it knows the replicas too."""
    hosts = ", ".join(f'"127.0.0.1:{port}"' for port in watched.sentinels)
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "keyfence.yaml").write_text(
        f"policy: policy.yaml\n"
        f"upstream: {{sentinel: {{hosts: [{hosts}], name: {NAME}}}{', replicas: sentinel' * replicas}}}\n"
        f'listeners: {listeners}\nadmin: "127.0.0.1:0"\nfindings: none\n{more}\n'
    )
    with Keyfence("--config", folder / "keyfence.yaml", expect_stderr=told) as keyfence:
        yield keyfence
