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
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import hiredis

from keyfence.config.upstream import AnnounceModel
from keyfence.downstream.listeners import Listeners
from keyfence.net.addresses import Address, Bound, bind
from keyfence.net.host_port import host_port
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.resp.frames import FrameError
from keyfence.resp.replies import TO_NODES
from keyfence.telemetry.operator_log import notice, report_fault
from keyfence.upstream.cluster.announced import Addresses, Announcement, ports_of
from keyfence.upstream.cluster.refresh import ANSWER_SECONDS, Question, Reason, Refresh
from keyfence.upstream.cluster.rewriting import redirect_in, redirected, rewritten
from keyfence.upstream.cluster.state import ClusterState, NodeState
from keyfence.upstream.cluster.topology import MAX_TEXT, Node, Topology
from keyfence.upstream.cluster.troubles import (
    CANNOT_LISTEN,
    NO_TOPOLOGY,
    UNREACHABLE,
    Trouble,
    troubles_of,
)
from keyfence.upstream.handshake import GreetingError, describe
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import CLUSTER

from .jobs import background
from .runtime import Runtime
from .upstreams import ServedUpstream

MAX_TOLD = 100  # troubles
NO_CLUSTER = "cluster support disabled"  # in the error of a Redis that is a node of no cluster
KEPT_SECONDS = 60.0  # for which the listener of a node that has left stays open
_UNREADABLE = encode.error("ERR keyfence: the cluster's answer cannot be read, so it is withheld")


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


@dataclasses.dataclass(eq=False)
class _Open:
    """A node whose listener is open."""

    node: Node
    port: int
    served: ServedUpstream
    listeners: Listeners | None  # None: other processes serve it
    job: asyncio.Task[None] | None = None  # its background jobs, once this process serves
    left_at: float = 0.0  # when it has left, in the loop's time; 0.0: it has not


class ClusterNodes:
    """The nodes of the cluster that a process serves."""

    def __init__(
        self,
        runtime: Runtime,
        entry: ServedUpstream,
        announce: AnnounceModel,
        doors: Doors | None = None,
        on_sign: Callable[[Reason], None] | None = None,
    ) -> None:
        """`entry` is the upstream of the configured listener. `on_sign` is called with each sign that the
        topology has changed, if another process follows it."""
        self._runtime = runtime
        self._entry = entry
        self._doors = doors if doors is not None else OwnDoors()
        self._on_sign = on_sign if on_sign is not None else self.noticed
        nodes = {Address(node).host_port: port for node, port in announce.nodes.items()}
        self._announcement = Announcement(announce.host, announce.range, nodes)
        self._refresh = Refresh(entry.upstream.address.cluster)
        self._open: dict[str, _Open] = {}  # by the node's id
        self._addresses = Addresses(Topology(), announce.host, {})
        self._wanted = asyncio.Event()
        self.found = asyncio.Event()  # the topology was asked for
        self._troubles: list[Trouble] = []  # of the topology, and of its ports
        self._told: list[Trouble] = []  # what is wrong now, but for nodes that are down
        self._closed_ports: dict[str, Trouble] = {}  # by the id of a node that has none for this
        self._closing: set[asyncio.Task[None]] = set()
        runtime.cluster, runtime.upstream_of = self, self.upstream_of
        entry.upstream.on_sign = partial(self._signed, entry.upstream)

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

    def upstream_of(self, key: bytes) -> Upstream | None:
        """The node that has a key; None: none is known."""
        topology = self._refresh.topology
        owner = topology.owner(hash_slot(key)) if topology is not None else None
        one = self._open.get(owner.id) if owner is not None else None
        return one.served.upstream if one is not None else None

    # -- following

    async def _find(self) -> None:
        """Ask each node that is known until one tells the topology."""
        while (question := self._refresh.question(time.monotonic())) is not None:
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

    async def keep_forever(self) -> None:
        """Go on with the topology that another process tells (`take`)."""
        try:
            while True:
                await asyncio.sleep(1)
                if self._refresh.topology is not None:
                    self._choose_entry(self._refresh.topology)
        finally:
            await self.end()

    async def end(self) -> None:
        """End all background jobs."""
        jobs = [one.job for one in self._open.values() if one.job is not None]
        for job in (*jobs, *self._closing):
            job.cancel()
        await asyncio.gather(*jobs, *self._closing, return_exceptions=True)

    async def _follow(self) -> None:
        now = time.monotonic()
        question = self._refresh.question(now)
        if question is not None:
            await self._ask(question)
        else:
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._refresh.seconds_left(now), 1.0)):
                    await self._wanted.wait()
        await self._close_left()
        self._report()

    def noticed(self, reason: Reason) -> None:
        """There is a sign that the topology has changed."""
        self._refresh.noticed(reason, time.monotonic())
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

    async def _ask(self, question: Question) -> None:
        """Ask a node. Also an answer that fails may end a round, after which an older topology counts."""
        try:
            reply = await self._reply_of(question)
        except (OSError, GreetingError, hiredis.ReplyError) as exc:
            self._refresh.failed(question, _why(exc), time.monotonic())
        else:
            self._refresh.answered(question, reply, time.monotonic())
        if self._refresh.topology is not None:
            await self._apply(self._refresh.topology)
        self._tell()

    async def _reply_of(self, question: Question) -> object:
        """A node's reply to CLUSTER NODES. Raises OSError, GreetingError, ReplyError."""
        entry = self._entry.upstream
        address = dataclasses.replace(entry.address, host=question.host, port=question.port)
        asked = Upstream(address, entry.tls, min(entry.connect_timeout, ANSWER_SECONDS))
        reply = _decoded(await asked.ask(address.greeting(), [CLUSTER.request(b"NODES")], MAX_TEXT))
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    # -- what follows from a topology

    async def take(self, topology: Topology, node_ids: Collection[str]) -> None:
        """Another process follows the cluster, and tells this topology. Only these nodes have listeners."""
        self._refresh.take(topology, time.monotonic())
        await self._apply(topology)
        for one in [one for one in self._open.values() if one.node.id not in node_ids]:
            await self._close(one)

    async def _apply(self, topology: Topology) -> None:
        """Have a listener for each node of this topology."""
        ports = ports_of(topology, self._announcement)
        self._troubles = [*troubles_of(topology), *ports.troubles]
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
        self._doors.told(topology)

    async def _serve(self, node: Node, port: int) -> None:
        """Have a listener for this node at this port."""
        one = self._open.get(node.id)
        if one is not None and one.port == port:
            one.left_at = 0.0
            if one.node.address != node.address:
                one.served.upstream.move(node.host, node.port, "the cluster")
            one.node = node
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
        address = dataclasses.replace(
            self._entry.upstream.address, host=node.host, port=node.port, shown=node.shown
        )
        served = self._runtime.open_upstream(address)
        served.upstream.on_sign = partial(self._signed, served.upstream)
        one = _Open(node, port, served, self._runtime.serve(served, bound) if bound else None)
        self._open[node.id] = one
        if one.listeners is not None:
            await one.listeners.start()
        one.job = asyncio.get_running_loop().create_task(_run(served))

    async def _close_left(self) -> None:
        """Close the listeners of nodes that have left for some time."""
        now = asyncio.get_running_loop().time()
        for one in list(self._open.values()):
            if one.left_at and now - one.left_at >= KEPT_SECONDS:
                await self._close(one)

    async def _close(self, one: _Open) -> None:
        """Close a node's listener at once. Its clients have their time, for which nothing else waits."""
        del self._open[one.node.id]
        self._doors.close(one.node.id)
        task = asyncio.get_running_loop().create_task(self._drain(one))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.sleep(0)  # in which its sockets are closed

    async def _drain(self, one: _Open) -> None:
        await self._runtime.close_upstream(one.served)
        if one.job is not None:
            one.job.cancel()
            await asyncio.gather(one.job, return_exceptions=True)

    def _choose_entry(self, topology: Topology) -> None:
        """Have the configured listener lead to a node that serves."""
        upstream = self._entry.upstream
        here = topology.node_at(upstream.address.host, upstream.address.port)
        if here is not None and here.is_healthy and upstream.up is not False:
            return
        others = (one for one in topology.nodes if one.host and one.is_healthy and one is not here)
        best = min(others, key=lambda one: not one.slots, default=None)
        if best is not None:
            upstream.move(best.host, best.port, "the cluster")

    def _tell(self) -> None:
        """Tell operators what is wrong, once for each thing. Why no node answers may differ each time."""
        no_topology = Trouble(NO_TOPOLOGY, self._refresh.trouble)
        found = [no_topology] if no_topology.text else []
        found += [*self._troubles, *self._closed_ports.values()]
        told = {*self._told, *(one.kind for one in self._told if one.kind == NO_TOPOLOGY)}
        for one in found:
            if one not in told and one.kind not in told:
                notice(one.kind if one.kind == NO_TOPOLOGY else one.text, one.text)
        self._told = found

    # -- for operators

    def state(self) -> ClusterState:
        """How the cluster stands now."""
        topology = self._refresh.topology
        down = [one for one in self._open.values() if one.served.upstream.up is False and not one.left_at]
        unreachable = [Trouble(UNREACHABLE, one.served.upstream.state) for one in down]
        return ClusterState(
            nodes=[self._state_of(node) for node in topology.nodes] if topology is not None else [],
            slots=topology.covered if topology is not None else 0,
            age=time.monotonic() - self._refresh.taken_at if topology is not None else None,
            troubles=[*self._told[:MAX_TOLD], *unreachable],
            refreshes=Counter({str(one): number for one, number in self._refresh.reasons.items()}),
        )

    def _state_of(self, node: Node) -> NodeState:
        one, announced = self._open.get(node.id), self._addresses.of(node.id)
        return NodeState(
            id=node.id,
            node=node.shown,
            role="master" if node.is_primary else "replica",
            announced=host_port(announced.host, announced.port) if announced is not None else "",
            up=bool(one is not None and one.served.upstream.up),
            slots=node.slot_count,
        )

    def _report(self) -> None:
        """Have the metrics tell how the cluster stands."""
        state, shown = self.state(), self._entry.upstream.address.shown
        counters = self._runtime.telemetry.counters
        rows = ((one.node, one.up, one.role, one.slots) for one in state.nodes)
        refreshes, troubles = state.refreshes, state.troubles_by_kind
        counters.cluster_stands(shown, rows, state.slots, state.age, refreshes, troubles)


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
