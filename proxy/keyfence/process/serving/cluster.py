"""Follows a cluster: each of its nodes is an upstream of this process, with a listener of its own.

Rule: clients learn a node's address of keyfence only while its listener is open. A node that has left keeps
its listener for a while, because clients with an old topology still come there.

The upstream that the configuration names is any node: it serves the configured listener, by whose address
clients find the cluster.

With workers, their parent follows the cluster and binds the nodes' ports. Each worker gets the topology and
the sockets from it (`process/workers/nodes.py`), so the addresses are the same in all of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Sequence

from keyfence.config.upstream import AnnounceModel
from keyfence.downstream.listeners import Listeners
from keyfence.net.addresses import Address
from keyfence.net.host_port import host_port
from keyfence.resp import encode
from keyfence.resp.frames import FrameError
from keyfence.upstream.cluster.announced import Addresses, Announcement, ports_of
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.cluster.rewriting import redirect_in, redirected, rewritten
from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.cluster.troubles import CANNOT_LISTEN, Trouble, troubles_of

from .runtime import Runtime
from .topology_follower import Doors, ServedNode, TopologyFollower
from .upstreams import ServedUpstream

KEPT_SECONDS = 60.0  # for which the listener of a node that has left stays open
_UNREADABLE = encode.error("ERR keyfence: the cluster's answer cannot be read, so it is withheld")


@dataclasses.dataclass(eq=False, kw_only=True)
class _Open(ServedNode):
    """A node whose listener is open."""

    port: int
    listeners: Listeners | None  # None: other processes serve it
    left_at: float = 0.0  # when it has left, in the loop's time; 0.0: it has not


class ClusterNodes(TopologyFollower[_Open]):
    """The nodes of the cluster that a process serves."""

    def __init__(
        self,
        runtime: Runtime,
        entry: ServedUpstream,
        announce: AnnounceModel,
        doors: Doors | None = None,
        on_sign: Callable[[Reason], None] | None = None,
    ) -> None:
        """`entry` is the upstream of the configured listener. The rest is as for every follower."""
        super().__init__(runtime, entry, doors, on_sign)
        nodes = {Address(node).host_port: port for node, port in announce.nodes.items()}
        self._announcement = Announcement(announce.host, announce.range, nodes)
        self._addresses = Addresses(Topology(), announce.host, {})
        self._closed_ports: dict[str, Trouble] = {}  # by the id of a node that has none for this
        self._closing: set[asyncio.Task[None]] = set()
        runtime.cluster = self

    # -- for sessions

    def answer(self, command: str, reply: bytes) -> bytes:
        """A complete reply to a command that names nodes, with keyfence's addresses."""
        try:
            return rewritten(command, reply, self._addresses)
        except FrameError:
            return _UNREADABLE

    def redirect(self, text: bytes) -> bytes:
        """The text of an error MOVED or ASK, with keyfence's address."""
        redirect = redirect_in(text)
        if redirect is not None:
            address = redirect.host, redirect.port
            reason = self._refresh.sign_in(redirect.word, redirect.slot, address)
            if reason is not None:
                self._on_sign(reason)
        return redirected(text, self._addresses)

    def _jobs(self) -> list[asyncio.Task[None]]:
        return [*super()._jobs(), *self._closing]

    # -- what follows from a topology

    async def take(self, topology: Topology, node_ids: Collection[str]) -> None:
        """Another process follows the cluster, and tells this topology. Only these nodes have listeners."""
        await super().take(topology, node_ids)
        for one in [one for one in self._open.values() if one.node.id not in node_ids]:
            await self._close(one)

    async def _apply(self, topology: Topology) -> None:
        """Have a listener for each node of this topology."""
        ports = ports_of(topology, self._announcement)
        self._faults = [*troubles_of(topology), *ports.troubles]
        self._closed_ports = {}
        now = asyncio.get_running_loop().time()
        for node_id, one in self._open.items():
            if node_id not in topology.nodes_by_id and not one.left_at:
                one.left_at = now
        for node in topology.nodes:
            port = ports.by_id.get(node.id)
            if port is not None and node.has_address:
                await self._serve(node, port)
        by_id = {node_id: one.port for node_id, one in self._open.items() if not one.left_at}
        self._addresses = Addresses(topology, self._announcement.host, by_id)
        self._choose_entry(topology)

    async def _serve(self, node: Node, port: int) -> None:
        """Have a listener for this node at this port."""
        one = self._open.get(node.id)
        if one is not None and one.port == port:
            one.left_at = 0.0
            self._keep(one, node)
            return
        for other in list(self._open.values()):
            if other.port == port or other is one:
                await self._close(other)
        await self._open_node(node, port)

    async def _open_node(self, node: Node, port: int) -> None:
        if self._runtime.is_closing:
            return
        (listener,) = self._runtime.settings.listeners
        where = Address(host_port(listener.address.host_port[0], port))
        try:
            bound = self._doors.open(node.id, where)
        except OSError as exc:
            text = f"{node.shown} is not served: cannot listen on {where}: {exc.strerror or exc}"
            remedy = "end what has the port, or announce other ports"
            self._closed_ports[node.id] = Trouble(CANNOT_LISTEN, f"{text}; {remedy}")
            return
        served = self._open_upstream(node)
        served.upstream.patience = 0.0
        listeners = self._runtime.serve(served, bound) if bound else None
        one = self._open[node.id] = _Open(node=node, served=served, port=port, listeners=listeners)
        if listeners is not None:
            await listeners.start()
        self._begin(one)

    def _leave(self, one: _Open, reason: str) -> None:
        if one.served.context is not None:
            one.served.context.upstream_moved(reason, ())

    async def _look_round(self) -> None:
        """Close the listeners of nodes that have left for some time."""
        now = asyncio.get_running_loop().time()
        for one in list(self._open.values()):
            if one.left_at and now - one.left_at >= KEPT_SECONDS:
                await self._close(one)

    async def _close(self, one: _Open) -> None:
        """Close a node's listener at once. Its clients have their time, for which nothing else waits."""
        del self._open[one.node.id]
        self._doors.close(one.node.id)
        task = asyncio.get_running_loop().create_task(self._let_go(one))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.sleep(0)  # in which its sockets are closed

    def _entries(self, topology: Topology) -> Sequence[Node]:
        return sorted(topology.nodes, key=lambda one: not one.slots)

    # -- for operators

    def _troubles(self) -> Collection[Trouble]:
        return [*self._faults, *self._closed_ports.values()]

    def _nodes(self) -> Collection[ServedUpstream]:
        return [one.served for one in self._open.values() if not one.left_at]

    def _announced(self, node: Node) -> str:
        announced = self._addresses.of(node.id)
        return host_port(announced.host, announced.port) if announced is not None else ""
