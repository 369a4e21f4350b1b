"""The limits of clients, beyond a single request.

Rule: this is a value; `downstream` enforces it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keyfence.resp.limits import MIB

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
