"""A real Redis Cluster on loopback: three masters, and replicas of them, one after another, if a test asks.

Rule: as for all servers of tests: child processes, ended by their own pids, on free ports.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import redis

from tests.servers import (
    PATIENCE_SECONDS,
    RedisServer,
    ServerBinary,
    free_port,
    running_redis,
    server_binaries,
)

SLOTS = 16384
MASTERS = 3
_ENABLED = ("--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0")
NO_CLUSTER = "a cluster needs Redis 7 or later: its ports are given by cluster-port"


class Cluster(NamedTuple):
    """The servers of a cluster."""

    masters: list[RedisServer]
    replicas: list[RedisServer]

    @property
    def url(self) -> str:
        return self.masters[0].url

    def client(self) -> redis.RedisCluster:
        """A client of the whole cluster; the caller closes it."""
        port = self.masters[0].port
        assert port is not None
        return redis.RedisCluster(host="127.0.0.1", port=port)

    def port_of(self, slot: int) -> int:
        """The port of the master that holds a hash slot."""
        with self.masters[0].client() as client:
            for first, last, master, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return int(master[1])
        raise LookupError(slot)


def cluster_binary() -> ServerBinary | None:
    """An installed server that can be a part of a cluster on any ports."""
    return next((one for one in server_binaries() if one.numbers >= (7,)), None)


@contextlib.contextmanager
def half_moved(cluster: Cluster, key: str) -> Iterator[None]:
    """While the body runs, the hash slot of this key moves to another master, and the key is there already:
    that master lists it, and answers only who asks as the cluster says."""
    with redis.RedisCluster.from_url(cluster.url) as client:
        slot = client.keyslot(key)
    owner = cluster.port_of(slot)
    giver = next(one for one in cluster.masters if one.port == owner)
    taker = next(one for one in cluster.masters if one.port != owner)
    with giver.client() as old, taker.client() as new:
        old_id, new_id = (one.execute_command("CLUSTER", "MYID") for one in (old, new))
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        with new.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING")
            pipeline.set(key, "x")
            pipeline.execute()
        try:
            yield
        finally:
            for one in (old, new):
                one.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
            new.flushall()


def moves_at_once(binary: ServerBinary) -> bool:
    """Whether it moves hash slots with all their keys at once: Redis from 8.4 on, Valkey from 9.0 on."""
    first = (9,) if binary.name == "valkey" else (8, 4)
    return binary.numbers >= first


def move_at_once(binary: ServerBinary, giver: redis.Redis, taker: redis.Redis, first: int, last: int) -> None:
    """Begins to move these hash slots with all their keys."""
    if binary.name == "valkey":
        taker_id = taker.execute_command("CLUSTER", "MYID")
        giver.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", taker_id)
    else:
        taker.execute_command("CLUSTER", "MIGRATION", "IMPORT", first, last)


@contextlib.contextmanager
def running_cluster(
    *, replicas: int = 0, binary: ServerBinary | None = None, settings: Mapping[str, str | int] | None = None
) -> Iterator[Cluster]:
    """Starts a cluster, and waits until all of its servers hold it to be whole. Then all get the settings."""
    binary = binary or cluster_binary()
    assert binary is not None, NO_CLUSTER
    with contextlib.ExitStack() as servers:
        buses = [free_port() for _ in range(MASTERS + replicas)]
        every = [
            servers.enter_context(
                running_redis(
                    binary,
                    tcp=True,
                    arguments=[*_ENABLED, "--cluster-port", str(bus)],
                )
            )
            for bus in buses
        ]
        cluster = Cluster(every[:MASTERS], every[MASTERS:])
        _join(cluster, buses)
        for server in every:
            with server.client() as client:
                for name, value in (settings or {}).items():
                    client.config_set(name, value)
        yield cluster


def _join(cluster: Cluster, buses: list[int]) -> None:
    every = [*cluster.masters, *cluster.replicas]
    for index, server in enumerate(cluster.masters):
        with server.client() as client:
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            first, last = SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    with every[0].client() as client:
        for server, bus in zip(every[1:], buses[1:], strict=True):
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
    ids = [_id(server) for server in cluster.masters]
    _until(lambda: all(_knows(server) == len(every) for server in every))
    for index, server in enumerate(cluster.replicas):
        with server.client() as client:
            client.execute_command("CLUSTER", "REPLICATE", ids[index % MASTERS])
    _until(lambda: all(_is_whole(server) for server in every))
    _until(lambda: all(_is_linked(server) for server in cluster.replicas))
    _until(lambda: all(_replicas_known(server) == len(cluster.replicas) for server in every))


def _id(server: RedisServer) -> str:
    with server.client() as client:
        found: bytes = client.execute_command("CLUSTER", "MYID")
    return found.decode()


def _knows(server: RedisServer) -> int:
    return int(_cluster_info(server)["cluster_known_nodes"])


def _is_whole(server: RedisServer) -> bool:
    return _cluster_info(server)["cluster_state"] == "ok"


def _is_linked(server: RedisServer) -> bool:
    with server.client() as client:
        return str(client.info("replication").get("master_link_status")) == "up"


def _replicas_known(server: RedisServer) -> int:
    with server.client() as client:
        rows = client.execute_command("CLUSTER", "SLOTS")
    return sum(len(row) - 3 for row in rows)


def _cluster_info(server: RedisServer) -> dict[str, str]:
    with server.client() as client:
        text = client.execute_command("CLUSTER", "INFO")
    if isinstance(text, dict):
        return text
    return dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the cluster does not come together"
        time.sleep(0.05)
