"""The nodes of a cluster as the shares of plain clients use them, and which of them has each hash slot.

Rule: a topology is taken as a whole. What a node answers (MOVED) counts until the next one. No I/O of its
own.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from keyfence.policy.compiled.hash_slots import SLOTS
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.cluster.topology import NOT_NAMED, Topology
from keyfence.upstream.health import Upstream
from keyfence.upstream.pools import Pools
from keyfence.upstream.shared import SharedConnection

from .cutting import NO_NODE, Cutter
from .refusals import CLUSTERDOWN, MOVED, Refusal
from .replicas import ShardReplicas

# For so long a client's replies wait for those of other nodes to what it has sent together. One write to a
# client costs more than all else that is done for a reply, so it gets them at once if it can.
LATE_SECONDS = 0.001


class Closable(Protocol):
    """What a client has here."""

    def failed(self, exc: Exception) -> None:
        """What was done for this client has failed. Close it; other clients go on."""


class Waiting(Closable, Protocol):
    """A client's shares or own connections."""

    def topology_changed(self) -> None:
        """Some hash slot has another node now, or a node has left or died."""


class Behind(Closable, Protocol):
    """A client's shares of which some replies have come, and others that were asked for together have not."""

    def pass_on_some(self) -> None:
        """Pass on what has come, unless the client has got it meanwhile."""


class Master:
    """One node: its upstream, and the connections that clients share."""

    def __init__(self, number: int, node_id: str, upstream: Upstream, size: int) -> None:
        """`number` is its place in `Masters`; `size` the maximum number of shared connections of one kind."""
        self.number = number
        self.id = node_id
        self.upstream = upstream
        self.pools = Pools(upstream, size)
        self.has_left = False


class Masters:
    """All nodes of the cluster, primaries and those that may become one."""

    def __init__(
        self,
        size: int,
        patience: float,
        noticed: Callable[[Reason], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`size`: the maximum number of shared connections of one kind to a node. `patience`: for how many
        seconds a command waits while no node serves its hash slot. `noticed` is called with each sign that
        the topology has changed. `later` calls back after so many seconds, as the loop's `call_later`."""
        self.owners = array("H", [NO_NODE]) * SLOTS  # the number of the node of each hash slot
        self.cutter = Cutter(self.owners)  # of clients whose commands are not sent in parts
        self._cutters = {frozenset[bytes](): self.cutter}  # by the commands that are
        self.patience = patience
        self.later = later
        self.clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        self.replicas: ShardReplicas | None = None  # None: nothing is read from any
        self.topology = Topology()
        # Asks the node with this id for CLUSTER NODES, and calls back with the text and the node's host.
        self.ask_nodes: Callable[[str, Callable[[bytes, str], None]], None] = lambda _id, tell: tell(b"", "")
        self._size = size
        self._noticed = noticed
        self._nodes: dict[int, Master] = {}
        self._numbers: dict[str, int] = {}  # by id
        self._next = 0
        self._clients: dict[Waiting, None] = {}
        self._behind: list[Behind] = []  # clients that get some replies before others have come
        self._tells = False  # the next turn of the loop tells the clients of a change

    # -- the nodes

    def __getitem__(self, number: int) -> Master:
        return self._nodes[number]

    def __contains__(self, number: int) -> bool:
        return number in self._nodes

    def __iter__(self) -> Iterator[Master]:
        return iter(list(self._nodes.values()))

    def has_left(self, number: int) -> bool:
        """Whether the cluster does not have this node any more."""
        return number not in self._nodes or self._nodes[number].has_left

    def is_dead(self, number: int) -> bool:
        """Whether the cluster takes this node for dead, and it does not answer."""
        return number in self._nodes and self._nodes[number].upstream.is_dead

    def is_away(self, number: int) -> bool:
        """Whether this node cannot be reached, or has left the cluster."""
        return self.has_left(number) or self._nodes[number].upstream.up is False

    def any(self) -> int:
        """The node for a command that any node may answer; NO_NODE: there is none."""
        owners = self.topology.owners()
        up = [one.id for one in owners if self._is_up(one.id)] or [one.id for one in owners]
        return self._numbers.get(up[0], NO_NODE) if up else NO_NODE

    def _is_up(self, node_id: str) -> bool:
        number = self._numbers.get(node_id)
        return number is not None and self._nodes[number].upstream.up is not False

    def number_of(self, node_id: str) -> int:
        """The number of a node; NO_NODE: it is not known."""
        return self._numbers.get(node_id, NO_NODE)

    def cutter_for(self, splits: frozenset[bytes]) -> Cutter:
        """The cutter of clients for whom these commands are sent in parts."""
        found = self._cutters.get(splits)
        if found is None:
            found = self._cutters[splits] = Cutter(self.owners, self.cutter.version, splits)
        return found

    def of_slot(self, slot: int) -> int:
        return self.owners[slot]

    def take(self, topology: Topology, upstreams: Mapping[str, Upstream]) -> None:
        """Use this topology from now on. `upstreams`: of its nodes, by id."""
        self.topology = topology
        for node_id, upstream in upstreams.items():
            number = self._numbers.get(node_id)
            if number is None or self._nodes[number].upstream is not upstream:
                self._leave(node_id)
                self._nodes[self._next] = Master(self._next, node_id, upstream, self._size)
                self._numbers[node_id] = self._next
                self._next = (self._next + 1) % NO_NODE
        for node_id in self._numbers.keys() - upstreams.keys():
            self._leave(node_id)
        owners = array("H", [NO_NODE]) * SLOTS
        for node in topology.owners():
            number = self._numbers.get(node.id)
            if number is not None:
                for first, last in node.slots:
                    owners[first : last + 1] = array("H", [number]) * (last + 1 - first)
        if owners != self.owners:
            self.owners = owners
            for one in self._cutters.values():
                one.take(owners)
            self._changed()
        self.take_replicas()

    def take_replicas(self) -> None:
        """Read from the replicas of this topology from now on, if any service reads from replicas."""
        if self.replicas is not None:
            upstreams = {number: one.upstream for number, one in self._nodes.items()}
            self.replicas.take(self.topology, self._numbers, upstreams)

    def _leave(self, node_id: str) -> None:
        number = self._numbers.pop(node_id, None)
        if number is not None:
            self._nodes[number].has_left = True
            self._nodes[number].pools.retire()
            self._changed()  # also if it had no hash slot any more: clients may still use it for PING

    def died(self, node_id: str, reason: str) -> None:
        """What stands on this node must leave it. Clients that wait for a reply there are closed."""
        number = self._numbers.get(node_id)
        if number is not None:
            self._nodes[number].pools.move(reason, ())
            self._tell_soon()

    def _changed(self) -> None:
        for one in self._cutters.values():
            one.version += 1
        self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._tells:
            self._tells = True
            self.later(0.0, self._tell)

    def _tell(self) -> None:
        self._tells = False
        for one in list(self._clients):
            try:
                one.topology_changed()
            except Exception as exc:
                one.failed(exc)

    def forget(self, client: Waiting) -> None:
        self._clients.pop(client, None)

    def know(self, client: Waiting) -> None:
        """Tell this client when a hash slot has another node."""
        self._clients[client] = None

    def behind(self, client: Behind) -> None:
        """Some of what this client has sent is answered, and some is not: it gets the former soon."""
        if not self._behind:
            self.later(LATE_SECONDS, self._pass_on)
        self._behind.append(client)

    def _pass_on(self) -> None:
        behind, self._behind = self._behind, []
        for one in behind:
            try:
                one.pass_on_some()
            except Exception as exc:
                one.failed(exc)

    # -- what nodes answer

    def target(self, refusal: Refusal, asked: int) -> int:
        """Where a redirect of the node `asked` leads; NO_NODE: to no node that is known yet."""
        host = refusal.host
        if host in NOT_NAMED and asked in self._nodes:
            host = self._nodes[asked].upstream.address.host
        node = self.topology.node_at(host, refusal.port)
        return self._numbers.get(node.id, NO_NODE) if node is not None else NO_NODE

    def not_served(self) -> None:
        """A client asks for a hash slot that no node has."""
        self._noticed(Reason.CLUSTERDOWN)

    def seems_old(self) -> None:
        """A node knows another topology than this."""
        self._noticed(Reason.MOVED)

    def refused(self, refusal: Refusal, asked: int) -> None:
        """The node `asked` has answered this. A node that MOVED names has the hash slot from now on."""
        if refusal.word == CLUSTERDOWN:
            self._noticed(Reason.CLUSTERDOWN)
        if not refusal.is_redirect:
            return
        target = self.target(refusal, asked)
        if target == NO_NODE:
            self._noticed(Reason.MOVED if refusal.word == MOVED else Reason.ASK)
        elif refusal.word == MOVED and self.owners[refusal.slot] != target:
            self._noticed(Reason.MOVED)
            self.owners[refusal.slot] = target
            self._changed()

    # -- time

    def tick(self) -> None:
        """Call this about once a second."""
        if self.replicas is not None:
            self.replicas.tick()
        for number, one in list(self._nodes.items()):
            one.pools.tick()
            if one.has_left and not any(one.pools.connections()):
                del self._nodes[number]

    def connections(self) -> Iterator[SharedConnection]:
        """All shared connections that are not closed."""
        for one in self:
            yield from one.pools.connections()
        if self.replicas is not None:
            yield from self.replicas.connections()
