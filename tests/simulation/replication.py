"""A primary and its replicas: replication with lag, failovers, and what they lose.

A graceful failover loses nothing: writes wait until the replica has all of them. After a crash, the promoted
replica lacks what was on its way to it, and what the former primary still accepts is lost as well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.simulation.dataset import Key
from tests.simulation.invariants import Witness
from tests.simulation.journal import Journal
from tests.simulation.network import Network
from tests.simulation.redis_model import Node, written_in


class Group:
    """The nodes. `primary` is the one that the failovers have made it, whatever another one believes."""

    def __init__(self, network: Network, dice: random.Random, journal: Journal, witness: Witness) -> None:
        self.network = network
        self.serves_stale = dice.random() < 0.7  # replica-serve-stale-data
        self.kills_clients = dice.random() < 0.7  # of a node that is demoted, as Sentinel does
        self._dice = dice
        self._journal = journal
        self._witness = witness
        self._lag = dice.choice([0.001, 0.01, 0.1])
        self._ids = 0
        self._isolated: Node | None = None
        self._masters: dict[Node, Node] = {}
        self._behind: dict[Node, None] = {}  # replicas that will catch up
        self.nodes = self.make_nodes()
        self.primary = self.nodes[0]
        self.primary.promote()
        self.primary_since = 0.0  # when `primary` began to serve
        for one in self.nodes[1:]:
            self._masters[one] = self.primary

    def make_nodes(self) -> Sequence[Node]:
        """The nodes; the first one is the primary."""
        count = self._dice.choice([2, 2, 3])
        return [Node(f"redis-{number}", self, f"10.0.0.{number}") for number in range(1, count + 1)]

    def lateness(self) -> float:
        """Seconds for which the role of a primary is known before it has it."""
        return self._dice.random() * 0.5 if self._dice.random() < 0.3 else 0.0

    def keys_of_now(self) -> Callable[[Key], bool]:
        """Whether a key belongs to these nodes now."""
        return lambda _key: True

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    @property
    def replicas(self) -> list[Node]:
        """Those that could take over now."""
        return [one for one in self.nodes if one is not self.primary and self._follows(one)]

    def _follows(self, node: Node) -> bool:
        return self._masters.get(node) is self.primary and node.is_linked and not node.is_loading

    # -- replication

    def executed(self, node: Node, database: int, argv: Sequence[bytes]) -> None:
        """A node has run a write."""
        self._witness.executed(node.name, database, argv)
        for one, master in self._masters.items():
            if master is node and one not in self._behind:
                self._behind[one] = None
                self.network.loop.call_later(self._dice.random() * self._lag, self._catch_up, one, node)

    def _catch_up(self, replica: Node, master: Node) -> None:
        self._behind.pop(replica, None)
        if (
            master is self._isolated
            or self._masters.get(replica) is not master
            or not replica.is_linked
            or replica.is_loading
        ):
            return
        for entry in master.log[len(replica.log) :]:
            replica.data.run(entry.database, entry.argv)
            replica.log.append(entry)

    def publish(self, channel: bytes, text: bytes) -> None:
        """Somebody publishes at the primary."""
        self.primary.publish(channel, text)
        for one in self.replicas:
            self.network.loop.call_later(self._dice.random() * self._lag, one.publish, channel, text)

    def attach(self, node: Node) -> None:
        """A node becomes a replica of the primary, once it has the primary's data. If it has writes that the
        primary lacks, they are lost then."""
        was_primary = node.is_primary
        if node is self._isolated:
            self._isolated = None
        self._masters[node] = self.primary
        if was_primary:
            node.demote(kills=self.kills_clients)
        elif node.is_paused:
            node.resume_writes()  # it was to be the primary, and never was
        primary = self.primary
        node.is_linked, node.is_loading = False, bool(self._dice.random() < 0.5)
        self.network.loop.call_later(self._dice.random() * 0.2, self._attached, node, primary)

    def _attached(self, node: Node, master: Node) -> None:
        if self._masters.get(node) is master and not node.is_primary:
            if node.log != master.log[: len(node.log)]:
                self._witness.lost(written_in(node.log), written_in(master.log))
                node.data.values.clear()
                node.log.clear()
            node.is_linked, node.is_loading = True, False
            self._catch_up(node, master)

    def isolate(self, node: Node) -> None:
        """The replicas of a node lose it: what it runs from now on does not reach them."""
        self._isolated = node

    def isolate_none(self) -> None:
        self._isolated = None

    def is_isolated(self, node: Node) -> bool:
        return node is self._isolated

    # -- failovers

    async def fail_over(self) -> bool:
        """Hand over to a replica, and lose nothing. Returns False if there is none."""
        if not self.replicas or self.primary.is_paused:
            return False
        former, chosen = self.primary, self._dice.choice(self.replicas)
        self._journal.add("%s hands over to %s", former.name, chosen.name)
        former.pause_writes()
        await asyncio.sleep(self._dice.random() * 0.2)
        if former is not self.primary or not former.is_paused or not self._follows(chosen):
            former.resume_writes()  # it crashed meanwhile
            return False
        self._catch_up(chosen, former)
        self._promote(chosen)
        for one in self.nodes:
            if one is not chosen:
                self.attach(one)
        return True

    def take_over(self) -> bool:
        """Promote a replica, because the primary does not answer. Returns False if there is none."""
        if not self.replicas:
            return False
        chosen = self._dice.choice(self.replicas)
        self._witness.fell_to(chosen.data.values, self.keys_of_now())
        self._promote(chosen)
        return True

    def _promote(self, chosen: Node) -> None:
        self._journal.add("%s is the primary now", chosen.name)
        former = self.primary
        del self._masters[chosen]
        late = self.lateness()
        self.network.loop.call_later(late, self._begin, chosen)
        self.primary, self.primary_since = chosen, self.network.loop.now + late
        for one, master in list(self._masters.items()):
            if master is former:
                self.attach(one)

    def _begin(self, chosen: Node) -> None:
        if chosen is self.primary and not chosen.host.is_silent:
            chosen.promote()

    def restart(self, node: Node) -> None:
        """A killed node is back, and has what it had. It takes itself for what it was."""
        self.network.go_on(node.host)
        node.listen()
        if node is self.primary:
            node.promote()
