"""What the nodes of a cluster tell each other, and what each of them knows: owners, primaries.

Rule: a node's view is the set of changes that it has heard of, in any order. The change with the highest
epoch counts, as with Redis. So two nodes may disagree, and the one with the newest change may lack an older
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.cluster.node import ClusterNode

NOBODY = 255  # owns a hash slot
_RUNS = re.compile(rb"(.)\1*", re.DOTALL)
PROMOTED, MOVED, JOINED, LEFT = "promoted", "moved", "joined", "left"


class Change(NamedTuple):
    """Something that the nodes hear of one after another."""

    epoch: int  # another one for each
    kind: str
    shard: int  # that it is about
    node: ClusterNode | None = None  # that is its primary now
    slots: frozenset[int] = frozenset()  # that it owns now


class View:
    """The cluster as a node knows it."""

    def __init__(self, primaries: Iterable[ClusterNode], owners: bytes) -> None:
        """`owners`: the shard of each hash slot."""
        self.primaries: dict[int, ClusterNode] = {one.shard.number: one for one in primaries}  # by shard
        self.owners = bytearray(owners)
        self.epochs: dict[int, int] = {
            shard: shard for shard in self.primaries
        }  # of configurations, by shard
        self._ranges: dict[int, list[str]] | None = None

    def after(self, changes: Iterable[Change]) -> View:
        """The view of a node that has heard of these changes too."""
        made = View(self.primaries.values(), self.owners)
        for one in sorted(changes):
            if one.kind == LEFT:
                made.primaries.pop(one.shard, None)
                continue
            if one.node is not None:
                made.primaries[one.shard] = one.node
            elif one.shard not in made.primaries:
                continue  # that it owns hash slots counts once it is known
            for slot in one.slots:
                made.owners[slot] = one.shard
            if one.kind != JOINED:
                made.epochs[one.shard] = one.epoch
        return made

    def owner(self, slot: int) -> ClusterNode | None:
        """The primary that has a hash slot."""
        return self.primaries.get(self.owners[slot])

    def ranges(self, shard: int) -> list[str]:
        """The hash slots of a shard, as CLUSTER NODES writes them."""
        if self._ranges is None:
            self._ranges = {}
            for run in _RUNS.finditer(self.owners):
                first, last = run.start(), run.end() - 1
                text = f"{first}-{last}" if last > first else str(first)
                self._ranges.setdefault(run[0][0], []).append(text)
        return self._ranges.get(shard, [])

    @property
    def serving(self) -> list[ClusterNode]:
        """The primaries that have hash slots."""
        return [one for shard, one in self.primaries.items() if self.ranges(shard)]
