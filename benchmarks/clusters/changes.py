"""The changes to a cluster. Each returns once the nodes agree on it; `mend` brings back what it took away."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
from redis.crc import key_slot

from benchmarks.clusters.arm import MOVING
from tests.cluster import MASTERS, Cluster
from tests.servers import PATIENCE_SECONDS, RedisServer

FILLING = 2000  # keys in the hash slot that moves, so that it takes a while
AT_ONCE = 20  # keys that one MIGRATE moves
KINDS = ("reshard", "atomic", "graceful", "crash", "stop")


class Changing:
    """A cluster of three masters with one replica each, and what happens to it. `turn` counts the changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = 0
        self._slot = key_slot(MOVING.encode())
        self._mend: Callable[[], None] = lambda: None
        self._fill()

    def change(self, kind: str) -> None:
        self._turn += 1
        getattr(self, f"_{kind}")()

    def mend(self) -> None:
        """Brings back what a change has taken away."""
        mend, self._mend = self._mend, lambda: None
        mend()

    @property
    def servers(self) -> list[RedisServer]:
        return [*self._cluster.masters, *self._cluster.replicas]

    def _fill(self) -> None:
        with self._master_of_slot().client() as client, client.pipeline(transaction=False) as pipeline:
            for number in range(FILLING):
                pipeline.set(f"{MOVING}:filling:{number}", number)
            pipeline.execute()

    # Hash slots

    def _reshard(self) -> None:
        """Moves a hash slot to the next master, some keys at a time."""
        source, target = self._master_of_slot(), self._next_master()
        with source.client() as old, target.client() as new:
            ids = _id(old), _id(new)
            new.execute_command("CLUSTER", "SETSLOT", self._slot, "IMPORTING", ids[0])
            old.execute_command("CLUSTER", "SETSLOT", self._slot, "MIGRATING", ids[1])
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, AT_ONCE):
                old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for one in (new, old):
                one.execute_command("CLUSTER", "SETSLOT", self._slot, "NODE", ids[1])
        self._agreed(target)

    def _atomic(self) -> None:
        """Has Redis (from 8.4 on) or Valkey (from 9.0 on) move a hash slot with all its keys at once."""
        source, target = self._master_of_slot(), self._next_master()
        with source.client() as old, target.client() as new:
            if old.info("server").get("server_name") == "valkey":
                range_ = ("SLOTSRANGE", self._slot, self._slot)
                old.execute_command("CLUSTER", "MIGRATESLOTS", *range_, "NODE", _id(new))
            else:
                new.execute_command("CLUSTER", "MIGRATION", "IMPORT", self._slot, self._slot)
        self._agreed(target)

    def _master_of_slot(self) -> RedisServer:
        port = self._cluster.port_of(self._slot)
        return next(one for one in self.servers if one.port == port)

    def _next_master(self) -> RedisServer:
        place = self._cluster.masters.index(self._master_of_slot())
        return self._cluster.masters[(place + 1) % MASTERS]

    def _agreed(self, target: RedisServer) -> None:
        def says(server: RedisServer) -> bool:
            with server.client() as client:
                rows = client.execute_command("CLUSTER", "SLOTS")
            ports = (master[1] for first, last, master, *_ in rows if first <= self._slot <= last)
            return next(ports, None) == target.port

        _until(lambda: all(map(says, self.servers)), "all nodes know who has the hash slot")

    # Nodes

    def _graceful(self) -> None:
        """Has the replica of one shard take over, without loss."""
        _, heir = self._shard()
        with heir.client() as client:
            client.execute_command("CLUSTER", "FAILOVER")
            _until(lambda: _role(client) == "master", "the replica takes over")

    def _crash(self) -> None:
        """Kills one master. `mend` puts a new node in its place, as a replica."""
        victim, heir = self._shard()
        with victim.client() as client:
            gone = _id(client)
        victim.kill()
        self._is_replaced(heir)
        self._mend = lambda: self._replace(victim, gone, heir)

    def _stop(self) -> None:
        """Stops one master's process, with its connections open. `mend` lets it go on, as a replica."""
        victim, heir = self._shard()
        victim.pause()
        self._is_replaced(heir)
        self._mend = lambda: self._resume(victim)

    def _shard(self) -> tuple[RedisServer, RedisServer]:
        """The master and the replica of the shard whose turn it is."""
        place = self._turn % MASTERS
        pair = self._cluster.masters[place], self._cluster.replicas[place]
        _until(lambda: sorted(map(_role_of, pair)) == ["master", "slave"], "a shard has a replica")
        master, replica = pair if _role_of(pair[0]) == "master" else pair[::-1]
        with replica.client() as client:
            _until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
        return master, replica

    @staticmethod
    def _is_replaced(heir: RedisServer) -> None:
        with heir.client() as client:
            _until(lambda: _role(client) == "master", "the replica takes over")

    def _replace(self, victim: RedisServer, gone: str, heir: RedisServer) -> None:
        victim.embedded.stop()
        victim.embedded.start()
        others = [one for one in self.servers if one is not victim]
        for other in others:
            with other.client() as client:
                client.execute_command("CLUSTER", "FORGET", gone)
        with victim.client() as new, heir.client() as master:
            new.config_set("cluster-node-timeout", master.config_get("cluster-node-timeout").popitem()[1])
            new.execute_command("CLUSTER", "MEET", "127.0.0.1", heir.port, _bus(master))
            master_id = _id(master)
            _until(lambda: master_id in _nodes(new), "the new node knows the master")
            new.execute_command("CLUSTER", "REPLICATE", master_id)
            new_id = _id(new)
        for other in others:
            with other.client() as client:
                _until(lambda: new_id in _nodes(client), "all nodes know the new one")
        self._is_linked(victim)

    def _resume(self, victim: RedisServer) -> None:
        victim.resume()
        _until(lambda: _role_of(victim) == "slave", "the old master becomes a replica")
        self._is_linked(victim)

    @staticmethod
    def _is_linked(replica: RedisServer) -> None:
        with replica.client() as client:
            _until(lambda: client.info("replication").get("master_link_status") == "up", "a replica follows")


def _id(client: redis.Redis) -> str:
    found: bytes = client.execute_command("CLUSTER", "MYID")
    return found.decode()


def _nodes(client: redis.Redis) -> str:
    """The answer to CLUSTER NODES, as redis-py shows it."""
    return str(client.execute_command("CLUSTER", "NODES"))


def _bus(client: redis.Redis) -> int:
    found: dict[str, str] = client.config_get("cluster-port")
    return int(found["cluster-port"])


def _role(client: redis.Redis) -> str:
    return str(client.info("replication")["role"])


def _role_of(server: RedisServer) -> str:
    with server.client() as client:
        return _role(client)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it never happened that {what}"
        time.sleep(0.01)
