"""The replicas of all masters of a cluster, while any service reads from them.

Rule: the topology says which there are. What is known of the replicas of one master has nothing to do with
those of another: each master has `Replicas` of its own, with checks of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from keyfence.upstream.cluster.topology import Topology
from keyfence.upstream.health import Upstream
from keyfence.upstream.replicas.replica import Replica
from keyfence.upstream.replicas.replicas import Replicas
from keyfence.upstream.replicas.sorting import Sorter
from keyfence.upstream.shared import SharedConnection


class ShardReplicas:
    """The replicas of all masters."""

    def __init__(self, size: int, reads: Collection[bytes]) -> None:
        """`size`: the maximum number of shared connections of one kind to one replica. `reads`: the commands
        that may be read there."""
        self.sorter = Sorter(reads)
        self.is_wanted = False  # whether any service reads from replicas
        self._size = size
        self._groups: dict[int, Replicas] = {}  # by the number of the master
        self._left: list[Replicas] = []  # of former masters
        self._checks: dict[Replicas, asyncio.Task[None]] = {}

    def of(self, master: int) -> Replicas | None:
        """The replicas of the master with this number; None: it has none to read from."""
        return self._groups.get(master)

    def __iter__(self) -> Iterator[Replica]:
        for group in self._groups.values():
            yield from group

    def take(self, topology: Topology, numbers: dict[str, int], upstreams: dict[int, Upstream]) -> None:
        """Use the replicas of this topology. `numbers`: of the nodes, by id; `upstreams`: by number."""
        found: dict[int, list[tuple[str, int]]] = {}
        for node in topology.owners() if self.is_wanted else ():
            number = numbers.get(node.id)
            near = [one.address for one in topology.replicas_of(node.id) if one.has_address]
            if number is not None and near:
                found[number] = near
        for number in self._groups.keys() - found.keys():
            self._let_go(self._groups.pop(number))
        for number, nodes in found.items():
            if number in self._groups:
                self._groups[number].take(nodes)
            else:
                group = self._groups[number] = Replicas(
                    upstreams[number], self._size, (), nodes, of_cluster=True
                )
                self._checks[group] = asyncio.get_running_loop().create_task(group.check_forever())

    def _let_go(self, group: Replicas) -> None:
        group.take(())
        self._left.append(group)
        self._checks.pop(group).cancel()

    async def end(self) -> None:
        """End all checks."""
        checks, self._checks = list(self._checks.values()), {}
        for one in checks:
            one.cancel()
        await asyncio.gather(*checks, return_exceptions=True)

    def take_reads(self) -> Counter[str]:
        """The number of reads since the last call, by the role of the node that they were sent to."""
        reads = Counter[str]()
        for group in (*self._groups.values(), *self._left):
            reads += group.take_reads()
        return reads

    def tick(self) -> None:
        """Call this about once a second."""
        for group in (*self._groups.values(), *self._left):
            group.tick()
        self._left = [one for one in self._left if any(one.connections())]

    def connections(self) -> Iterator[SharedConnection]:
        """All connections to replicas that are not closed."""
        for group in (*self._groups.values(), *self._left):
            yield from group.connections()

    def status(self) -> list[dict[str, Any]]:
        """What operators see of each replica."""
        return [row for group in self._groups.values() for row in group.status()]
