"""The limits of clients, beyond a single request, and what else the settings say about all clients.

Rule: these are values; `downstream` enforces them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keyfence.resp.limits import IDENTIFIED, MIB, RequestLimits

ANY_SERVICE = "*"


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits of clients. 0 means no limit, except for `connections` and `output`.

    Times are in seconds. Numbers of connections are per process.
    """

    connections: int = 10_000
    per_address: int = 0
    # "*": every service that is not named
    per_service: Mapping[str, int] = dataclasses.field(default_factory=dict)
    output: int = 64 * MIB  # bytes of replies that one client has not read
    handshake: float = 10.0  # from accepting until TLS and the PROXY header are done
    idle: float = 0.0  # without a byte in either direction and without an outstanding reply
    request_time: float = 0.0  # from the first byte of a request until it is complete

    def of_service(self, service: str) -> int:
        return self.per_service.get(service, self.per_service.get(ANY_SERVICE, 0))


@dataclasses.dataclass(frozen=True, slots=True)
class ClientSettings:
    """What the settings say about all clients of a process."""

    requests: RequestLimits = IDENTIFIED
    clients: ClientLimits = ClientLimits()
    # The number of shared upstream connections of one kind; 0: each client has a dedicated one.
    shared_connections: int = 0
    # For how many seconds after a write each service reads from the primary; None: always. `*` is every
    # service that is not named.
    after_write: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    # The commands that each service has sent in parts, before a cluster behind one address; `*` as above.
    splits: Mapping[str, frozenset[bytes]] = dataclasses.field(default_factory=dict)

    def split_for(self, service: str) -> frozenset[bytes]:
        """The commands that are sent in parts for a service."""
        return self.splits.get(service, self.splits.get(ANY_SERVICE, frozenset()))

    def reads_after(self, service: str) -> float | None:
        """How many seconds after a write a service reads from replicas again; None: it never does."""
        return self.after_write.get(service if service in self.after_write else ANY_SERVICE)
