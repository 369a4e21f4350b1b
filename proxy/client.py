"""A client's transport, and the flow control between it and its upstream.

Rule: bytes are handed to the session and its output is written, nothing more; whoever can't keep up makes
the other side's reading pause, so that no buffer here grows past its limit.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Protocol, cast

from .policy.judge import Judge
from .relay.identity import Identities
from .relay.session import Session
from .relay.splice import Splice
from .telemetry.telemetry import Telemetry
from .upstream.dedicated import DedicatedLink
from .upstream.target import Upstream, keep_alive
from .wire.limits import RequestLimits

# While a request waits for its connection, so much may come in behind it.
MAX_UNSENT = 1024 * 1024
# How long a client that sends no more may wait for replies, where Redis can't be told that it sends no more.
LINGER_SECONDS = 5.0


class Speaker(Protocol):
    """What `Session` and `Splice` have in common."""

    to_client: list[bytes]
    to_upstream: list[bytes]
    service: str
    closing: str

    @property
    def outstanding(self) -> int: ...
    @property
    def wants_input(self) -> bool: ...
    @property
    def holds_back(self) -> bool: ...
    @property
    def awaits_more(self) -> bool: ...
    def from_client(self, data: bytes) -> None: ...
    def from_upstream(self, data: bytes) -> None: ...
    def upstream_refused(self, reason: str) -> None: ...
    def upstream_lost(self, reason: str) -> None: ...


class Gate:
    """What all clients of a process share."""

    def __init__(
        self,
        judge: Callable[[], Judge] | None,
        identities: Identities,
        upstream: Upstream,
        telemetry: Telemetry,
        limits: RequestLimits,
        max_output: int,
        max_connections: int,
    ) -> None:
        """`judge` None: pass everything unread."""
        self.judge = judge
        self.identities = identities
        self.upstream = upstream
        self.telemetry = telemetry
        self.limits = limits
        self.max_output = max_output
        self.max_connections = max_connections
        self.clients: set[Client] = set()


class Client(asyncio.Protocol):
    """One client's connection, and the link that its requests take."""

    def __init__(self, gate: Gate, listener: str, listener_service: str) -> None:
        self._gate = gate
        self._listener = listener
        self._listener_service = listener_service
        self._counted_as = ""
        self._transport: asyncio.Transport | None = None
        self._session: Speaker = Splice("")
        self._link: DedicatedLink | None = None
        self._upstream_full = False
        self._reading = True
        self._full = False  # the client doesn't read what was written to it
        self._ended = False  # the client has sent its last byte
        self._linger: asyncio.TimerHandle | None = None

    # -- the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's doesn't inherit from it
        gate = self._gate
        self._transport = transport
        if len(gate.clients) >= gate.max_connections:
            gate.telemetry.counters.connection_rejected(self._listener, "connections")
            transport.write(b"-ERR max number of clients reached\r\n")
            transport.close()
            return
        gate.clients.add(self)
        keep_alive(transport)
        host, shown = _peer(transport)
        service = gate.identities.at_connect(host, self._listener_service)
        if gate.judge is None:
            self._session = Splice(service)
        else:
            greeting = gate.upstream.address.greeting()
            self._session = Session(
                gate.judge, gate.identities, service, shown, gate.telemetry, gate.limits, greeting
            )
        self._counted_as = service
        gate.telemetry.counters.connection_opened(service, self._listener)

    def data_received(self, data: bytes) -> None:
        if self not in self._gate.clients:
            return
        self._gate.telemetry.counters.client_in += len(data)
        self._guarded(lambda: self._session.from_client(data))

    def eof_received(self) -> bool:
        """The client sends no more: it has gone, or waits for its last replies."""
        self._ended = True
        if self._link is not None and self._session.awaits_more and not self._session.closing:
            self._pass_end(self._link)
            return True
        self._close("")
        return False

    def _pass_end(self, link: DedicatedLink) -> None:
        """Tell Redis that no more will come, once that is so.

        It knows best what that means: it answers what it has read, but lets nobody who has gone wait in BLPOP
        (and take an element with him).
        """
        if not self._session.holds_back and link.end():
            self._stop_lingering()
        elif self._linger is None:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(LINGER_SECONDS, self._close_at_once, "half_closed")

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._stop_lingering()
        if self in self._gate.clients:
            self._gate.clients.discard(self)
            self._gate.telemetry.counters.connection_closed(self._counted_as, self._listener)
        if self._link is not None:
            self._link.close()
            self._link = None

    def pause_writing(self) -> None:
        """The client doesn't read: stop reading for it from Redis."""
        self._full = True
        if self._link is not None:
            self._link.pause()

    def resume_writing(self) -> None:
        self._full = False
        if self._link is not None:
            self._link.resume()

    # -- the upstream's side

    def upstream_data(self, data: bytes) -> None:
        self._gate.telemetry.counters.upstream_in += len(data)
        self._guarded(lambda: self._session.from_upstream(data))

    def upstream_refused(self, reason: str) -> None:
        self._guarded(lambda: self._session.upstream_refused(reason))

    def upstream_lost(self, reason: str) -> None:
        self._link = None
        if self._ended:
            self._close("")  # Redis was told so, and has ended it
        else:
            self._guarded(lambda: self._session.upstream_lost(reason))

    def upstream_full(self, full: bool) -> None:
        self._upstream_full = full
        self._settle_reading()

    # -- between the two

    def _guarded(self, step: Callable[[], None]) -> None:
        """Let the session take a step, then write what it has to say. Its faults end this client only."""
        try:
            step()
            self._flush()
        except Exception as exc:
            self._gate.telemetry.counters.internal_error("relay")
            report_fault(exc)
            if self._transport is not None:
                self._transport.abort()

    def _flush(self) -> None:
        session, transport = self._session, self._transport
        if transport is None:
            return
        if session.to_client:
            chunks, session.to_client = session.to_client, []
            self._gate.telemetry.counters.client_out += sum(map(len, chunks))
            transport.writelines(chunks)
            if transport.get_write_buffer_size() > self._gate.max_output:
                self._close_at_once("output")
                return
        if session.to_upstream and not session.closing:
            chunks, session.to_upstream = session.to_upstream, []
            self._gate.telemetry.counters.upstream_out += sum(map(len, chunks))
            if self._link is None:
                self._link = DedicatedLink(self._gate.upstream, self)
                if self._full:
                    self._link.pause()
            self._link.send(chunks)
        if session.closing or (self._ended and not session.awaits_more):
            self._close(session.closing)
        elif self._ended and self._link is not None:
            self._pass_end(self._link)
        else:
            self._settle_reading()
        if session.service != self._counted_as and self in self._gate.clients:
            self._gate.telemetry.counters.connection_identified(
                self._counted_as, session.service, self._listener
            )
            self._counted_as = session.service

    def _settle_reading(self) -> None:
        """Read from the client only while its requests can go somewhere."""
        if self._transport is None or self._transport.is_closing():
            return
        waiting = self._link.unsent if self._link is not None else 0
        wanted = self._session.wants_input and not self._upstream_full and waiting < MAX_UNSENT
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _close(self, reason: str) -> None:
        """Close once what was written has reached the client."""
        if self._transport is not None and not self._transport.is_closing():
            if reason:
                self._gate.telemetry.counters.closed_for(reason_label(reason))
            self._transport.close()

    def _close_at_once(self, reason: str) -> None:
        self._gate.telemetry.counters.closed_for(reason)
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Nothing is awaited for this client."""
        return not self._session.outstanding

    def end(self) -> None:
        """The process ends: close now."""
        self._close("shutdown")


def reason_label(reason: str) -> str:
    """A reason for closing as a metric label: from a closed set, whatever the reason's words."""
    for beginning, label in (
        ("QUIT", "quit"),
        ("protocol error", "protocol_error"),
        ("HTTP", "http"),
        ("identity", "identity"),
        ("upstream sent", "upstream_protocol"),
        ("upstream", "upstream_lost"),
        ("shutdown", "shutdown"),
    ):
        if reason.startswith(beginning):
            return label
    return "other"


def _peer(transport: asyncio.Transport) -> tuple[str, str]:
    """The client's IP address ("" for a unix socket), and how to show where it comes from."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "", "unix"
    host = str(peer[0])
    return host, host_port(host, peer[1])


def host_port(host: str, port: int) -> str:
    """An address as people and URLs write it: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_reported = 0


def report_fault(exc: Exception) -> None:
    """Tell the operator of a fault of keyfence's own; the counters tell how many there are."""
    global _reported  # noqa: PLW0603 - one stream, one count
    _reported += 1
    if _reported <= 20:
        import traceback

        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = "".join(traceback.format_exception(exc))
        sys.stderr.write(f"keyfence: {stamp} internal error, please report it:\n{text}")
