"""Connection quotas: how many connections are allowed in all, from one address, and for one service.

Rule: every connection counts from the moment it is accepted until it is closed.
"""

from __future__ import annotations

from keyfence.config.limits import ClientLimits
from keyfence.resp import encode


class ConnectionQuotas:
    """Counts the connections of a process. New `limits` do not close existing connections."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.shut = ""  # why no connection is allowed at all
        self.taken = 0
        self.of_address: dict[str, int] = {}
        self.of_service: dict[str, int] = {}

    def take(self) -> ConnectionQuota | None:
        """Count a new connection. None if the limit on all connections is reached."""
        if self.taken >= self.limits.connections:
            return None
        self.taken += 1
        return ConnectionQuota(self)


class ConnectionQuota:
    """One connection's share of the quotas."""

    __slots__ = ("_address", "_left", "_quotas", "_service")

    def __init__(self, quotas: ConnectionQuotas) -> None:
        self._quotas = quotas
        self._address = ""
        self._service = ""
        self._left = False

    def at(self, address: str) -> bool:
        """Count the connection for an address ("": none). Returns False if the address has too many."""
        quotas = self._quotas
        limit = quotas.limits.per_address
        if address and limit and quotas.of_address.get(address, 0) >= limit:
            return False
        self._address = _move(quotas.of_address, self._address, address)
        return True

    def serve(self, service: str) -> bool:
        """Count the connection for a service. Returns False, without a change, if the service has too
        many."""
        quotas = self._quotas
        limit = quotas.limits.of_service(service)
        if service != self._service and limit and quotas.of_service.get(service, 0) >= limit:
            return False
        self._service = _move(quotas.of_service, self._service, service)
        return True

    def leave(self) -> None:
        """The connection is closed. Further calls have no effect."""
        if not self._left:
            self._left = True
            self._quotas.taken -= 1
            _move(self._quotas.of_address, self._address, "")
            _move(self._quotas.of_service, self._service, "")


def _move(counts: dict[str, int], before: str, after: str) -> str:
    """Count one less for `before` and one more for `after`. Counts of 0 are removed, so that no table
    grows."""
    if after:
        counts[after] = counts.get(after, 0) + 1
    if before:
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
    return after


def too_many(service: str = "") -> bytes:
    """Redis' error at `maxclients` (networking.c, acceptCommonHandler), with the service whose limit it
    was."""
    return encode.error("ERR max number of clients reached" + (f" for {service}" if service else ""))
