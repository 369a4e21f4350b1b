"""A model of a Redis Cluster: shards, each a primary with its replicas, and how they hear of changes.

Rule: what is true is known to the model at once, and to each node after a while. A change is told to one node
first, and every other hears of it on its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from keyfence.policy.compiled.hash_slots import SLOTS, hash_slot
from tests.simulation.cluster.node import ClusterNode, keys_of
from tests.simulation.cluster.views import JOINED, LEFT, MOVED, NOBODY, PROMOTED, Change, View
from tests.simulation.dataset import BIG, Key
from tests.simulation.invariants import Witness
from tests.simulation.journal import Journal
from tests.simulation.network import Network
from tests.simulation.redis_model import Argv, Node, written_in
from tests.simulation.replication import Group

AGAIN_SECONDS = 0.1  # after which a node that could not be told is told again
NEWS_SECONDS = 1.0  # until keyfence knows of a shard that leaves, if the network is slow


class Shard(Group):
    """A primary and its replicas."""

    def __init__(self, cluster: Cluster, number: int, size: int) -> None:
        self.cluster = cluster
        self.number = number
        self.is_busy = False  # a failover or a migration is under way
        self.has_left = False
        self._size = size
        super().__init__(cluster.network, cluster.dice, cluster.journal, cluster.witness)
        self.kills_clients = False

    @property
    def members(self) -> list[ClusterNode]:
        return cast(list[ClusterNode], self.nodes)

    @property
    def first(self) -> ClusterNode:
        """The primary."""
        return cast(ClusterNode, self.primary)

    def make_nodes(self) -> Sequence[Node]:
        lone = View([], bytes([NOBODY]) * SLOTS)
        names = [f"redis-{self.number}{letter}" for letter in "abc"[: self._size]]
        return [
            ClusterNode(name, self, f"10.0.0.{10 * self.number + place + 1}", lone)
            for place, name in enumerate(names)
        ]

    def lateness(self) -> float:
        return 0.0

    def keys_of_now(self) -> Callable[[Key], bool]:
        owned = self.cluster.slots_of(self)
        return lambda key: hash_slot(key[1]) in owned

    def attach(self, node: Node) -> None:
        """A node becomes a replica, and hears of what made it one."""
        self.cluster.catch_up(cast(ClusterNode, node))
        super().attach(node)

    def _promote(self, chosen: Node) -> None:
        super()._promote(chosen)
        node = cast(ClusterNode, chosen)
        node.promote()
        self.cluster.catch_up(node)
        self.cluster.tell(PROMOTED, self, node, node=node)
        self.network.loop.call_soon(self._drop_what_has_left)

    def _drop_what_has_left(self) -> None:
        """A replica may not have heard that keys are at another shard now."""
        owned = self.cluster.slots_of(self)
        for database, key in list(self.primary.data.values):
            if hash_slot(key) not in owned:
                self.primary.run(database, [b"MIGRATED", key])

    def restart(self, node: Node) -> None:
        cast(ClusterNode, node).is_dead = False
        super().restart(node)


class Cluster:
    """All shards."""

    def __init__(self, network: Network, dice: random.Random, journal: Journal, witness: Witness) -> None:
        self.network = network
        self.dice = dice
        self.journal = journal
        self.witness = witness
        self.needs_all = dice.random() < 0.7  # cluster-require-full-coverage
        self.seeds: list[str] = []  # addresses of the nodes in keyfence's configuration
        self.failing: dict[ClusterNode, None] = {}  # nodes that the others take for dead
        self.cut_off: dict[ClusterNode, None] = {}  # nodes that know that they cannot reach the others
        self.has_ended_nodes = False  # a shard has left, which ends connections
        self.troubled_at = 0.0  # until when hash slots may have had no node that serves them
        self.refusals: Counter[bytes] = Counter()  # by the request that nodes have refused
        self.refused_by: dict[bytes, set[tuple[str, bytes]]] = {}  # the same: which nodes, with which words
        self.watched_at: dict[bytes, ClusterNode] = {}  # where the last WATCH has run, by key
        self.runs: Counter[bytes] = Counter()  # by key: commands that nodes have not refused
        self._late = dice.choice([0.01, 0.1, 0.5])  # seconds until a node has heard of a change
        self._epoch = 10
        self._changes: list[Change] = []
        self._views: dict[frozenset[int], View] = {}
        self._delivered: dict[ClusterNode, float] = {}  # until when messages are on their way to it
        self.shards: list[Shard] = []
        self.shards += [Shard(self, number, dice.choice([2, 2, 3])) for number in range(3)]
        owners = b"\0" * 5462 + b"\1" * 5461 + b"\2" * 5461
        self._base = View([one.first for one in self.shards], owners)
        self.truth = self._base
        for node in self.nodes:
            node.view = self._base

    @property
    def nodes(self) -> list[ClusterNode]:
        """All that are members."""
        return [node for shard in self.shards if not shard.has_left for node in shard.members]

    @property
    def serving(self) -> list[Shard]:
        """The shards that have hash slots."""
        return [one.shard for one in self.truth.serving]

    def slots_of(self, shard: Shard) -> set[int]:
        owners = self.truth.owners
        return {slot for slot in range(SLOTS) if owners[slot] == shard.number}

    def slots_in_use(self, shard: Shard) -> list[int]:
        """The hash slots of a shard with keys that clients have used."""
        names = [*self.runs, BIG]
        owners = self.truth.owners
        return sorted({slot for slot in map(hash_slot, names) if owners[slot] == shard.number})

    # -- what nodes hear

    def view_after(self, changes: Iterable[Change]) -> View:
        known = frozenset(one.epoch for one in changes)
        if known not in self._views:
            self._views[known] = self._base.after(changes)
        return self._views[known]

    def tell(
        self,
        kind: str,
        shard: Shard,
        first: ClusterNode,
        node: ClusterNode | None = None,
        slots: frozenset[int] = frozenset(),
    ) -> None:
        """Something has changed, which one node hears `first`."""
        self._epoch += 1
        change = Change(self._epoch, kind, shard.number, node, slots)
        self._changes.append(change)
        self.truth = self.view_after(self._changes)
        first.hear(change)
        for one in self.nodes:
            if one is not first:
                self.network.loop.call_later(self.dice.random() * self._late, self._hears, one, change)

    def _hears(self, node: ClusterNode, change: Change) -> None:
        if node.has_left:
            return
        if not self.can_hear(node):
            self.network.loop.call_later(AGAIN_SECONDS, self._hears, node, change)
            return
        node.hear(change)
        is_demoted = change.kind == PROMOTED and change.shard == node.shard.number and change.node is not node
        if is_demoted and node.is_primary and node is not node.shard.primary:
            node.shard.attach(node)

    def can_hear(self, node: ClusterNode) -> bool:
        return node.answers and not node.shard.is_isolated(node)

    def catch_up(self, node: ClusterNode) -> None:
        """A node hears of everything."""
        for one in self._changes:
            node.hear(one)

    @property
    def agrees(self) -> bool:
        """Whether all nodes know the same."""
        return all(len(one.heard) == len(self._changes) for one in self.nodes)

    # -- whether it serves

    def is_down_for(self, node: ClusterNode) -> bool:
        if node in self.cut_off:
            return True
        return self.needs_all and any(one in self.failing for one in node.view.serving if one is not node)

    def look(self) -> None:
        """Note whether all hash slots are served. Call this often."""
        serving = self.truth.serving
        is_served = all(one.is_primary and one.answers and not self.is_down_for(one) for one in serving)
        if self.cut_off or not is_served:
            self.troubled_at = max(self.troubled_at, self.network.loop.now)

    # -- what clients do

    def refused(self, node: ClusterNode, argv: Argv, refusal: bytes) -> None:
        request = b" ".join(argv)
        self.refusals[request] += 1
        self.refused_by.setdefault(request, set()).add((node.name, refusal[1:].split(b" ")[0]))
        if argv[0] == b"WATCH":
            self.watched_at.pop(argv[1], None)
        if refusal.startswith(b"-CROSSSLOT") and self.network.whole < 1.0:
            # That it has not run, keyfence does not know if the error comes in pieces.
            for key in keys_of(argv):
                self.ran(key)
        self.journal.add("%s answers %.60r to %.60r", node.name, refusal, request)

    def has_bounced(self, request: bytes) -> bool:
        """Whether keyfence may have followed all errors in answer to a request, and did not get it done."""
        words = {word for _, word in self.refused_by.get(request, ())}
        nodes = {node for node, _ in self.refused_by.get(request, ())}
        return len(nodes) > 1 or bool(words - {b"MOVED", b"ASK"}) or len(self.shards) > 3

    def ran(self, key: bytes) -> None:
        self.runs[key] += 1

    def publish(self, channel: bytes, text: bytes) -> None:
        """Somebody publishes at some node, and the others pass it on."""
        loop = self.network.loop
        for one in self.nodes:
            at = max(self._delivered.get(one, 0.0), loop.now + self.dice.random() * self._late)
            self._delivered[one] = at
            loop.call_at(at, self._published, one, channel, text)

    def _published(self, node: ClusterNode, channel: bytes, text: bytes) -> None:
        if self.can_hear(node) and not node.has_left:
            node.publish(channel, text)

    # -- migrations

    def keys_in(self, node: Node, slots: frozenset[int]) -> list[bytes]:
        return [key for _, key in node.data.values if hash_slot(key) in slots]

    def move_key(self, key: bytes, source: Shard, target: Shard) -> None:
        """MIGRATE, in one step: the source stands still meanwhile."""
        value = source.primary.data.values[0, key]
        kind, parts = (b"list", value) if isinstance(value, list) else (b"string", [value])
        of_key = [one for one in source.primary.log if key in one.argv]
        target.primary.run(0, [b"RESTORE", key, kind, *parts], frozenset(written_in(of_key)))
        source.primary.run(0, [b"MIGRATED", key])
        self.network.loop.call_soon(target.primary.wakes, 0, key)

    def owns_now(self, shard: Shard, slots: frozenset[int], first: ClusterNode | None = None) -> None:
        """A shard has these hash slots from now on, and knows it, unless another node hears of it first."""
        self.tell(MOVED, shard, first or shard.first, slots=slots)

    # -- members

    def join(self) -> Shard:
        """A new shard without hash slots."""
        shard = Shard(self, len(self.shards), self.dice.choice([1, 2]))
        self.shards.append(shard)
        for node in shard.members:
            self.catch_up(node)
        self.tell(JOINED, shard, shard.first, node=shard.first)
        return shard

    def is_known_without(self, shard: Shard) -> bool:
        """Whether a node in keyfence's configuration is still a member after this shard has left."""
        return any(node.host.address in self.seeds for node in self.nodes if node.shard is not shard)

    def leave(self, shard: Shard) -> None:
        """A shard without hash slots leaves. Its nodes forget all others. From then on they answer that no
        node has any hash slot."""
        shard.has_left = True
        self.troubled_at = self.network.loop.now + NEWS_SECONDS
        self.tell(LEFT, shard, self.nodes[0])
        for node in shard.members:
            node.has_left = True
            node.view = View([], bytes([NOBODY]) * SLOTS)
