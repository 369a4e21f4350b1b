"""The addresses that a host name has now.

Rule: an address counts until an answer lacks it. If one comes back soon, the name's answers take turns, as
those of some load balancers do; then an address counts until no answer has had it for a while, or until no
primary answers there: a failover and one back look the same in a name's answers.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Sequence

from keyfence.net.addresses import ip_address
from keyfence.net.host_port import resolving

RETURN_SECONDS = 600.0  # within which an address that comes back shows that answers take turns


class HeldAddresses:
    """Which addresses count, by the answers so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.held: frozenset[str] = frozenset()
        self._answer: frozenset[str] = frozenset()
        self._seen: dict[str, float] = {}  # when an answer had each address last
        self._took_turns: float | None = None  # when an address last came back

    def answered(self, answer: Collection[str]) -> bool:
        """Take in an answer. Returns whether an address has gone that counted before it."""
        now = self._clock()
        self._seen = {one: at for one, at in self._seen.items() if now - at < RETURN_SECONDS}
        if any(one in self._seen and one not in self._answer for one in answer):
            self._took_turns = now
        self._answer = frozenset(answer)
        self._seen.update(dict.fromkeys(answer, now))
        take_turns = self._took_turns is not None and now - self._took_turns < RETURN_SECONDS
        before, self.held = self.held, frozenset(self._seen) if take_turns else self._answer
        return not before <= self.held

    @property
    def absent(self) -> frozenset[str]:
        """Those that count, and that the last answer lacks."""
        return self.held - self._answer

    def leave(self, address: str) -> None:
        """An absent address counts no more, until an answer has it."""
        self._seen.pop(address, None)
        self.held -= {address}


def is_name(host: str) -> bool:
    """Whether a host is a name, which may lead elsewhere later."""
    return bool(host) and ip_address(host) is None


async def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a host, in the resolver's order. Raises OSError."""
    with resolving(host):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def is_at(transport: asyncio.BaseTransport, addresses: Collection[str]) -> bool:
    """Whether a connection leads to one of these addresses."""
    peer: Sequence[object] | None = transport.get_extra_info("peername")
    return bool(peer) and isinstance(peer, tuple) and peer[0] in addresses
