"""How many connections there may be: in all, of one address, of one service.

Rule: whoever holds a connection holds a place, from the moment it is accepted until it is gone, whatever
happens between.
"""

from __future__ import annotations

from keyfence.config.limits import ClientLimits


class ConnectionQuotas:
    """All places of a process. `limits` may be replaced at any time; who has a place keeps it."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.taken = 0
        self.of_address: dict[str, int] = {}
        self.of_service: dict[str, int] = {}

    def take(self) -> ConnectionQuota | None:
        """A place for a connection, or None where there are as many as there may be."""
        if self.taken >= self.limits.connections:
            return None
        self.taken += 1
        return ConnectionQuota(self)


class ConnectionQuota:
    """One connection's place."""

    __slots__ = ("_address", "_left", "_places", "_service")

    def __init__(self, places: ConnectionQuotas) -> None:
        self._places = places
        self._address = ""
        self._service = ""
        self._left = False

    def at(self, address: str) -> bool:
        """The connection comes from this address ("": from none). False: there are too many of it."""
        places = self._places
        limit = places.limits.per_address
        if address and limit and places.of_address.get(address, 0) >= limit:
            return False
        self._address = _move(places.of_address, self._address, address)
        return True

    def serve(self, service: str) -> bool:
        """The connection is this service's from now on. False: it has too many; nothing changes."""
        places = self._places
        limit = places.limits.of_service(service)
        if service != self._service and limit and places.of_service.get(service, 0) >= limit:
            return False
        self._service = _move(places.of_service, self._service, service)
        return True

    def leave(self) -> None:
        """The connection is gone. Again: nothing happens."""
        if not self._left:
            self._left = True
            self._places.taken -= 1
            _move(self._places.of_address, self._address, "")
            _move(self._places.of_service, self._service, "")


def _move(counts: dict[str, int], before: str, after: str) -> str:
    """Count one less of `before` and one more of `after`; rows that reach 0 go, so that no table grows."""
    if after:
        counts[after] = counts.get(after, 0) + 1
    if before:
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
    return after
