"""A master and a replica as operators see them."""

from __future__ import annotations

from keyfence.upstream.cluster.state import NodeState

MASTER = NodeState("a", "10.0.0.1:6379", "master", "", "proxy:7201", up=True, slots=16384)
REPLICA = NodeState("b", "10.0.0.2:6379", "replica", MASTER.node, "proxy:7202", up=True, slots=0)
