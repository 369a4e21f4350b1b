"""How a cluster stands, for operators: its nodes, what is wrong with it, and how old this is.

Rule: values only. `keyfence status`, the page, the metrics and the warnings are made from the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from .troubles import KINDS, Trouble


class NodeState(NamedTuple):
    """One node of the topology."""

    id: str
    node: str  # its address
    role: str  # master or replica
    primary: str  # of a replica: the address of the master that it copies; "": it has none
    # keyfence's address for it; "": there is none; None: no node has one (expose: single)
    announced: str | None
    up: bool  # keyfence reaches it; of one without an address here: the cluster holds it for healthy
    slots: int  # the number of its hash slots


class ClusterState(NamedTuple):
    """The whole cluster."""

    nodes: Sequence[NodeState]
    slots: int  # that have a node which is not down
    age: float | None  # seconds since the topology was told last; None: it never was
    troubles: Sequence[Trouble]
    refreshes: Counter[str]  # by reason: how often the topology was asked for

    def reasons(self) -> list[str]:
        """Why no client can be served; empty: some can."""
        if not self.slots:
            return ["no hash slot of the cluster is served"]
        has_addresses = any(one.announced != "" for one in self.nodes if one.slots)
        return [] if has_addresses else ["no master of the cluster has an address of keyfence"]

    @property
    def troubles_by_kind(self) -> dict[str, int]:
        """How many troubles there are of each kind, 0 included."""
        numbers = Counter(one.kind for one in self.troubles)
        return {kind: numbers[kind] for kind in KINDS}

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [one._asdict() for one in self.nodes],
            "slots": self.slots,
            "age": None if self.age is None else round(self.age, 1),
            "troubles": [one._asdict() for one in self.troubles],
            "refreshes": dict(self.refreshes),
        }
