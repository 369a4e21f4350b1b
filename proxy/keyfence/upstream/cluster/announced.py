"""Which address of keyfence stands for which node of a cluster.

Rule: the port of a node follows from the configuration and the ids of the cluster's nodes, and from nothing
else. So all keyfences behind one address give a node the same port, whenever they have started.

A node has the port that the configuration names for its address. Any other node prefers one port: the CRC-32
of its id, modulo the number of ports, is the port's place in the range. An id is random, and a node keeps it
for life, whatever its address. If several nodes prefer one port, the one with the lowest id has it, and each
other one gets the next port of the range that no node prefers or has been given. So a node keeps its
port, whoever joins and leaves, as long as no other node prefers the same one.

How likely it is that at least two nodes prefer one port:

    nodes   of 100 ports   of 1000 ports
        3             3%            0.3%
        6            14%            1.5%
       12            50%            6.4%
       24            96%           24.2%

Only nodes that prefer one port may get another one when a node joins or leaves. Clients find them again as
after any change of the cluster: a keyfence that still has the former port there answers MOVED. To have no
such case, name each node's port in the configuration; a range that is larger makes it rare.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from keyfence.net.host_port import host_port

from .topology import NOT_NAMED, Node, Topology
from .troubles import NO_PORT, SHARED_PORT, Trouble


class AnnounceError(Exception):
    """The configuration gives one port to two nodes. `str` says so, for people."""


class Announced(NamedTuple):
    """An address of keyfence, as clients get it."""

    host: str
    port: int

    @property
    def is_name(self) -> bool:
        """Whether the host is a name. Redis tells names apart from IP addresses."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return True
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Announcement:
    """What the configuration says of the addresses: one host, a range of ports, and the ports of those nodes
    that are named by their address."""

    host: str
    ports: range
    by_address: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: dict[int, tuple[str, int]] = {}
        for address, port in self.by_address.items():
            if port in seen:
                one, other = host_port(*seen[port]), host_port(*address)
                raise AnnounceError(f"{one} and {other} have one port, {port}: give each node its own")
            seen[port] = address

    def port_named_for(self, node: Node) -> int | None:
        """The port that the configuration names for a node, by its IP address or its name."""
        return self.by_address.get(node.address) or self.by_address.get((node.hostname, node.port))


class Ports(NamedTuple):
    """The port of each node, by its id, and what operators should know about them."""

    by_id: Mapping[str, int]
    troubles: tuple[Trouble, ...] = ()


def ports_of(topology: Topology, announcement: Announcement) -> Ports:
    """The ports of a cluster's nodes. A node for which none is left has none."""
    named = {one.id: port for one in topology.nodes if (port := announcement.port_named_for(one)) is not None}
    free = [port for port in announcement.ports if port not in set(announcement.by_address.values())]
    others = [one for one in topology.nodes if one.id not in named]
    if not free:
        return Ports(named, tuple(_left_out(others, announcement)))
    preferred = {one.id: _preferred(one, free) for one in others}
    # Nodes are in order of their ids, so the lowest id comes first.
    first = {port: node_id for node_id, port in reversed(preferred.items())}
    by_id = named | {node_id: port for port, node_id in first.items()}
    troubles: list[Trouble] = []
    left_out: list[Node] = []
    taken = set(by_id.values())
    for node in others:
        if node.id in by_id:
            continue
        port = _next_free(free, preferred[node.id], taken)
        if port is None:
            left_out.append(node)
            continue
        by_id[node.id] = port
        taken.add(port)
        text = (
            f"two nodes prefer port {preferred[node.id]}, so {node.shown} has port {port}, which may change "
            "when a node joins or leaves: name the ports of these nodes, or announce more ports"
        )
        troubles.append(Trouble(SHARED_PORT, text))
    return Ports(by_id, (*troubles, *_left_out(left_out, announcement)))


def _preferred(node: Node, free: list[int]) -> int:
    return free[zlib.crc32(node.id.encode()) % len(free)]


def _next_free(free: list[int], after: int, taken: set[int]) -> int | None:
    start = free.index(after)
    return next((port for port in (*free[start:], *free[:start]) if port not in taken), None)


def _left_out(nodes: list[Node], announcement: Announcement) -> Iterator[Trouble]:
    ports = announcement.ports
    why = f"all {len(ports)} announced ports are used" if ports else "no port is announced for it"
    for node in nodes:
        text = f"the node {node.shown} has no port of keyfence, so clients cannot reach it: {why}"
        yield Trouble(NO_PORT, f"{text}; announce more ports")


class Addresses:
    """The addresses of keyfence for the nodes of one topology."""

    def __init__(self, topology: Topology, host: str, ports: Mapping[str, int]) -> None:
        """`ports`: by the id of the node, those at which keyfence listens."""
        self._topology = topology
        self._by_id = {node_id: Announced(host, port) for node_id, port in ports.items()}

    def of(self, node_id: str) -> Announced | None:
        """The address for a node; None: there is none."""
        return self._by_id.get(node_id)

    def at(self, host: str, port: int, slot: int) -> Announced | None:
        """The address for the node to which a redirect leads. If it names only a port, the node that has the
        hash slot is meant, or else the only node with this port."""
        node = self._topology.node_at(host, port)
        if node is None and host in NOT_NAMED:
            owner = self._topology.owner(slot)
            with_port = [one for one in self._topology.nodes if one.port == port]
            if owner in with_port:
                node = owner
            elif len(with_port) == 1:
                node = with_port[0]
        return self.of(node.id) if node is not None else None
