"""Follows a cluster that is behind one address: each of its nodes is an upstream without a listener.

Rule: clients know nothing of the nodes. Which of them has a hash slot, `upstream.single` asks here. A node
that has left is let go of once nothing is due there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Collection

import hiredis

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.upstream.cluster.state import NodeState
from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.cluster.troubles import Trouble, troubles_of
from keyfence.upstream.handshake import GreetingError
from keyfence.upstream.health import Upstream
from keyfence.upstream.single.masters import Masters
from keyfence.upstream.single.refusals import error_for

from .runtime import Runtime
from .topology_follower import TopologyFollower, run_node
from .upstreams import ServedUpstream

# What a Redis that is no node of a cluster answers to every CLUSTER command.
NO_CLUSTER = encode.error("ERR This instance has cluster support disabled")


@dataclasses.dataclass(eq=False)
class _Open:
    """A node of the topology."""

    node: Node
    served: ServedUpstream
    job: asyncio.Task[None]


class OneAddress(TopologyFollower):
    """The nodes of the cluster that a process serves behind its listeners."""

    def __init__(self, runtime: Runtime, entry: ServedUpstream) -> None:
        """`entry` is the upstream that the configuration names, which is any node."""
        settings = runtime.settings
        super().__init__(runtime, entry)
        self._open: dict[str, _Open] = {}  # by the node's id
        self._faults: list[Trouble] = []  # of the topology
        later = asyncio.get_running_loop().call_later
        self.masters = Masters(settings.shared_connections, settings.connect_timeout, self.noticed, later)
        self.masters.ask_nodes = self._ask_nodes
        self._questions: set[asyncio.Task[None]] = set()
        runtime.cluster, runtime.masters, runtime.upstream_of = self, self.masters, self.upstream_of

    # -- for sessions

    def answer(self, command: str, reply: bytes) -> bytes:  # noqa: ARG002
        """In place of a complete reply to a command that names nodes."""
        return NO_CLUSTER

    def redirect(self, text: bytes) -> bytes:
        """The text of an error MOVED or ASK that is not followed, without its address."""
        return error_for(b"-%b\r\n" % text)[1:-2]

    def upstream_of(self, key: bytes) -> Upstream | None:
        """The node that has a key; None: none is known."""
        topology = self._refresh.topology
        owner = topology.owner(hash_slot(key)) if topology is not None else None
        one = self._open.get(owner.id) if owner is not None else None
        return one.served.upstream if one is not None else None

    def _ask_nodes(self, node_id: str, tell: Callable[[bytes, str], None]) -> None:
        """Ask a node for CLUSTER NODES, for a client that scans."""
        task = asyncio.get_running_loop().create_task(self._tell_nodes(node_id, tell))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _tell_nodes(self, node_id: str, tell: Callable[[bytes, str], None]) -> None:
        text, one = b"", self._open.get(node_id)
        host = one.node.host if one is not None else ""
        if one is not None:
            with contextlib.suppress(OSError, GreetingError, hiredis.ReplyError):
                reply = await self._reply_of(one.node.address)
                text = reply if isinstance(reply, bytes) else b""
        tell(text, host)

    # -- what follows from a topology

    async def _apply(self, topology: Topology) -> None:
        """Have an upstream for each node of this topology."""
        self._faults = troubles_of(topology)
        for node in topology.nodes:
            if node.host:
                self._serve(node)
        upstreams = {
            one: self._open[one].served.upstream for one in topology.nodes_by_id if one in self._open
        }
        self.masters.take(topology, upstreams)
        self._choose_entry(topology)
        for node_id in self._open.keys() - topology.nodes_by_id.keys():
            await self._close(self._open.pop(node_id))

    def _serve(self, node: Node) -> None:
        one = self._open.get(node.id)
        if one is not None:
            if one.node.address != node.address:
                one.served.upstream.move(node.host, node.port, "the cluster")
            one.node = node
            return
        if self._runtime.is_closing:
            return
        entry = self._entry.upstream.address
        address = dataclasses.replace(entry, host=node.host, port=node.port, shown=node.shown)
        served = self._runtime.open_upstream(address)
        self._hears(served.upstream)
        job = asyncio.get_running_loop().create_task(run_node(served))
        self._open[node.id] = _Open(node, served, job)

    async def _close(self, one: _Open) -> None:
        await self._runtime.close_upstream(one.served)
        one.job.cancel()
        await asyncio.gather(one.job, return_exceptions=True)

    def _choose_entry(self, topology: Topology) -> None:
        """Have the upstream that the configuration names lead to a primary that serves."""
        upstream = self._entry.upstream
        here = topology.node_at(upstream.address.host, upstream.address.port)
        if here is not None and here.slots and here.is_healthy and upstream.up is not False:
            return
        others = (one for one in topology.owners() if one.host and one.is_healthy and one is not here)
        best = next(others, None)
        if best is not None:
            upstream.move(best.host, best.port, "the cluster")

    async def end(self) -> None:
        """End all background jobs."""
        jobs = [one.job for one in self._open.values()]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    # -- for operators

    def _troubles(self) -> Collection[Trouble]:
        return self._faults

    def _nodes(self) -> Collection[ServedUpstream]:
        return [one.served for one in self._open.values()]

    def _state_of(self, node: Node) -> NodeState:
        one = self._open.get(node.id)
        return NodeState(
            id=node.id,
            node=node.shown,
            role="master" if node.is_primary else "replica",
            announced="",
            up=bool(one is not None and one.served.upstream.up),
            slots=node.slot_count,
        )
