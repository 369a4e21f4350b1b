"""The changes to a cluster. Each returns once the nodes agree on it; `mend` brings back what it took away."""

from __future__ import annotations

from collections.abc import Callable

import redis
from redis.crc import key_slot

from benchmarks.clusters.arm import MOVING
from tests.clients.running import eventually
from tests.cluster import MASTERS, Cluster, move_at_once
from tests.end_to_end.clusters import moved_slot
from tests.servers import RedisServer, ServerBinary

FILLING = 2000  # keys in the hash slot that moves, so that it takes a while
AT_ONCE = 20  # keys that one MIGRATE moves
KINDS = ("reshard", "atomic", "graceful", "crash", "stop")


class Changing:
    """A cluster of three masters with one replica each, and what happens to it."""

    def __init__(self, cluster: Cluster, binary: ServerBinary) -> None:
        self._cluster = cluster
        self._binary = binary
        self._turn = 0  # how many changes there were
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
        """Moves a hash slot to another master, some keys at a time."""
        self._agreed(moved_slot(self._cluster, MOVING, at_once=AT_ONCE))

    def _atomic(self) -> None:
        """Moves a hash slot to the next master, with all its keys at once."""
        source, target = self._master_of_slot(), self._next_master()
        with source.client() as old, target.client() as new:
            move_at_once(self._binary, old, new, self._slot, self._slot)
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

        eventually(lambda: all(map(says, self.servers)), "all nodes know who has the hash slot")

    # Nodes

    def _graceful(self) -> None:
        """Has the replica of one shard take over, without loss."""
        _, heir = self._shard()
        with heir.client() as client:
            client.execute_command("CLUSTER", "FAILOVER")
        self._is_replaced(heir)

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
        eventually(lambda: sorted(map(_role_of, pair)) == ["master", "slave"], "a shard has a replica")
        master, replica = pair if _role_of(pair[0]) == "master" else pair[::-1]
        self._is_linked(replica)
        return master, replica

    @staticmethod
    def _is_replaced(heir: RedisServer) -> None:
        eventually(lambda: _role_of(heir) == "master", "the replica takes over")

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
            eventually(lambda: master_id in _nodes(new), "the new node knows the master")
            new.execute_command("CLUSTER", "REPLICATE", master_id)
            new_id = _id(new)
        for other in others:
            with other.client() as client:
                eventually(lambda: new_id in _nodes(client), "all nodes know the new one")
        self._is_linked(victim)

    def _resume(self, victim: RedisServer) -> None:
        victim.resume()
        eventually(lambda: _role_of(victim) == "slave", "the old master becomes a replica")
        self._is_linked(victim)

    @staticmethod
    def _is_linked(replica: RedisServer) -> None:
        with replica.client() as client:
            eventually(
                lambda: client.info("replication").get("master_link_status") == "up", "a replica follows"
            )


def _id(client: redis.Redis) -> str:
    found: bytes = client.execute_command("CLUSTER", "MYID")
    return found.decode()


def _nodes(client: redis.Redis) -> str:
    """The answer to CLUSTER NODES, as redis-py shows it."""
    return str(client.execute_command("CLUSTER", "NODES"))


def _bus(client: redis.Redis) -> int:
    found: dict[str, str] = client.config_get("cluster-port")
    return int(found["cluster-port"])


def _role_of(server: RedisServer) -> str:
    with server.client() as client:
        return str(client.info("replication")["role"])
