"""How keyfence finds the primary: Sentinels name it, a name resolves to it, or an address leads to it.

Each guide is one way, and what may go wrong on it. A cluster, whose nodes all serve at once, has none: see
`cluster`.
"""

from __future__ import annotations

import asyncio
import random
import socket

from keyfence.upstream.address import Sentinels, UpstreamAddress
from tests.simulation.journal import Journal
from tests.simulation.network import Network
from tests.simulation.redis_model import PORT, Node
from tests.simulation.replication import Group
from tests.simulation.sentinel_model import NAME, Named, Sentinel
from tests.simulation.sentinel_model import PORT as SENTINEL_PORT

LATE = (0.0, 0.1, 1.0)  # seconds until a guide has followed a failover
HOST_NAME = "redis.example.org"
VIRTUAL = "10.0.9.9"


class Guide:
    """Base of the ways."""

    patience = 0.0  # seconds in which keyfence must have followed once the guide is right; 0.0: no limit

    def __init__(self, network: Network, dice: random.Random, journal: Journal, group: Group) -> None:
        self.network = network
        self.dice = dice
        self.journal = journal
        self.group = group
        self.right_since = 0.0  # from when on it leads to the primary

    def address(self) -> UpstreamAddress:
        """Where keyfence connects."""
        raise NotImplementedError

    def announce(self, node: Node) -> None:
        """A failover has made this node the primary: lead there, after a while."""
        self.network.loop.call_later(self.dice.random() * self.dice.choice(LATE), self.lead, node)

    def lead(self, node: Node) -> None:
        """Lead to this node, if it is still the primary."""
        if node is self.group.primary:
            self.right_since = self.network.loop.now
            self.journal.add("%s leads to %s", type(self).__name__, node.name)
            self.turn(node)

    def turn(self, node: Node) -> None:
        raise NotImplementedError

    async def trouble(self) -> None:
        """Something goes wrong with the guide itself for a while."""

    def heal(self) -> None:
        """All trouble is over."""


class BySentinels(Guide):
    """Sentinels name the primary."""

    patience = 1.0

    def __init__(self, network: Network, dice: random.Random, journal: Journal, group: Group) -> None:
        super().__init__(network, dice, journal, group)
        self._latest = Named(group.primary.host.address, PORT, 1)
        count = dice.choice([1, 3, 3])
        self.sentinels = [Sentinel(number, network, self._latest) for number in range(1, count + 1)]

    def address(self) -> UpstreamAddress:
        hosts = tuple((one.host.address, SENTINEL_PORT) for one in self.sentinels)
        return UpstreamAddress("tcp", shown="sentinel:main", sentinels=Sentinels(hosts, NAME))

    def turn(self, node: Node) -> None:
        """The first Sentinel knows it; the others learn it from that one."""
        self._latest = Named(node.host.address, PORT, self._latest.epoch + 1)
        first = self.dice.choice(self.sentinels)
        for one in self.sentinels:
            late = 0.0 if one is first else self.dice.random() * self.dice.choice(LATE)
            self.network.loop.call_later(late, one.learn, self._latest)

    async def trouble(self) -> None:
        """A Sentinel dies, stops or is cut off, and comes back with what it knew."""
        one, dice, network = self.dice.choice(self.sentinels), self.dice, self.network
        kind = dice.choice(["dies", "stops", "is cut off"])
        self.journal.add("%s %s", one.name, kind)
        keyfence = network.hosts["10.0.2.1"]
        if kind == "dies":
            one.kill()
        elif kind == "stops":
            network.stop(one.host)
        else:
            network.cut(keyfence, one.host)
        await asyncio.sleep(dice.random() * 4)
        self.journal.add("%s is back", one.name)
        network.mend(keyfence, one.host)
        network.go_on(one.host)
        one.listen()

    def heal(self) -> None:
        for one in self.sentinels:
            one.learn(self._latest)


class ByName(Guide):
    """A name resolves to the primary's address."""

    patience = 2.5

    def __init__(self, network: Network, dice: random.Random, journal: Journal, group: Group) -> None:
        super().__init__(network, dice, journal, group)
        self._answer = [group.primary.host.address]
        self._fails = False
        network.loop.resolves = self._resolve

    def _resolve(self, host: str) -> list[str]:
        if self._fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._answer if host == HOST_NAME else [host]

    def address(self) -> UpstreamAddress:
        return UpstreamAddress("tcp", HOST_NAME, PORT, shown=HOST_NAME)

    def turn(self, node: Node) -> None:
        self._answer = [node.host.address]

    async def trouble(self) -> None:
        self.journal.add("the name does not resolve")
        self._fails = True
        await asyncio.sleep(self.dice.random() * 2)
        self.journal.add("the name resolves again")
        self._fails = False


class ByAddress(Guide):
    """One address leads to the primary, as that of a load balancer does."""

    patience = 0.0

    def __init__(self, network: Network, dice: random.Random, journal: Journal, group: Group) -> None:
        super().__init__(network, dice, journal, group)
        network.leads[VIRTUAL] = group.primary.host.address

    def address(self) -> UpstreamAddress:
        return UpstreamAddress("tcp", VIRTUAL, PORT, shown="redis")

    def turn(self, node: Node) -> None:
        self.network.leads[VIRTUAL] = node.host.address
        self.network.wake()
