"""What goes wrong in a schedule: failovers of each kind, and faults beside them.

Only one failover is under way at a time; all else may overlap it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.guides import Guide
from tests.simulation.network import Host, Network
from tests.simulation.redis_model import PORT, Node
from tests.simulation.replication import Group

Fault = Callable[[], Coroutine[Any, Any, None]]


class Faults:
    """The faults that a schedule may draw."""

    def __init__(
        self, network: Network, dice: random.Random, group: Group, guide: Guide, keyfence: Host
    ) -> None:
        self._network = network
        self._dice = dice
        self._group = group
        self._guide = guide
        self._keyfence = keyfence
        self._is_failing_over = False
        self.graceful: list[Fault] = [self._hand_over]
        self.crashes: list[Fault] = [self._crash, self._lose_machine, self._stop]
        self.beside: list[Fault] = [
            *(self._reset, self._refuse, self._drop, self._stall, self._restart, self._cut),
            *(self._cut_and_take_over, self._split, guide.trouble),
        ]

    def _say(self, text: str, node: Node) -> None:
        self._network.journal.add(f"{node.name} {text}")

    async def _wait(self, most: float) -> None:
        await asyncio.sleep(self._dice.random() * most)

    async def one(self, fault: Fault, is_failover: bool) -> None:
        """Play a fault; a failover only while there is no other."""
        if is_failover:
            if self._is_failing_over:
                return
            self._is_failing_over = True
        try:
            await fault()
        finally:
            if is_failover:
                self._is_failing_over = False

    # -- failovers

    async def _hand_over(self) -> None:
        if await self._group.fail_over():
            self._guide.announce(self._group.primary)

    async def _take_over(self, former: Node) -> None:
        """Somebody notices that the primary does not answer, and a replica is promoted."""
        await asyncio.sleep(0.1 + self._dice.random())
        if self._group.primary is former and self._group.take_over():
            self._guide.announce(self._group.primary)

    async def _back(self, former: Node) -> None:
        """A former primary is back, and takes itself for the primary, until it is told otherwise."""
        await self._wait(1.0)
        if former is not self._group.primary:
            self._say("becomes a replica", former)
            self._group.attach(former)

    async def _crash(self) -> None:
        await self._die(with_machine=False)

    async def _lose_machine(self) -> None:
        await self._die(with_machine=True)

    async def _die(self, *, with_machine: bool) -> None:
        former = self._group.primary
        self._say("vanishes with its machine" if with_machine else "is killed", former)
        former.kill(with_machine=with_machine)
        await self._take_over(former)
        await self._wait(2.0)
        self._say("is back", former)
        self._group.restart(former)
        await self._back(former)

    async def _stop(self) -> None:
        former = self._group.primary
        self._say("stops", former)
        self._network.stop(former.host)
        await self._take_over(former)
        await self._wait(2.0)
        self._say("goes on", former)
        self._network.go_on(former.host)
        await self._back(former)

    async def _cut_and_take_over(self) -> None:
        """keyfence and the replicas lose the primary, which lives on."""
        former = self._group.primary
        self._say("is cut off from all", former)
        self._network.cut(former.host, self._keyfence)
        self._group.isolate(former)
        await self._take_over(former)
        await self._wait(2.0)
        self._say("is reached again", former)
        self._network.mend(former.host, self._keyfence)
        await self._back(former)

    async def _split(self) -> None:
        """The replicas lose the primary, and keyfence does not: for a while, there are two."""
        former = self._group.primary
        self._say("is cut off from its replicas", former)
        self._group.isolate(former)
        await self._take_over(former)
        await self._wait(1.0)
        await self._back(former)

    # -- what does not change the primary

    async def _reset(self) -> None:
        self._network.journal.add("a connection of keyfence's is reset")
        self._network.reset_one(self._keyfence)

    async def _refuse(self) -> None:
        node = self._group.primary
        self._say("refuses connections", node)
        self._network.refuse(node.host.address, PORT)
        await self._wait(1.0)
        self._say("takes connections again", node)
        if not node.host.is_silent:
            node.listen()

    async def _drop(self) -> None:
        """The primary ends connections as soon as they are open, as at `maxclients`."""
        node = self._group.primary
        self._say("drops connections", node)
        node.drops = True
        await self._wait(1.0)
        self._say("drops connections no more", node)
        node.drops = False

    async def _stall(self) -> None:
        node = self._dice.choice(self._group.nodes)
        self._say("stalls", node)
        self._network.stop(node.host)
        await self._wait(1.0)
        self._say("stalls no more", node)
        self._network.go_on(node.host)

    async def _cut(self) -> None:
        node = self._dice.choice(self._group.nodes)
        self._say("is cut off from keyfence", node)
        self._network.cut(node.host, self._keyfence)
        await self._wait(2.0)
        self._say("is reached by keyfence again", node)
        self._network.mend(node.host, self._keyfence)

    async def _restart(self) -> None:
        """The primary is killed, and is the primary again, once it has loaded its data."""
        node = self._group.primary
        self._say("is restarted", node)
        node.kill(with_machine=False)
        await self._wait(0.5)
        node.is_loading = True
        self._group.restart(node)
        await self._wait(0.5)
        node.is_loading = False
