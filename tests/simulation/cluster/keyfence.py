"""The real keyfence before a model of a cluster, with one address for clients.

Not in it, besides what `keyfence_under_test` names: how `process.run` puts its parts together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time

from keyfence.downstream.context import Common
from keyfence.policy.engine.authorizer import InForce
from keyfence.process.serving.runtime import Runtime
from keyfence.process.serving.single import OneAddress
from keyfence.process.serving.upstreams import ServedUpstream
from keyfence.session.conversation import conversation
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.cluster.topology import Topology
from tests.simulation.keyfence_under_test import Keyfence, new_authorizer, open_upstream, settings
from tests.simulation.network import Network
from tests.simulation.redis_model import PORT

SPLITS = frozenset({b"MGET"})


class Turns:
    """In place of the clock by which a client's turn is over: some turns are long, as the dice say."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(f"turns of {seed}")
        self._now = 1.0
        self.share = self._dice.choice([0.0, 0.02, 0.2])

    def __call__(self) -> float:
        if self._dice.random() < self.share:
            self._now += 1.0
        return self._now


class SimulatedRuntime(Runtime):
    """The state of the process, without its listeners, and with a virtual clock."""

    def __init__(self, network: Network, shared_connections: int) -> None:
        self._network = network
        super().__init__(
            dataclasses.replace(settings(), shared_connections=shared_connections),
            None,
            Telemetry(clock=network.loop.time),
            quiet=True,
        )
        self.in_force: InForce = InForce(new_authorizer())  # an own one, because `Turns` counts its work

    def open_upstream(self, address: UpstreamAddress) -> ServedUpstream:
        one = open_upstream(address, self.telemetry, self._network)
        self.upstreams.append(one)
        return one


class Follower(OneAddress):
    """What follows the cluster."""

    def __init__(self, runtime: SimulatedRuntime, entry: ServedUpstream, network: Network) -> None:
        super().__init__(runtime, entry)
        self._clock = network.loop.time
        self._journal = network.journal

    async def _apply(self, topology: Topology) -> None:
        before = self.masters.topology
        await super()._apply(topology)
        if topology is not before:
            owners = [f"{one.host} has {one.slot_count}" for one in topology.owners()]
            self._journal.add("keyfence: epoch %s, %s", topology.epoch, ", ".join(owners))

    def _tell(self) -> None:
        """The journal has it."""


class KeyfenceOfCluster(Keyfence):
    """One process of keyfence."""

    def __init__(self, network: Network, seeds: list[str], shared_connections: int, *, splits: bool) -> None:
        self.turns = Turns(network.dice.getrandbits(48))
        conversation.perf_counter = self.turns  # type: ignore[attr-defined]
        self._runtime = SimulatedRuntime(network, shared_connections)
        nodes = tuple((one, PORT) for one in seeds)
        address = UpstreamAddress("tcp", *nodes[0], shown="cluster:sim", cluster=nodes)
        served = self._runtime.open_upstream(address)
        self.cluster = Follower(self._runtime, served, network)
        in_parts = {"*": SPLITS} if splits else {}
        super().__init__(network, served, shared_connections, self._runtime.in_force, in_parts)

    def prepare(self, common: Common) -> None:
        common.cluster, common.masters = self.cluster, self.cluster.masters

    async def start(self) -> None:
        await self._served.reach()
        following = asyncio.ensure_future(self.cluster.follow_forever())
        await self.cluster.found.wait()
        await super().start()
        self._chores.append(following)

    async def stop(self) -> None:
        self._runtime.is_closing = True
        await super().stop()
        conversation.perf_counter = time.perf_counter  # type: ignore[attr-defined]
        for one in self.cluster.masters:  # the end of the process does that
            one.pools.close()
