"""Follows a cluster: each of its nodes is an upstream of this process, with a listener of its own.

Rule: clients learn a node's address of keyfence only while its listener is open. A node that has left keeps
its listener for a while, because clients with an old topology still come there.

The upstream that the configuration names is any node: it serves the configured listener, by whose address
clients find the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import Any

import hiredis

from keyfence.config.upstream import AnnounceModel
from keyfence.downstream.listeners import Listeners
from keyfence.net.addresses import Address, bind
from keyfence.net.host_port import host_port
from keyfence.policy.compiled.hash_slots import SLOTS as SLOT_COUNT
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.resp.frames import FrameError
from keyfence.telemetry.operator_log import notice, report_fault, warn
from keyfence.upstream.cluster.announced import Addresses, Announcement, Ports, ports_of
from keyfence.upstream.cluster.refresh import ANSWER_SECONDS, Question, Reason, Refresh
from keyfence.upstream.cluster.rewriting import redirect_in, redirected, rewritten
from keyfence.upstream.cluster.topology import MAX_TEXT, Node, Topology
from keyfence.upstream.handshake import GreetingError, describe
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import CLUSTER

from .jobs import background
from .runtime import Runtime
from .upstreams import ServedUpstream

MAX_TOLD = 100  # troubles
KEPT_SECONDS = 60.0  # for which the listener of a node that has left stays open
_UNREADABLE = encode.error("ERR keyfence: the cluster's answer cannot be read, so it is withheld")


class _Signs:
    """Tells of an upstream that something has happened there after which the topology may be another one."""

    def __init__(self, noticed: Any) -> None:
        self._noticed = noticed

    def look_again(self) -> None:
        self._noticed(Reason.RESET)


@dataclasses.dataclass(eq=False)
class _Open:
    """A node whose listener is open."""

    node: Node
    port: int
    served: ServedUpstream
    listeners: Listeners
    job: asyncio.Task[None] | None = None  # its background jobs, once this process serves
    left_at: float = 0.0  # when it has left, in the loop's time; 0.0: it has not


class ClusterNodes:
    """The nodes of the cluster that a process serves."""

    def __init__(self, runtime: Runtime, entry: ServedUpstream, announce: AnnounceModel) -> None:
        """`entry` is the upstream of the configured listener."""
        self._runtime = runtime
        self._entry = entry
        nodes = {Address(node).host_port: port for node, port in announce.nodes.items()}
        self._announcement = Announcement(announce.host, announce.range, nodes)
        self._refresh = Refresh(entry.upstream.address.cluster)
        self._open: dict[str, _Open] = {}  # by the node's id
        self._addresses = Addresses(Topology(), announce.host, {})
        self._wanted = asyncio.Event()
        self.found = asyncio.Event()  # the topology was asked for
        self._told: list[str] = []
        runtime.cluster, runtime.upstream_of = self, self.upstream_of
        entry.upstream.looked_for_by(_Signs(self._noticed))

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
            self._refresh.redirected(redirect.word, redirect.slot, address, time.monotonic())
            self._wanted.set()
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
        if self._refresh.trouble:
            warn(self._refresh.trouble)

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
            jobs = [one.job for one in self._open.values() if one.job is not None]
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

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

    def _noticed(self, reason: Reason) -> None:
        self._refresh.noticed(reason, time.monotonic())
        self._wanted.set()

    async def _ask(self, question: Question) -> None:
        """Ask a node. Also an answer that fails may end a round, after which an older topology counts."""
        try:
            reply = await self._reply_of(question)
        except (OSError, GreetingError, hiredis.ReplyError) as exc:
            why = str(exc) if isinstance(exc, hiredis.ReplyError) else describe(exc)
            self._refresh.failed(question, why, time.monotonic())
        else:
            self._refresh.answered(question, reply, time.monotonic())
        if self._refresh.topology is not None:
            await self._apply(self._refresh.topology)

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

    async def _apply(self, topology: Topology) -> None:
        """Have a listener for each node of this topology."""
        ports = ports_of(topology, self._announcement)
        self._tell(topology, ports)
        now = asyncio.get_running_loop().time()
        for node_id, one in self._open.items():
            if node_id not in topology.nodes_by_id and not one.left_at:
                one.left_at = now
        for node in topology.nodes:
            port = ports.by_id.get(node.id)
            if port is not None and node.host:
                await self._serve(node, port)
        by_id = {node_id: one.port for node_id, one in self._open.items() if not one.left_at}
        self._addresses = Addresses(topology, self._announcement.host, by_id)
        self._choose_entry(topology)

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
            bound = bind(where)
        except OSError as exc:
            text = f"{node.shown} is not served: cannot listen on {where}: {exc.strerror or exc}"
            notice(f"port {port}", text)
            return
        address = dataclasses.replace(
            self._entry.upstream.address, host=node.host, port=node.port, shown=node.shown
        )
        served = self._runtime.open_upstream(address)
        served.upstream.looked_for_by(_Signs(self._noticed))
        one = _Open(node, port, served, self._runtime.serve(served, [bound]))
        self._open[node.id] = one
        await one.listeners.start()
        one.job = asyncio.get_running_loop().create_task(_run(served))

    async def _close_left(self) -> None:
        """Close the listeners of nodes that have left for some time."""
        now = asyncio.get_running_loop().time()
        for one in list(self._open.values()):
            if one.left_at and now - one.left_at >= KEPT_SECONDS:
                await self._close(one)

    async def _close(self, one: _Open) -> None:
        del self._open[one.node.id]
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

    def _tell(self, topology: Topology, ports: Ports) -> None:
        """Tell operators what is wrong, once for each thing."""
        troubles = list(ports.troubles)
        if topology.covered < SLOT_COUNT:
            troubles.append(f"{SLOT_COUNT - topology.covered} hash slots of the cluster have no node")
        for text in troubles:
            if text not in self._told:
                notice(text, text)
        self._told = troubles

    # -- for operators

    @property
    def troubles(self) -> list[str]:
        """What is wrong now."""
        down = [one for one in self._open.values() if one.served.upstream.up is False and not one.left_at]
        trouble = [self._refresh.trouble] if self._refresh.trouble else []
        return [*trouble, *self._told[:MAX_TOLD], *(one.served.upstream.state for one in down)]

    def status(self) -> dict[str, Any]:
        """The nodes, the addresses that stand for them, and how old this is."""
        topology = self._refresh.topology or Topology()
        nodes = []
        for node in topology.nodes:
            one = self._open.get(node.id)
            announced = self._addresses.of(node.id)
            nodes.append(
                {
                    "id": node.id,
                    "node": node.shown,
                    "role": "master" if node.is_primary else "replica",
                    "announced": host_port(announced.host, announced.port) if announced is not None else "",
                    "up": bool(one is not None and one.served.upstream.up),
                }
            )
        age = time.monotonic() - self._refresh.taken_at
        return {
            "nodes": nodes,
            "slots": topology.covered,
            "age": round(age, 1) if self._refresh.topology is not None else None,
            "trouble": self._refresh.trouble,
        }


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
