"""Which server holds a key: the one Redis, or the master of the key's hash slot.

Rule: each server has two connections: one for the old keys, and one that guards the new ones, because WATCH
belongs to a connection.
"""

from __future__ import annotations

from keyfence.policy.compiled.hash_slots import hash_slot

from .links import Endpoint, Link
from .nodes import SLOT_COUNT, Topology


class Router:
    """The connections to the servers of one Redis."""

    def __init__(self, topology: Topology) -> None:
        self._masters = topology.masters()
        self._slots: list[int] = []
        if topology.is_cluster:
            order = list(dict.fromkeys(one.master for one in topology.slots))
            self._slots = [0] * SLOT_COUNT
            for one in topology.slots:
                for slot in range(one.first, one.last + 1):
                    self._slots[slot] = order.index(one.master)
        self.is_cluster = topology.is_cluster
        self._links: dict[tuple[int, bool], Link] = {}
        self._selected: dict[tuple[int, bool], int] = {}

    def link(self, key: bytes, database: int, *, guard: bool = False) -> Link:
        """The connection for a key, with its database selected. Raises LinkError."""
        name = (self._slots[hash_slot(key)] if self._slots else 0, guard)
        link = self._links.get(name)
        if link is None:
            endpoint: Endpoint = self._masters[name[0]]
            link = self._links[name] = Link(endpoint)
            self._selected[name] = endpoint.address.database
        if self._selected[name] != database:
            link.one("SELECT", database)
            self._selected[name] = database
        return link

    def may_copy(self, old: bytes, new: bytes) -> bool:
        """Whether one command may name both keys."""
        return not self.is_cluster or hash_slot(old) == hash_slot(new)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
