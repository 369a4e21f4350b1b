"""The listeners of a cluster's nodes, which the parent of the workers binds, and each worker serves.

Rule: the parent alone follows the cluster. An order has the whole topology and says which nodes have a
listener, and each worker has its own socket of each. So a worker announces no port before it listens there
itself, and all workers announce the same ports. A socket stays open in the parent as long as its node has it,
so the successor of a worker gets the connections that wait in its queue.

Sockets of nodes that join while a worker runs are sent to it (SCM_RIGHTS, unix(7)) just before the order that
names them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from keyfence.net.addresses import Address, Bound, bind
from keyfence.process.serving.topology_follower import Doors
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.cluster.topology import Node, Topology

MAX_SENT = 250  # descriptors in one message; Linux takes 253 (SCM_MAX_FD)
SIGN_SECONDS = 0.02  # in which signs of a worker come together

_REASONS = frozenset(Reason)


class NodeListener(NamedTuple):
    """The listener of one node, as a worker is told."""

    node_id: str
    number: int  # of this listener; the parent gives no number twice
    name: str
    sockets: int  # their number: one for each family of the address


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of the cluster, and those that have a listener. Of the `fresh` ones the worker gets the
    sockets, in this order."""

    nodes: tuple[Node, ...] = ()
    listeners: tuple[NodeListener, ...] = ()
    fresh: tuple[int, ...] = ()
    inherited: tuple[int, ...] = ()  # the descriptors of the fresh ones, if it starts with them


NO_NODES = Nodes()  # before a Redis that is no cluster


class _Shared(NamedTuple):
    """A node's listener: one Bound for each worker."""

    number: int
    places: list[Bound]


class NodeDoors(Doors):
    """The nodes' listeners, in the parent, which serves none itself."""

    def __init__(self, places: int) -> None:
        """`places`: the number of workers."""
        self.publish: Callable[[], None] = lambda: None  # called after each change
        self._count = places
        self._shared: dict[str, _Shared] = {}  # by the node's id
        self._nodes: tuple[Node, ...] = ()
        self._numbers = itertools.count(1)
        self._told: tuple[tuple[Node, ...], tuple[int, ...]] = ((), ())
        self._had: set[Address] = set()

    def open(self, node_id: str, where: Address) -> Sequence[Bound]:
        if where not in self._had:
            # Without sharing this fails if another process has the port, even one that shares it.
            bind(where).close()
        places: list[Bound] = []
        try:
            for _ in range(self._count):
                places.append(bind(where, reuse_port=True))
        except OSError:
            for bound in places:
                bound.close()
            raise
        self._had.add(where)
        self._shared[node_id] = _Shared(next(self._numbers), places)
        return ()

    def close(self, node_id: str) -> None:
        shared = self._shared.pop(node_id, None)
        for bound in shared.places if shared is not None else ():
            bound.close()

    def close_all(self) -> None:
        for node_id in list(self._shared):
            self.close(node_id)

    def told(self, topology: Topology) -> None:
        numbers = tuple(one.number for one in self._shared.values())
        self._nodes = topology.nodes
        if self._told != (self._nodes, numbers):
            self._told = self._nodes, numbers
            self.publish()

    def order_for(self, place: int, known: Iterable[int]) -> tuple[Nodes, list[int]]:
        """The order for the worker of a place, which has the sockets of the `known` listeners, and the
        descriptors of the others."""
        had = set(known)
        listeners = tuple(
            NodeListener(node_id, one.number, one.places[place].name, len(one.places[place].sockets))
            for node_id, one in self._shared.items()
        )
        fresh = [one for one in self._shared.values() if one.number not in had]
        descriptors = [sock.fileno() for one in fresh for sock in one.places[place].sockets]
        return Nodes(self._nodes, listeners, tuple(one.number for one in fresh)), descriptors


def send_descriptors(sock: socket.socket, descriptors: Sequence[int]) -> None:
    """Send descriptors to a worker. Raises OSError, also if it does not take them."""
    for begin in range(0, len(descriptors), MAX_SENT):
        socket.send_fds(sock, [b"."], descriptors[begin : begin + MAX_SENT])


def _received(sock: socket.socket, count: int) -> list[int]:
    """The next descriptors that the parent has sent. Raises OSError."""
    found: list[int] = []
    while len(found) < count:
        data, descriptors, _, _ = socket.recv_fds(sock, 1, MAX_SENT)
        if not data or not descriptors:
            raise OSError(errno.ECONNRESET, "the parent has sent too few sockets")
        found += descriptors
    return found


class GivenDoors(Doors):
    """The nodes' listeners, in a worker."""

    def __init__(self, handed: socket.socket) -> None:
        """`handed`: where the parent's descriptors come from."""
        self._handed = handed
        self._given: dict[str, Bound] = {}  # by the node's id; those that are not open yet

    def take(self, order: Nodes) -> tuple[Topology, list[str]]:
        """The topology of an order, and the ids of the nodes that have a listener. Raises OSError."""
        fresh = [one for one in order.listeners if one.number in set(order.fresh)]
        count = sum(one.sockets for one in fresh)
        descriptors = iter(order.inherited or _received(self._handed, count))
        for one in fresh:
            sockets = [socket.socket(fileno=next(descriptors)) for _ in range(one.sockets)]
            former = self._given.pop(one.node_id, None)
            if former is not None:
                former.close()
            self._given[one.node_id] = Bound(one.name, sockets)
        return Topology(order.nodes), [one.node_id for one in order.listeners]

    def open(self, node_id: str, _where: Address) -> Sequence[Bound]:
        bound = self._given.pop(node_id, None)
        if bound is None:
            raise OSError(errno.EADDRNOTAVAIL, "the parent cannot listen there")
        return [bound]

    def close(self, node_id: str) -> None:
        pass  # the listener has closed its sockets; others may be there already, for another port

    def told(self, topology: Topology) -> None:
        pass


class Signs:
    """What a worker notices of the cluster, for its parent. Signs that come together are one message."""

    def __init__(self, send: Callable[[dict[str, object]], None]) -> None:
        self._send = send
        self._waiting: set[Reason] = set()

    def noticed(self, reason: Reason) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(SIGN_SECONDS, self._tell)
        self._waiting.add(reason)

    def _tell(self) -> None:
        signs, self._waiting = sorted(self._waiting), set()
        self._send({"signs": signs})


def signs_in(message: object) -> list[Reason]:
    """The signs in a worker's message. A worker faces the network, so it is not trusted."""
    known = message if isinstance(message, list) else ()
    return [Reason(one) for one in known if isinstance(one, str) and one in _REASONS]
