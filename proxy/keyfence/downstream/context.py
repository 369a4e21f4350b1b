# cython: annotation_typing=False
"""What the clients of one process share, those of one upstream more than all, and what concerns them at once.

Rule: a client knows the context of its upstream, and the context asks each client. It moves no bytes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

from keyfence.config.limits import ClientSettings
from keyfence.identity.resolver import Resolver
from keyfence.net.host_port import host_port
from keyfence.policy.engine.authorizer import InForce
from keyfence.session.conversation.context import Cluster, SessionContext
from keyfence.session.conversation.owner_questions import Question
from keyfence.session.conversation.shown_ids import ShownIds
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.dedicated import Owner
from keyfence.upstream.exchange import Sharer
from keyfence.upstream.health import Upstream
from keyfence.upstream.links import Links
from keyfence.upstream.pools import Pools
from keyfence.upstream.replicas.reading import ReadingLinks
from keyfence.upstream.replicas.replicas import Replicas
from keyfence.upstream.single.links import ClusterLinks
from keyfence.upstream.single.masters import Masters

from .logins import LoginSweep
from .quotas import ConnectionQuotas
from .turns import Turns

CLIENTS_A_TURN = 100  # so many are told something, or closed, in one turn of the loop


def _not_answered(question: Question) -> None:
    asyncio.get_running_loop().call_soon(question.answered, None)


class Common:
    """The objects that all clients of a process share, whatever their upstream."""

    def __init__(
        self,
        in_force: InForce | None,
        identities: Resolver,
        telemetry: Telemetry,
        settings: ClientSettings,
        cluster: Cluster | None = None,
    ) -> None:
        """`in_force`: None passes everything on unread. `cluster`: that of all upstreams."""
        self.in_force = in_force
        self.identities = identities
        self.telemetry = telemetry
        self.settings = settings
        self.quotas = ConnectionQuotas(settings.clients)
        self.turns = Turns()
        self.shared_connections = settings.shared_connections if in_force is not None else 0
        self.cluster = cluster
        self.masters: Masters | None = None  # the nodes of the cluster, if it is behind one address
        self.ask: Callable[[Question], None] = _not_answered  # takes the questions of sessions

    def take(self, identities: Resolver, settings: ClientSettings) -> None:
        """Use these from now on. The number of shared connections stays as it was."""
        self.identities.take(identities)
        self.settings = settings
        self.quotas.limits = settings.clients


class ServerContext:
    """The objects that all clients of one upstream share."""

    def __init__(self, common: Common, upstream: Upstream, replicas: Replicas | None = None) -> None:
        """`replicas`: None: nothing is read from any."""
        self.common = common
        self.upstream = upstream
        self.telemetry = common.telemetry
        self.counters = common.telemetry.counters  # kept, because asking for them gathers all counts
        self.quotas = common.quotas
        self.turns = common.turns
        self.clients: set[Any] = set()  # each a `client.Client`, whose module imports this one
        self.ids = ShownIds(self._node)
        self.sharing = common.shared_connections > 0
        self.pools = Pools(upstream, common.shared_connections)
        self.replicas = replicas
        self.logins = LoginSweep(upstream, self.counters)
        self.sessions: SessionContext | None = None
        self.admit()

    def admit(self) -> None:
        """From now on, requests of new clients have the limits that are common now."""
        common, address = self.common, self.upstream.address
        if common.in_force is not None:
            self.sessions = SessionContext(
                common.in_force,
                common.identities,
                common.telemetry,
                common.settings.requests,
                self._greeting,
                address.database,
                address.selects_later,
                self.sharing,
                self.ids,
                self.upstream.seen,
                common.cluster,
                common.masters is not None,
            )

    def links(self, client: Owner) -> Links:
        """The links of a client to Redis."""
        if self.common.masters is not None:
            return ClusterLinks(self.upstream, self.pools, client, self.common.masters)
        return Links(self.upstream, self.pools, client)

    def serve_by(self, links: Links, service: str, client: Sharer) -> None:
        """Have a client's links do what its service asks for. No reply may be due."""
        if self.replicas is not None:
            links.read_by(self.reading_links(service, client))
        if isinstance(links, ClusterLinks):
            settings = self.common.settings
            links.serve(settings.reads_after(service), settings.split_for(service))

    def reading_links(self, service: str, client: Sharer) -> ReadingLinks | None:
        """The shares of a client of this service; None: the service reads from the primary."""
        after_write = self.common.settings.reads_after(service)
        if self.replicas is None or after_write is None or not self.sharing:
            return None
        return ReadingLinks(client, self.pools, self.replicas, after_write)

    def _node(self) -> str:
        return host_port(self.upstream.address.host, self.upstream.address.port)

    def _greeting(self) -> Sequence[bytes]:
        return self.upstream.address.greeting()

    def tick(self) -> None:
        """Close connections that are no longer needed. Call this about once a second."""
        self.pools.tick()
        connections = self.pools.connections()
        if self.replicas is not None:
            self.replicas.tick()
            connections = itertools.chain(connections, self.replicas.connections())
        if self.common.masters is not None:
            self.common.masters.tick()
            connections = itertools.chain(connections, self.common.masters.connections())
        self.logins.tick(connections, self.clients)
        if self.sharing:
            now = asyncio.get_running_loop().time()
            for client in list(self.clients):
                client.tick(now)

    def upstream_moved(self, reason: str, held: Collection[str]) -> None:
        """Another node is the primary now: close what stands on others than the `held` addresses. Clients
        stay if nothing of theirs was sent, or if they share a connection and wait for nothing."""
        self.pools.move(reason, held)
        for client in list(self.clients):
            client.upstream_moved(reason, held)

    def renew(self) -> None:
        """Replace the connections to Redis, each as soon as its clients would not notice."""
        self.pools.drain()
        for client in list(self.clients):
            client.renew()

    async def each_client(self) -> AsyncIterator[Any]:
        """The clients of now. Between some of them, everybody else has a turn."""
        for number, client in enumerate(list(self.clients), 1):
            yield client
            if number % CLIENTS_A_TURN == 0:
                await asyncio.sleep(0)

    async def notify(self, notice: bytes) -> None:
        """Send a maintenance notification to all clients that take them."""
        async for client in self.each_client():
            client.notify(notice)
