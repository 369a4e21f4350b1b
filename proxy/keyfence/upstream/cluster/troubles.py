"""What can be wrong with a cluster, or with keyfence's addresses for its nodes.

Rule: each trouble has a kind of a closed set, which is a label of a metric, and a text that names the node
and the remedy.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.policy.compiled.hash_slots import SLOTS

from .topology import Node, Topology

NO_TOPOLOGY = "no_topology"  # no node tells it: they are away, or are nodes of no cluster
SLOTS_WITHOUT_NODE = "slots_without_node"
NO_ADDRESS = "no_address"  # a node announces none
UNREACHABLE = "unreachable"  # a node does not answer at the address that it announces
NO_PORT = "no_port"  # all announced ports are used
SHARED_PORT = "shared_port"  # two nodes prefer one
CANNOT_LISTEN = "cannot_listen"  # something else has the port
KINDS = (NO_TOPOLOGY, SLOTS_WITHOUT_NODE, NO_ADDRESS, UNREACHABLE, NO_PORT, SHARED_PORT, CANNOT_LISTEN)


class Trouble(NamedTuple):
    """Something that operators should know."""

    kind: str  # one of KINDS
    text: str


def troubles_of(topology: Topology) -> list[Trouble]:
    """What is wrong with the cluster itself."""
    found = []
    if topology.covered < SLOTS:
        text = f"{SLOTS - topology.covered} hash slots of the cluster have no node, so their keys are away"
        found.append(Trouble(SLOTS_WITHOUT_NODE, f"{text}: see redis-cli --cluster check"))
    found += [_down(one) for one in topology.owners() if one.is_dead]
    found += [_without_address(one) for one in topology.nodes if not one.has_address]
    return found


def _down(node: Node) -> Trouble:
    text = f"{node.shown} is down, and so are its {node.slot_count:,} hash slots of the cluster"
    return Trouble(SLOTS_WITHOUT_NODE, f"{text}: bring it back, or have a replica of it take over")


def _without_address(node: Node) -> Trouble:
    slots = f", which has {node.slot_count} hash slots," if node.slot_count else ""
    text = f"the node {node.id}{slots} has no address, so clients cannot reach it"
    return Trouble(NO_ADDRESS, f"{text}: set its cluster-announce-ip and cluster-announce-port, or forget it")
