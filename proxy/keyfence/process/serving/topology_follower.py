"""Follows the topology of a cluster: asks the nodes for it, and tells operators what is wrong.

Rule: what a process does with a topology, a class made of this one says (`_apply`). Whom to ask, and which
answer counts, `upstream.cluster.refresh` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import hiredis

from keyfence.net.addresses import Address, Bound, bind
from keyfence.net.host_port import host_port
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp.replies import TO_NODES
from keyfence.telemetry.operator_log import notice, report_fault
from keyfence.upstream.cluster.refresh import MOST_ANSWER_SECONDS, Question, Reason, Refresh
from keyfence.upstream.cluster.state import ClusterState, NodeState
from keyfence.upstream.cluster.topology import MAX_TEXT, Node, Topology
from keyfence.upstream.cluster.troubles import NO_TOPOLOGY, UNREACHABLE, Trouble
from keyfence.upstream.handshake import GreetingError, describe
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import CLUSTER

from .jobs import background
from .runtime import Runtime
from .upstreams import ServedUpstream

DEAD = "it does not answer, and the cluster takes it for dead"
_NO_TOPOLOGY = Topology()  # before a node has told one
MAX_TOLD = 100  # troubles
NO_CLUSTER = "cluster support disabled"  # in the error of a Redis that is a node of no cluster


class Doors(Protocol):
    """Where the sockets of the nodes' listeners come from."""

    def open(self, node_id: str, where: Address) -> Sequence[Bound]:
        """The sockets by which this process serves a node; none: other processes serve it. Raises
        OSError."""

    def close(self, node_id: str) -> None:
        """The node's listener is closed."""

    def told(self, topology: Topology) -> None:
        """Of the nodes of this topology, all that can be served are."""


class OwnDoors(Doors):
    """The sockets of the only process."""

    def open(self, _node_id: str, where: Address) -> Sequence[Bound]:
        return [bind(where)]

    def close(self, node_id: str) -> None:
        pass  # the listener has closed them

    def told(self, topology: Topology) -> None:
        pass


@dataclasses.dataclass(eq=False, kw_only=True)
class ServedNode:
    """A node that this process serves."""

    node: Node
    served: ServedUpstream
    job: asyncio.Task[None] | None = None  # its background jobs, once they have begun


_Served = TypeVar("_Served", bound=ServedNode)


class TopologyFollower(Generic[_Served]):
    """What the two ways to serve a cluster have in common."""

    def __init__(
        self,
        runtime: Runtime,
        entry: ServedUpstream,
        doors: Doors | None = None,
        on_sign: Callable[[Reason], None] | None = None,
    ) -> None:
        """`entry` is the upstream that the configuration names, which is any node. `doors`: None if this is
        the only process. `on_sign` is given if another process follows the cluster: it is called with each
        sign that the topology has changed."""
        self._runtime = runtime
        self._entry = entry
        self._doors = doors if doors is not None else OwnDoors()
        self._on_sign = on_sign if on_sign is not None else self.noticed
        self._clock: Callable[[], float] = time.monotonic
        self._refresh = Refresh(entry.upstream.address.cluster)
        self._wanted = asyncio.Event()
        self.found = asyncio.Event()  # the topology was asked for
        self._open: dict[str, _Served] = {}  # the nodes that are served, by id
        self._faults: list[Trouble] = []  # of the topology that was applied last
        self._told: list[Trouble] = []  # what is wrong now, but for nodes that are down
        runtime.upstream_of = self.upstream_of
        self._hears(entry.upstream)

    # -- what a class made of this one says

    async def _apply(self, topology: Topology) -> None:
        """Serve the nodes of this topology."""
        raise NotImplementedError

    def _leave(self, one: _Served, reason: str) -> None:
        """Close what stands on a node."""
        raise NotImplementedError

    async def _look_round(self) -> None:
        """Do what is due from time to time, if this process follows the cluster."""

    def _keep_up(self) -> None:
        """Do what is due from time to time in each process."""

    def _entries(self, topology: Topology) -> Sequence[Node]:
        """The nodes that the upstream of the configuration may lead to, the best first."""
        raise NotImplementedError

    def _jobs(self) -> list[asyncio.Task[None]]:
        """All background jobs."""
        return [one.job for one in self._open.values() if one.job is not None]

    def _troubles(self) -> Collection[Trouble]:
        """What is wrong with the topology that was applied last."""
        return self._faults

    def _nodes(self) -> Collection[ServedUpstream]:
        """The nodes of the topology that are served."""
        return [one.served for one in self._open.values()]

    def _announced(self, node: Node) -> str | None:  # noqa: ARG002
        """The address of keyfence that stands for a node; "": there is none; None: nor for others."""
        return None

    # -- the nodes

    def upstream_of(self, key: bytes) -> Upstream | None:
        """The node that has a key; None: none is known."""
        topology = self._refresh.topology
        owner = topology.owner(hash_slot(key)) if topology is not None else None
        one = self._open.get(owner.id) if owner is not None else None
        return one.served.upstream if one is not None else None

    def _open_upstream(self, node: Node) -> ServedUpstream:
        entry = self._entry.upstream.address
        address = dataclasses.replace(entry, host=node.host, port=node.port, shown=node.shown)
        served = self._runtime.open_upstream(address)
        self._hears(served.upstream)
        return served

    def _begin(self, one: _Served) -> None:
        """Begin a node's background jobs."""
        one.job = asyncio.get_running_loop().create_task(_run(one.served))

    def _keep(self, one: _Served, node: Node) -> None:
        """A node that is served is in the topology still, perhaps at another address. If it is silent and the
        cluster takes it for dead, what stands on it leaves it."""
        if one.node.address != node.address:
            one.served.upstream.move(node.host, node.port, "the cluster")
        one.node = node
        upstream = one.served.upstream
        if node.is_dead and upstream.silence.is_silent and not upstream.is_dead:
            upstream.died(DEAD)
            self._leave(one, f"upstream {node.shown}: {DEAD}")

    async def _let_go(self, one: _Served) -> None:
        """Close what stands on a node, and end its background jobs."""
        await self._runtime.close_upstream(one.served)
        if one.job is not None:
            one.job.cancel()
            await asyncio.gather(one.job, return_exceptions=True)

    def _choose_entry(self, topology: Topology) -> None:
        """Have the upstream of the configuration lead to a node that serves. While all are down, it stays."""
        upstream = self._entry.upstream
        sound = [one for one in self._entries(topology) if one.is_healthy]
        here = topology.node_at(upstream.address.host, upstream.address.port)
        if here in sound and upstream.up is not False:
            return
        best = next((one for one in sound if one is not here and self._may_serve(one)), None)
        if best is not None:
            upstream.choose(best.host, best.port)

    def _may_serve(self, node: Node) -> bool:
        one = self._open.get(node.id)
        return one is not None and one.served.upstream.up is not False

    async def end(self) -> None:
        """End all background jobs."""
        jobs = self._jobs()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    async def _go_by(self, topology: Topology) -> None:
        await self._apply(topology)
        self._doors.told(topology)

    # -- going by what another process follows

    async def take(self, topology: Topology, node_ids: Collection[str]) -> None:  # noqa: ARG002
        """Another process follows the cluster, and tells this topology. These nodes have listeners."""
        self._refresh.take(topology, self._clock())
        await self._go_by(topology)

    async def keep_forever(self) -> None:
        """Go on with the topology that was taken last."""
        try:
            while True:
                await asyncio.sleep(1)
                if self._refresh.topology is not None:
                    self._choose_entry(self._refresh.topology)
                self._keep_up()
        finally:
            await self.end()

    # -- following

    async def _find(self) -> None:
        """Ask each node that is known until one tells the topology."""
        while (question := self._refresh.question(self._clock())) is not None:
            await self._ask(question)
            if self._refresh.topology is not None:
                break

    async def follow_forever(self) -> None:
        """Ask whenever the topology may have changed, and from time to time."""
        try:
            await self._find()
            self.found.set()
            while True:
                try:
                    await self._follow()
                except Exception as exc:  # the next answer may be another one
                    self._runtime.telemetry.counters.internal_error("cluster")
                    report_fault(exc)
                    await asyncio.sleep(1)
        finally:
            self.found.set()
            await self.end()

    async def _follow(self) -> None:
        now = self._clock()
        question = self._refresh.question(now)
        if question is not None:
            await self._ask(question)
        else:
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._refresh.seconds_left(now), 1.0)):
                    await self._wanted.wait()
        await self._look_round()
        self._keep_up()
        self._report()

    def noticed(self, reason: Reason) -> None:
        """There is a sign that the topology has changed."""
        self._refresh.noticed(reason, self._clock())
        self._wanted.set()

    def _signed(self, upstream: Upstream, word: str) -> None:
        """Something was noticed of a node (`Upstream.on_sign`). Whether a redirect is a sign, its address
        says."""
        if word in TO_NODES:
            address = upstream.address
            node = host_port(address.host, address.port)
            self._runtime.telemetry.counters.node_redirected(node, word)
        else:
            self._on_sign(Reason(word.lower()))

    def _hears(self, upstream: Upstream) -> None:
        """Take the signs of this node."""
        upstream.on_sign = partial(self._signed, upstream)

    async def _ask(self, question: Question) -> None:
        """Ask a node. Also an answer that fails may end a round, after which an older topology counts."""
        before = self._refresh.topology
        try:
            reply = await self._reply_of(question.address, question.seconds)
        except (OSError, GreetingError, hiredis.ReplyError) as exc:
            self._refresh.failed(question, _why(exc), self._clock())
        else:
            self._refresh.answered(question, reply, self._clock())
        now = self._refresh.topology
        if now is not None:
            await self._go_by(now)
        if before is not None and now is not None and now is not before:
            self._tell_of_masters(before, now)
        self._tell()

    async def _reply_of(self, node: tuple[str, int], seconds: float = MOST_ANSWER_SECONDS) -> object:
        """A node's reply to CLUSTER NODES. Raises OSError, GreetingError, ReplyError."""
        entry = self._entry.upstream
        address = dataclasses.replace(entry.address, host=node[0], port=node[1])
        asked = Upstream(address, entry.tls, min(entry.connect_timeout, seconds))
        reply = _decoded(await asked.ask(address.greeting(), [CLUSTER.request(b"NODES")], MAX_TEXT))
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    # -- for operators

    def _tell_of_masters(self, before: Topology, now: Topology) -> None:
        """Tell operators which nodes have become masters of hash slots."""
        for node in now.changes_since(before).changed_role:
            if node.is_primary and node.slots:
                former = before.owner(node.slots[0][0])
                instead = (
                    f", in place of {former.shown}" if former is not None and former.id != node.id else ""
                )
                text = f"{node.shown} is the master of {node.slot_count:,} hash slots now{instead}"
                notice(text, text)

    def _tell(self) -> None:
        """Tell operators what is wrong, once for each thing. Why no node answers may differ each time."""
        no_topology = Trouble(NO_TOPOLOGY, self._refresh.trouble)
        found = [no_topology] if no_topology.text else []
        found += self._troubles()
        told = {*self._told, *(one.kind for one in self._told if one.kind == NO_TOPOLOGY)}
        for one in found:
            if one not in told and one.kind not in told:
                notice(one.kind if one.kind == NO_TOPOLOGY else one.text, one.text)
        self._told = found

    def replicas(self) -> list[dict[str, Any]]:
        """The replicas that services may read from, as operators see them."""
        return []

    def state(self) -> ClusterState:
        """How the cluster stands now."""
        known = self._refresh.topology
        topology = known if known is not None else _NO_TOPOLOGY
        down = [one.upstream for one in self._nodes() if one.upstream.up is False]
        unreachable = [Trouble(UNREACHABLE, one.state) for one in down]
        return ClusterState(
            nodes=[self._state_of(topology, node) for node in topology.by_shard()],
            slots=topology.served,
            age=self._clock() - self._refresh.taken_at if known is not None else None,
            troubles=[*self._told[:MAX_TOLD], *unreachable],
            refreshes=Counter({str(one): number for one, number in self._refresh.reasons.items()}),
        )

    def _state_of(self, topology: Topology, node: Node) -> NodeState:
        one, primary = self._open.get(node.id), topology.nodes_by_id.get(node.primary_id)
        up = one.served.upstream.up if one is not None else None
        return NodeState(
            id=node.id,
            node=node.shown,
            role="master" if node.is_primary else "replica",
            primary=primary.shown if primary is not None else "",
            announced=self._announced(node),
            up=node.is_healthy if up is None else up,
            slots=node.slot_count,
        )

    def _report(self) -> None:
        """Have the metrics tell how the cluster stands."""
        shown = self._entry.upstream.address.shown
        self._runtime.telemetry.counters.cluster_stands(shown, self.state())


def _why(exc: OSError | GreetingError | hiredis.ReplyError) -> str:
    """Why a node does not tell the topology."""
    if not isinstance(exc, hiredis.ReplyError):
        return describe(exc)
    if NO_CLUSTER in str(exc):
        return f"it is no node of a cluster ({exc}): give its address as url, in place of cluster"
    return str(exc)


async def _run(served: ServedUpstream) -> None:
    """The background jobs of one node, and its first look."""
    try:
        await served.reach()
        async with background(*served.chores()):
            await asyncio.Event().wait()
    except Exception as exc:
        report_fault(exc)


def _decoded(raw: bytes) -> object:
    reader = hiredis.Reader()
    try:
        reader.feed(raw)
        return reader.gets()
    except (hiredis.HiredisError, TypeError, ValueError):
        return None
