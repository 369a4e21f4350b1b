"""The listening sockets of a process, and a connection until it becomes a client.

Rule: accepting starts after everything that can fail at the start has succeeded. A connection counts towards
the quotas from its first moment, and accepted connections can finish before the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from keyfence.config.models import ListenerModel
from keyfence.identity.client_facts import Evidence
from keyfence.identity.networks import Network, forwarded, is_trusted
from keyfence.identity.unix_users import UCRED_SIZE, with_unix_peer
from keyfence.net.addresses import Bound, bind
from keyfence.net.proxy_protocol import HeaderError, HeaderReader, Source
from keyfence.resp import encode
from keyfence.session.sentinel.facts import Primary, Sentinel
from keyfence.session.sentinel.session import SentinelSession
from keyfence.telemetry.operator_log import notice
from keyfence.upstream.handshake import keep_alive

from .accepting import Acceptor
from .client import Client, OpensSession
from .context import ServerContext
from .drain import DRAIN_SECONDS, drain
from .idle import interval, look
from .quotas import ConnectionQuota, too_many

HURRY_SECONDS = 0.5  # for connections that are about to become clients when the process ends
ACCEPTS_PER_TURN = 64


class _Refused(Exception):
    """A connection is rejected. `reason` is a metric label, `str` a message for operators."""

    def __init__(self, reason: str, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.reason = reason
        self.answer = answer


class _Arrival:
    """A connection until it is a client. If the body of a `with` fails to make it one, it is closed and
    leaves its quota."""

    __slots__ = ("_refuse", "quota", "sock")

    def __init__(
        self, sock: socket.socket, quota: ConnectionQuota, refuse: Callable[[socket.socket, _Refused], None]
    ) -> None:
        self.sock = sock
        self.quota = quota
        self._refuse = refuse

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> bool:
        if exc is None:
            return False
        if isinstance(exc, _Refused):
            self._refuse(self.sock, exc)
        self.sock.close()
        self.quota.leave()
        return isinstance(exc, _Refused | OSError)  # OSError: it ended before it became a client


def _opened(arrival: _Arrival, opening: Coroutine[Any, Any, Any], _made: object) -> None:
    """Go on with the opening of a transport, after its only wait."""
    with arrival, contextlib.suppress(StopIteration):
        opening.send(None)


class Listeners:
    """The listening sockets of a process."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._listeners: list[_Listener] = []
        self._looking: asyncio.TimerHandle | None = None

    @property
    def bound(self) -> list[tuple[str, str]]:
        """The addresses as written, and their services."""
        return [(one.name, one.service) for one in self._listeners]

    def open(
        self,
        listener: ListenerModel,
        bound: Bound | None = None,
        tls: ssl.SSLContext | None = None,
        primaries: Sequence[Primary] = (),
    ) -> None:
        """Add a listener. Bind its address, unless sockets are `bound` already. With `primaries` it answers
        as a Sentinel that names them. Raises OSError."""
        bound = bound or bind(listener.address, unix_mode=listener.unix_mode)
        one = _Listener(self._context, listener, bound, tls)
        if primaries:
            one.opens = partial(SentinelSession, Sentinel(bound.name, primaries))
        self._listeners.append(one)

    def replace_tls(self, contexts: list[ssl.SSLContext | None]) -> None:
        """Use renewed certificates for new connections: one context per listener, in the order of `open`."""
        for listener, tls in zip(self._listeners, contexts, strict=True):
            listener.tls = tls

    async def start(self) -> None:
        """Accept clients from now on. Raises OSError with the address at fault as its `filename`."""
        for listener in self._listeners:
            try:
                listener.listen()
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, listener.name) from None
        self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self._context.quotas.limits
        look(self._context.clients, limits, loop.time())
        self._context.tick()
        self._looking = loop.call_later(interval(limits), self._look)

    def refuse(self, refuses: bool) -> None:
        """Have connections refused, as if nobody listened, or accept them again."""
        for listener in self._listeners:
            listener.refuse(refuses)

    async def close(self, seconds: float = DRAIN_SECONDS, at_once: asyncio.Event | None = None) -> None:
        """Stop accepting, and close all clients in at most `seconds` (see `drain`)."""
        for listener in self._listeners:
            listener.stop()
        for listener in self._listeners:
            await listener.close(min(seconds, HURRY_SECONDS))
        if self._looking is not None:
            self._looking.cancel()
        await drain(self._context, seconds, at_once)
        self._context.pools.close()


class _Listener:
    """One listening address."""

    def __init__(
        self, context: ServerContext, model: ListenerModel, bound: Bound, tls: ssl.SSLContext | None
    ) -> None:
        self.name = bound.name
        self.service = model.service
        self.tls = tls
        self.opens: OpensSession | None = None  # for clients that do not speak to Redis
        self._context = context
        self._sockets = bound.sockets
        self._acceptor = Acceptor(bound, self._arrived, self._no_room, ACCEPTS_PER_TURN)
        self._unix = bool(model.address.unix_path)
        self._proxied = model.proxy_protocol
        self._trusted: list[Network] = [ipaddress.ip_network(one) for one in model.trusted]
        self._arriving: set[asyncio.Task[None]] = set()

    # -- accepting

    def listen(self) -> None:
        for sock in self._sockets:
            keep_alive(sock)  # each accepted connection inherits it
        self._acceptor.listen()

    def refuse(self, refuses: bool) -> None:
        self._acceptor.refuse(refuses)

    def stop(self) -> None:
        """Stop accepting, and close the sockets."""
        self._acceptor.stop()

    async def close(self, seconds: float) -> None:
        """Give accepted connections `seconds` to become clients, then close the others."""
        await asyncio.sleep(0)  # those that need no wait become clients in this turn
        if self._arriving and seconds:
            await asyncio.wait(self._arriving, timeout=seconds)
        for task in self._arriving:
            task.cancel()
        await asyncio.gather(*self._arriving, return_exceptions=True)

    def _no_room(self, why: str) -> None:
        self._context.telemetry.counters.accept_pauses += 1
        notice("room", f"{self.name} cannot accept: {why}; raise `ulimit -n`, or lower limits.connections")

    def _arrived(self, sock: socket.socket, peer: Any) -> None:
        if why := self._context.quotas.shut:
            answer = b"" if self.tls is not None else encode.error(f"ERR keyfence serves no client: {why}")
            self._refuse(sock, _Refused("stale", why, answer))
            sock.close()
            return
        quota = self._context.quotas.take()
        if quota is None:
            # As in Redis, a connection that would begin with TLS gets no answer.
            answer = b"" if self.tls is not None else too_many()
            text = f"there are {self._context.quotas.limits.connections} connections already"
            self._refuse(sock, _Refused("connections", text, answer))
            sock.close()
            return
        arrival = _Arrival(sock, quota, self._refuse)
        if self.tls is None and not self._proxied:
            self._admit_at_once(arrival, peer)
            return
        task = asyncio.get_running_loop().create_task(self._admit(arrival, peer))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    # -- a connection until it is a client

    def _admit_at_once(self, arrival: _Arrival, peer: Any) -> None:
        """Make a client of a connection that has nothing to wait for. This needs no task."""
        with arrival:
            client = self._client(*self._origin(arrival.sock, peer), arrival.quota)
            opening = asyncio.get_running_loop().connect_accepted_socket(client, arrival.sock)
            # Its only wait is for the client's `connection_made`, in the next turn of the loop.
            opening.send(None).add_done_callback(partial(_opened, arrival, opening))

    async def _admit(self, arrival: _Arrival, peer: Any) -> None:
        deadline = asyncio.get_running_loop().time() + self._context.quotas.limits.handshake
        sock = arrival.sock
        with arrival:
            sock.setblocking(False)
            known, port = self._origin(sock, peer)
            if self._proxied:
                source = await self._proxy_header(sock, known.address, deadline)
                if not source.local:
                    known, port = forwarded(known, source.address), source.port
            await self._serve(sock, deadline, self._client(known, port, arrival.quota))

    def _client(self, known: Evidence, port: int, quota: ConnectionQuota) -> Callable[[], Any]:
        """Makes the client. Raises _Refused if its address has too many connections."""
        if not quota.at(known.address):
            text = f"{known.address} has as many connections as limits.connections_per_address allows"
            raise _Refused("address", text, b"" if self.tls is not None else too_many())
        host = known.address or ("unknown" if self._proxied else "unix")
        return partial(Client, self._context, self.name, known, host, port, quota, self.opens)

    async def _serve(self, sock: socket.socket, deadline: float, client: Any) -> None:
        """Create the client's transport, with TLS if configured. Raises _Refused, OSError."""
        loop = asyncio.get_running_loop()
        if self.tls is None:
            await loop.connect_accepted_socket(client, sock)
            return
        left = max(deadline - loop.time(), 0.001)
        try:
            await loop.connect_accepted_socket(client, sock, ssl=self.tls, ssl_handshake_timeout=left)
        except ssl.SSLError as exc:
            raise _Refused("tls", f"TLS failed: {exc.reason or exc}") from None
        except ConnectionAbortedError:  # both event loops raise it for this alone
            raise _Refused("handshake", "the TLS handshake timed out") from None

    def _origin(self, sock: socket.socket, peer: Any) -> tuple[Evidence, int]:
        """The evidence of a connection's origin, and its port (0: none). Raises OSError."""
        if self._unix:
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED_SIZE)
            return with_unix_peer(Evidence(self.service), credentials), 0
        # Interned, because many clients come from one address.
        return Evidence(self.service, sys.intern(peer[0])), peer[1]

    async def _proxy_header(self, sock: socket.socket, address: str, deadline: float) -> Source:
        loop = asyncio.get_running_loop()
        if not is_trusted(address, self._trusted):
            raise _Refused("untrusted", f"{address} may not send PROXY headers")
        reader = HeaderReader()
        try:
            async with asyncio.timeout_at(deadline):
                while reader.needed:
                    data = await loop.sock_recv(sock, reader.needed)
                    if not data:
                        raise ConnectionError("it ended")  # a check of the port does this
                    reader.feed(data)
        except HeaderError as exc:
            raise _Refused("proxy_header", str(exc)) from None
        except TimeoutError:
            raise _Refused("handshake", "the PROXY header timed out") from None
        assert reader.source is not None
        return reader.source

    def _refuse(self, sock: socket.socket, refused: _Refused) -> None:
        self._context.telemetry.counters.connection_rejected(self.name, refused.reason)
        notice(f"{self.name} {refused.reason}", f"{self.name} turned a connection away: {refused}")
        if refused.answer:
            with contextlib.suppress(OSError):  # it may have ended
                sock.send(refused.answer, socket.MSG_DONTWAIT)
