"""Which server holds a key: the one Redis, or the master of the key's hash slot.

Rule: each server has two connections: one for the old keys, and one that guards the new ones, because WATCH
belongs to a connection.
"""

from __future__ import annotations

from keyfence.policy.compiled.hash_slots import hash_slot

from .links import Link
from .nodes import Topology


class Router:
    """The connections to the servers of one Redis."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.is_cluster = topology.is_cluster
        self._links: dict[tuple[str, bool], Link] = {}
        self._selected: dict[tuple[str, bool], int] = {}

    def link(self, key: bytes, database: int, *, guard: bool = False) -> Link:
        """The connection for a key, with its database selected. Raises LinkError."""
        name = (self._topology.master_of(key), guard)
        link = self._links.get(name)
        if link is None:
            endpoint = self._topology.at(name[0])
            link = self._links[name] = Link(endpoint)
            self._selected[name] = endpoint.address.database
        if self._selected[name] != database:
            link.one("SELECT", database)
            self._selected[name] = database
        return link

    def may_copy(self, old: bytes, new: bytes) -> bool:
        """Whether one command may name both keys."""
        return not self.is_cluster or hash_slot(old) == hash_slot(new)

    def may_lose(self, old: bytes, new: bytes) -> bool:
        """Whether a failover may lose the new key and not the removal of the old one: their masters differ,
        and that of the new one has replicas."""
        master = self._topology.master_of(new)
        return master != self._topology.master_of(old) and self._topology.has_replicas(master)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
