"""A model of a Sentinel: it names a primary, late or wrongly at times, and tells of failovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from tests.simulation.dataset import array, bulk
from tests.simulation.network import End, Network

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 26379
NAME = "main"
_SWITCHED = b"+switch-master"


class Named(NamedTuple):
    """The primary that a Sentinel names, and by which failover."""

    address: str
    port: int
    epoch: int


class Sentinel:
    """One Sentinel."""

    def __init__(self, number: int, network: Network, named: Named) -> None:
        self.name = f"sentinel-{number}"
        self.named = named
        self.informed_at = 0.0  # when it learned of the last failover
        self.host = network.host(self.name, f"10.0.1.{number}")
        self.connections: dict[_Connection, None] = {}
        self._network = network
        self.listen()

    def listen(self) -> None:
        self._network.listen(self.host.address, PORT, lambda: _Connection(self))

    def learn(self, named: Named) -> None:
        """Another node is the primary. Tell everybody who listens."""
        if named.epoch <= self.named.epoch or self.host.is_silent:
            return
        before, self.named = self.named, named
        self.informed_at = self._network.loop.now
        text = f"{NAME} {before.address} {before.port} {named.address} {named.port}"
        for one in list(self.connections):
            one.published(text.encode())

    def kill(self) -> None:
        self.connections.clear()
        self._network.kill(self.host)


class _Connection:
    """One connection to a Sentinel (an `asyncio.Protocol`)."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._reader = hiredis.Reader()
        self._is_subscribed = False
        self._end: End

    def connection_made(self, end: End) -> None:
        self._end = end
        self._sentinel.connections[self] = None

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (argv := self._reader.gets()) is not False:
            self._end.write(self._answer(argv))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _exc: Exception | None) -> None:
        self._sentinel.connections.pop(self, None)

    def pause_writing(self) -> None:
        """It lets its output grow."""

    def resume_writing(self) -> None:
        """It lets its output grow."""

    def _answer(self, argv: Sequence[bytes]) -> bytes:
        if argv[0] == b"SUBSCRIBE":
            self._is_subscribed = True
            return array([bulk(b"subscribe"), bulk(argv[1]), b":1\r\n"])
        if argv[0] == b"PING":
            return array([bulk(b"pong"), bulk(b"")]) if self._is_subscribed else b"+PONG\r\n"
        named = self._sentinel.named
        fields: dict[str, Any] = {
            "name": NAME,
            "ip": named.address,
            "port": named.port,
            "config-epoch": named.epoch,
        }
        return array([bulk(str(word).encode()) for pair in fields.items() for word in pair])

    def published(self, text: bytes) -> None:
        if self._is_subscribed and not self._end.is_closing():
            self._end.write(array([bulk(b"message"), bulk(_SWITCHED), bulk(text)]))
