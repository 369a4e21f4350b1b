"""The listening sockets of a process, and their end.

Rule: nothing is accepted before everything that can fail at start has succeeded, and what was accepted is let
finish before the process goes.
"""

from __future__ import annotations

import asyncio

from .client import Client, Gate, host_port

BACKLOG = 511  # as Redis' tcp-backlog
DRAIN_SECONDS = 5.0


class Listeners:
    """The listening sockets of a process."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._servers: list[asyncio.Server] = []
        self.bound: list[tuple[str, str]] = []  # (address as host:port, service)

    async def open(self, host: str, port: int, service: str) -> None:
        """Listen on an address. Port 0 picks one. Raises OSError."""
        loop = asyncio.get_running_loop()
        name = host_port(host, port)
        server = await loop.create_server(
            lambda: Client(self._gate, name, service),
            host or None,
            port,
            backlog=BACKLOG,
            start_serving=False,
        )
        if port == 0:
            port = server.sockets[0].getsockname()[1]
            name = host_port(host, port)
        self._servers.append(server)
        self.bound.append((name, service))

    async def start(self) -> None:
        for server in self._servers:
            await server.start_serving()

    async def close(self, drain: float = DRAIN_SECONDS) -> None:
        """Stop accepting, let outstanding requests end for so many seconds, then close every client."""
        for server in self._servers:
            server.close()
        deadline = asyncio.get_running_loop().time() + drain
        while self._gate.clients:
            for client in [client for client in self._gate.clients if client.is_idle]:
                client.end()
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.01)
        for client in list(self._gate.clients):
            client.end()
        await asyncio.sleep(0)
