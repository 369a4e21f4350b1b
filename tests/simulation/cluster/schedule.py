"""One schedule of a cluster behind one address: keyfence, shards, clients, and what goes wrong."""

from __future__ import annotations

import asyncio

from keyfence.telemetry import operator_log
from tests.simulation.clients import CHANNEL, Client
from tests.simulation.cluster.clients import PlainClient, PlainSubscriber, PlainWorker
from tests.simulation.cluster.faults import ClusterFaults, Fault
from tests.simulation.cluster.keyfence import KeyfenceOfCluster
from tests.simulation.cluster.shards import Cluster
from tests.simulation.keyfence_under_test import CONNECT_SECONDS, Keyfence
from tests.simulation.network import Host
from tests.simulation.redis_model import written_in
from tests.simulation.schedule import Player

# In these, nothing happens that ends a connection or leaves hash slots without a node.
CALM = ("static", "atomic", "classic", "graceful", "members")


class ClusterSchedule(Player):
    """A cluster with plain clients."""

    KINDS = (*CALM, "atomic", "classic", "crash", "crash", "rough", "rough", "rough")
    OPTION = "--cluster "

    def lay_out(self) -> None:
        self._cluster = Cluster(self._network, self._dice, self.journal, self._witness)
        self._splits = self._dice.random() < 0.3
        self._shared = self._dice.choice([1, 1, 2])
        self._faults_before = operator_log._reported
        self._most_ends = 0

    @property
    def shown(self) -> str:
        return f"cluster, {self.kind}"

    def features(self) -> list[str]:
        lines = [one.partition(" answers b")[2] for one in self.journal.lines()]
        words = {one[2:].split()[0] for one in lines if one}
        return [*super().features(), *words]

    def make_keyfence(self) -> Keyfence:
        nodes = [one.host.address for one in self._cluster.nodes]
        seeds = self._cluster.seeds = self._dice.sample(nodes, self._dice.choice([1, 3]))
        made = KeyfenceOfCluster(self._network, seeds, self._shared, splits=self._splits)
        self._turns = made.turns
        return made

    def make_client(self, number: int, origin: Host) -> Client:
        is_worker = number == 0 or self._dice.random() < 0.8
        kind: type[PlainWorker | PlainSubscriber] = PlainWorker if is_worker else PlainSubscriber
        made = kind(number, self._network, origin, self._witness, self._cluster)
        # A slow network makes connections end by their time limits.
        made.is_calm = self.kind in CALM and self._network.longest_delay < CONNECT_SECONDS / 5
        if isinstance(made, PlainWorker):
            made.splits = self._splits
            made.sends_whole = self._network.whole == 1.0 and not self._turns.share
        return made

    def publish(self, text: bytes) -> None:
        self._cluster.publish(CHANNEL, text)

    def written(self) -> set[bytes]:
        found: set[bytes] = set()
        for one in self._cluster.serving:
            found |= written_in(one.primary.log)
        return found

    def watch(self) -> None:
        self._cluster.look()
        if not self._keyfence.cluster.masters.topology.nodes:
            self._cluster.troubled_at = self.loop.now
        self._watch_ends()

    def _watch_ends(self) -> None:
        """The number of connections to each node is bounded."""
        ends = [one.peer.host for one in self._keyfence.host.ends if one.address[0].startswith("10.0.0.")]
        clients = len(self._keyfence.context.clients)
        for node in self._cluster.nodes:
            count = ends.count(node.host)
            self._most_ends = max(self._most_ends, count)
            if count > 4 * self._shared + 2 * clients + 6:
                self.journal.breaks(f"keyfence has {count} connections to {node.name} for {clients} clients")

    async def go_wrong(self) -> None:
        faults = ClusterFaults(self._network, self._dice, self._cluster, self._keyfence.host)
        await asyncio.sleep(0.3)
        under_way: list[asyncio.Task[None]] = []
        for _ in range(self._dice.choice([1, 2, 2, 3, 4])):
            fault = self._draw(faults)
            under_way.append(asyncio.ensure_future(fault()))
            await asyncio.sleep(self._dice.random() * 1.5)
        await asyncio.gather(*under_way)

    def _draw(self, faults: ClusterFaults) -> Fault:
        dice = self._dice
        moves = [*faults.atomic, *faults.classic]
        drawn: dict[str, list[list[Fault]]] = {
            "static": [[self._nothing]],
            "atomic": [faults.atomic],
            "classic": [faults.classic],
            "graceful": [faults.graceful, faults.graceful, moves],
            "members": [faults.members, faults.members, moves],
            "crash": [faults.crashes, faults.crashes, moves],
            "rough": [moves, faults.graceful, faults.members, faults.crashes, faults.splits, faults.beside],
        }
        return dice.choice(dice.choice(drawn[self.kind]))

    async def _nothing(self) -> None:
        """Nothing goes wrong."""

    async def mend(self) -> None:
        for shard in self._cluster.shards:
            for node in shard.members:
                if node is not shard.primary and node not in shard.replicas and not shard.has_left:
                    shard.attach(node)
        for one in self._clients:
            if isinstance(one, PlainWorker):
                one.served.clear()
                one.only_asks_all = True
            elif isinstance(one, PlainSubscriber):
                one.is_patient = True
        self._probe()

    def _probe(self) -> None:
        """Have all clients use all of their keys, until each was served."""
        if self._is_open:
            for one in self._clients:
                if isinstance(one, PlainWorker) and one.all_keys - one.served:
                    one.ask_all()
            self.loop.call_later(0.3, self._probe)

    def works(self, client: Client, before: int) -> bool:
        if isinstance(client, PlainWorker) and client.all_keys - client.served:
            return False
        return super().works(client, before)

    async def _end(self) -> None:
        for one in self._clients:
            if isinstance(one, PlainClient):
                one.is_excused = True
        await super()._end()

    def _look_what_is_left(self) -> None:
        super()._look_what_is_left()
        if operator_log._reported > self._faults_before:
            self.journal.breaks("keyfence has reported an internal error")
