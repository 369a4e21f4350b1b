"""Follows a cluster that is behind one address: each of its nodes is an upstream without a listener.

Rule: clients know nothing of the nodes. Which of them has a hash slot, `upstream.single` asks here. A node
that has left is let go of once nothing is due there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from keyfence.resp import encode
from keyfence.session.conversation.reads import READS_OF_CLUSTER
from keyfence.upstream.cluster.fan_out import DISABLED
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.cluster.troubles import troubles_of
from keyfence.upstream.handshake import GreetingError
from keyfence.upstream.single.masters import Masters
from keyfence.upstream.single.refusals import ELSEWHERE, MOVED, error_for, refusal_in
from keyfence.upstream.single.replicas import ShardReplicas

from .replica_reads import reads_from_replicas, report
from .runtime import Runtime
from .topology_follower import Doors, ServedNode, TopologyFollower
from .upstreams import ServedUpstream

_NO_CLUSTER = encode.error(DISABLED)


class OneAddress(TopologyFollower[ServedNode]):
    """The nodes of the cluster that a process serves behind its listeners."""

    def __init__(
        self,
        runtime: Runtime,
        entry: ServedUpstream,
        doors: Doors | None = None,
        on_sign: Callable[[Reason], None] | None = None,
    ) -> None:
        settings = runtime.settings
        super().__init__(runtime, entry, doors, on_sign)
        later = asyncio.get_running_loop().call_later
        self.masters = Masters(settings.shared_connections, settings.connect_timeout, self._on_sign, later)
        self.masters.ask_nodes = self._ask_nodes
        self._replicas = ShardReplicas(settings.shared_connections, READS_OF_CLUSTER)
        self._replicas.is_wanted = reads_from_replicas(settings)
        self.masters.replicas = self._replicas
        self._questions: set[asyncio.Task[None]] = set()
        runtime.cluster, runtime.masters = self, self.masters

    # -- for sessions

    def answer(self, command: str, reply: bytes) -> bytes:  # noqa: ARG002
        """In place of a complete reply to a command that names nodes."""
        return _NO_CLUSTER

    def redirect(self, text: bytes) -> bytes:
        """The text of an error MOVED or ASK that the session has to replace, without its address. Only what a
        client held at one node sends comes back with MOVED, and no repetition would help."""
        reply = b"-%b\r\n" % text
        refusal = refusal_in(reply)
        is_elsewhere = refusal is not None and refusal.word == MOVED
        return (ELSEWHERE if is_elsewhere else error_for(reply))[1:-2]

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

    # -- reads from replicas

    def _keep_up(self) -> None:
        """Look whether any service reads from replicas since the last reload, or none does."""
        is_wanted = reads_from_replicas(self._runtime.settings)
        if is_wanted != self._replicas.is_wanted:
            self._replicas.is_wanted = is_wanted
            self.masters.take_replicas()
        report(self._replicas, self._runtime.telemetry.counters)

    async def end(self) -> None:
        await self._replicas.end()
        await super().end()

    def replicas(self) -> list[dict[str, Any]]:
        return self._replicas.status()

    # -- what follows from a topology

    async def _apply(self, topology: Topology) -> None:
        """Have an upstream for each node of this topology."""
        self._faults = troubles_of(topology)
        for node in topology.nodes:
            if node.has_address:
                self._serve(node)
        upstreams = {
            one: self._open[one].served.upstream for one in topology.nodes_by_id if one in self._open
        }
        self.masters.take(topology, upstreams)
        self._choose_entry(topology)
        for node_id in self._open.keys() - topology.nodes_by_id.keys():
            await self._let_go(self._open.pop(node_id))

    def _serve(self, node: Node) -> None:
        one = self._open.get(node.id)
        if one is not None:
            self._keep(one, node)
        elif not self._runtime.is_closing:
            one = self._open[node.id] = ServedNode(node=node, served=self._open_upstream(node))
            self._begin(one)

    def _leave(self, one: ServedNode, reason: str) -> None:
        self.masters.died(one.node.id, reason)

    def _entries(self, topology: Topology) -> Sequence[Node]:
        return topology.owners()
