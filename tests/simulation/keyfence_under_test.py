"""The real keyfence in the simulation: clients, sessions, pools, and an upstream as a process has it.

Not in it: listening sockets and TLS (of `downstream.listeners`, only its clock and the end), workers, the
admin listener, and `process.serving.runtime`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

from keyfence.config.limits import ClientLimits, ClientSettings
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.downstream.client import Client
from keyfence.downstream.context import Common
from keyfence.identity.client_facts import Evidence
from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import load_policy
from keyfence.process.serving.upstreams import ServedUpstream
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.failovers import Failover
from tests.simulation.guides import Guide
from tests.simulation.network import Host, Network

POLICY = Path(__file__).with_name("simulated.yaml")
ADDRESS, PORT = "10.0.2.1", 6379
CONNECT_SECONDS = 1.0
DRAIN_SECONDS = 1.0


@cache
def _policy() -> CompiledPolicy:
    return load_policy(POLICY)


def new_authorizer() -> Authorizer:
    policy = _policy()
    return Authorizer(policy, Modes((ModeRule("enforce"),), policy.services), clock=lambda: 1e9)


@cache
def authorizer() -> Authorizer:
    """One for all schedules: what it has learned of commands changes its speed, and no answer."""
    return new_authorizer()


@cache
def settings() -> Settings:
    overrides = Overrides(listen="127.0.0.1:0")
    return dataclasses.replace(
        load_settings("", overrides, needs_policy=False), connect_timeout=CONNECT_SECONDS
    )


def open_upstream(address: UpstreamAddress, telemetry: Telemetry, network: Network) -> ServedUpstream:
    """An upstream with a virtual clock."""
    served = ServedUpstream(address, settings(), telemetry, tell=lambda _text: None, adopt=None, quiet=True)
    upstream, clock = served.upstream, network.loop.time
    for part in (upstream._failovers, upstream._renewals, upstream._held):
        part._clock = clock  # type: ignore[attr-defined]
    upstream.standing._clock = clock
    return served


class SimulatedClient(Client):
    """A client whose place in a set does not depend on the memory, so that schedules can be repeated."""

    def __init__(self, number: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._number = number

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Keyfence:
    """One process of keyfence."""

    def __init__(
        self,
        network: Network,
        served: ServedUpstream,
        shared_connections: int,
        in_force: InForce | None = None,
        splits: Mapping[str, frozenset[bytes]] | None = None,
    ) -> None:
        """`in_force`: the policy, None: `authorizer`. `splits`: the commands that services have sent in
        parts."""
        self.host: Host = network.host("keyfence", ADDRESS)
        self._network = network
        self._numbers = itertools.count()
        self._served = served
        self.telemetry = served._telemetry
        self.upstream = served.upstream
        limits = ClientLimits(output=200_000)
        self.common = Common(
            in_force or InForce(authorizer()),
            make_resolver(frozenset(authorizer().policy.services)),
            self.telemetry,
            ClientSettings(clients=limits, shared_connections=shared_connections, splits=splits or {}),
        )
        self.prepare(self.common)
        self.listeners = served.serve(self.common)
        assert served.context is not None
        self.context = served.context
        self._told = self.upstream.on_failover
        self.upstream.on_failover = self._failed_over
        self._chores: list[asyncio.Task[None]] = []
        loop = network.loop
        loop.opens = lambda makes, host, port: network.connect(self.host, makes, host, port)

    @classmethod
    def before(cls, network: Network, guide: Guide, shared_connections: int) -> Self:
        """One before the primary that a guide leads to."""
        telemetry = Telemetry(clock=network.loop.time)
        return cls(network, open_upstream(guide.address(), telemetry, network), shared_connections)

    def prepare(self, common: Common) -> None:
        """Add what all clients share, before there are any."""

    def _failed_over(self, now: Failover) -> None:
        self._network.journal.add("keyfence: %s is the primary, says %s", now.node, now.why)
        self._told(now)

    def _serve(self) -> Client:
        quota = self.context.quotas.take()
        assert quota is not None
        return SimulatedClient(
            next(self._numbers), self.context, "app", Evidence("app", "10.0.3.1"), "10.0.3.1", 1, quota
        )

    async def start(self) -> None:
        self._network.listen(ADDRESS, PORT, self._serve)
        await self.listeners.start()
        self._chores = [asyncio.ensure_future(one) for one in self._served.chores()]

    async def stop(self) -> None:
        """End as the process does."""
        self._network.refuse(ADDRESS, PORT)
        await self.listeners.close(DRAIN_SECONDS)
        for one in self._chores:
            one.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
