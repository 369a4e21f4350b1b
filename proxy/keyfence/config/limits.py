"""What clients may cost, beyond a single request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keyfence.resp.limits import MIB

ANY_SERVICE = "*"


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLimits:
    """What clients may cost beyond a single request. 0 is no limit, but for `connections` and `output`.

    Times are seconds. Numbers of connections are those of one process.
    """

    connections: int = 10_000
    per_address: int = 0
    per_service: Mapping[str, int] = dataclasses.field(default_factory=dict)  # "*": each that isn't named
    output: int = 64 * MIB  # bytes of replies that one client hasn't read
    handshake: float = 10.0  # from accepting until TLS and the PROXY header are done
    idle: float = 0.0  # without a byte in either direction, while nothing is awaited
    request_time: float = 0.0  # from the first byte of a request until it is complete

    def of_service(self, service: str) -> int:
        return self.per_service.get(service, self.per_service.get(ANY_SERVICE, 0))
