"""Follows a cluster that is behind one address: each of its nodes is an upstream without a listener.

Rule: clients know nothing of the nodes. Which of them has a hash slot, `upstream.single` asks here. A node
that has left is let go of once nothing is due there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import hiredis

from keyfence.policy.compiled.hash_slots import SLOTS as SLOT_COUNT
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.telemetry.operator_log import notice, report_fault, warn
from keyfence.upstream.cluster.refresh import ANSWER_SECONDS, Question, Reason, Refresh
from keyfence.upstream.cluster.topology import MAX_TEXT, Node, Topology
from keyfence.upstream.handshake import GreetingError, describe
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import CLUSTER
from keyfence.upstream.single.masters import Masters
from keyfence.upstream.single.refusals import error_for

from .jobs import background
from .runtime import Runtime
from .upstreams import ServedUpstream

# What a Redis that is no node of a cluster answers to every CLUSTER command.
NO_CLUSTER = encode.error("ERR This instance has cluster support disabled")


class _Signs:
    """Tells of an upstream that something has happened there after which the topology may be another one."""

    def __init__(self, noticed: Any) -> None:
        self._noticed = noticed

    def look_again(self) -> None:
        self._noticed(Reason.RESET)


@dataclasses.dataclass(eq=False)
class _Open:
    """A node of the topology."""

    node: Node
    served: ServedUpstream
    job: asyncio.Task[None]


class OneAddress:
    """The nodes of the cluster that a process serves behind its listeners."""

    def __init__(self, runtime: Runtime, entry: ServedUpstream) -> None:
        """`entry` is the upstream that the configuration names, which is any node."""
        settings = runtime.settings
        self._runtime = runtime
        self._entry = entry
        self._refresh = Refresh(entry.upstream.address.cluster)
        self._open: dict[str, _Open] = {}  # by the node's id
        self._wanted = asyncio.Event()
        self.found = asyncio.Event()  # the topology was asked for
        self._told: list[str] = []
        later = asyncio.get_running_loop().call_later
        self.masters = Masters(settings.shared_connections, settings.connect_timeout, self._noticed, later)
        self.masters.ask_nodes = self._ask_nodes
        self._questions: set[asyncio.Task[None]] = set()
        runtime.cluster, runtime.masters, runtime.upstream_of = self, self.masters, self.upstream_of
        entry.upstream.looked_for_by(_Signs(self._noticed))

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

    # -- following

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
            jobs = [one.job for one in self._open.values()]
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _find(self) -> None:
        """Ask each node that is known until one tells the topology."""
        while (question := self._refresh.question(time.monotonic())) is not None:
            await self._ask(question)
            if self._refresh.topology is not None:
                break
        if self._refresh.trouble:
            warn(self._refresh.trouble)

    async def _follow(self) -> None:
        now = time.monotonic()
        question = self._refresh.question(now)
        if question is not None:
            await self._ask(question)
            return
        self._wanted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._refresh.seconds_left(now), 1.0)):
                await self._wanted.wait()

    def _noticed(self, reason: Reason) -> None:
        self._refresh.noticed(reason, time.monotonic())
        self._wanted.set()

    async def _ask(self, question: Question) -> None:
        try:
            reply = await self._reply_of(question.address)
        except (OSError, GreetingError, hiredis.HiredisError) as exc:
            why = str(exc) if isinstance(exc, hiredis.HiredisError) else describe(exc)
            self._refresh.failed(question, why, time.monotonic())
        else:
            self._refresh.answered(question, reply, time.monotonic())
        if self._refresh.topology is not None:
            await self._apply(self._refresh.topology)

    def _ask_nodes(self, node_id: str, tell: Callable[[bytes, str], None]) -> None:
        """Ask a node for CLUSTER NODES, for a client that scans."""
        task = asyncio.get_running_loop().create_task(self._tell_nodes(node_id, tell))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _tell_nodes(self, node_id: str, tell: Callable[[bytes, str], None]) -> None:
        text, one = b"", self._open.get(node_id)
        host = one.node.host if one is not None else ""
        if one is not None:
            with contextlib.suppress(OSError, GreetingError, hiredis.HiredisError):
                reply = await self._reply_of(one.node.address)
                text = reply if isinstance(reply, bytes) else b""
        tell(text, host)

    async def _reply_of(self, node: tuple[str, int]) -> object:
        """A node's reply to CLUSTER NODES. Raises OSError, GreetingError, HiredisError."""
        entry = self._entry.upstream
        address = dataclasses.replace(entry.address, host=node[0], port=node[1])
        asked = Upstream(address, entry.tls, min(entry.connect_timeout, ANSWER_SECONDS))
        raw = await asked.ask(address.greeting(), [CLUSTER.request(b"NODES")], MAX_TEXT)
        reader = hiredis.Reader()
        reader.feed(raw)
        reply = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    # -- what follows from a topology

    async def _apply(self, topology: Topology) -> None:
        """Have an upstream for each node of this topology."""
        self._tell(topology)
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
        served.upstream.looked_for_by(_Signs(self._noticed))
        job = asyncio.get_running_loop().create_task(_run(served))
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

    def _tell(self, topology: Topology) -> None:
        """Tell operators what is wrong, once for each thing."""
        troubles = []
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
        down = [one for one in self._open.values() if one.served.upstream.up is False]
        trouble = [self._refresh.trouble] if self._refresh.trouble else []
        return [*trouble, *self._told, *(one.served.upstream.state for one in down)]

    def status(self) -> dict[str, Any]:
        """The nodes, and how old this is."""
        topology = self._refresh.topology or Topology()
        nodes = []
        for node in topology.nodes:
            one = self._open.get(node.id)
            is_up = one is not None and one.served.upstream.up
            role = "master" if node.is_primary else "replica"
            nodes.append(
                {"id": node.id, "node": node.shown, "role": role, "announced": "", "up": bool(is_up)}
            )
        age = time.monotonic() - self._refresh.taken_at
        return {
            "nodes": nodes,
            "slots": topology.covered,
            "age": round(age, 1) if self._refresh.topology is not None else None,
            "trouble": self._refresh.trouble,
            "sent_again": dict(self.masters.followed),  # by the word of the error
        }


async def _run(served: ServedUpstream) -> None:
    """The background jobs of one node, and its first look."""
    try:
        await served.reach()
        async with background(*served.chores()):
            await asyncio.Event().wait()
    except Exception as exc:
        report_fault(exc)
