"""The Redis that stands behind: how to reach it, and whether it can be reached.

Rule: one place knows the state of the upstream. While it is down, only the prober and one attempt per
back-off step knock at it, however many clients wait; while it seems up, a few at a time do, so that one that
has just gone isn't knocked at by all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket
import ssl
import time
from collections.abc import Callable
from typing import Literal

from keyfence.resp import encode
from keyfence.resp.replies import ReplyError, ReplyFramer

from .own_commands import PING, SELECT

FIRST_BACKOFF = 0.05  # seconds
LONGEST_BACKOFF = 1.0
PROBE_INTERVAL = 1.0
DROPS_IN_A_ROW = 3
ATTEMPTS_AT_ONCE = 16  # to connect for clients; the others wait for their turn, and for what these tell
LONGEST_GREETING = 64 * 1024  # bytes of one reply; that of HELLO is the longest
# What Redis answers while it can be reached but doesn't serve.
_NOT_READY = ("LOADING", "MASTERDOWN")


@dataclasses.dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """Where Redis is. `shown` is for people: never a password in it."""

    kind: Literal["tcp", "tls", "unix"]
    host: str = ""
    port: int = 6379
    path: str = ""
    username: str = ""
    password: str = dataclasses.field(default="", repr=False)
    database: int = 0
    shown: str = ""
    server_name: str = ""  # whom its TLS certificate must name; "": the host

    def login(self) -> list[bytes]:
        """The command that logs keyfence in, if it has credentials."""
        if self.username:
            return [encode.command(b"AUTH", self.username, self.password)]
        return [encode.command(b"AUTH", self.password)] if self.password else []

    def without_login(self) -> UpstreamAddress:
        """The same place for nobody in particular."""
        return dataclasses.replace(self, username="", password="", shown="")

    def greeting(self) -> list[bytes]:
        """The commands that open a connection; each must be answered without an error."""
        select = [SELECT.request(self.database)] if self.database else []
        return self.login() + select

    @property
    def selects_later(self) -> bool:
        """Whether the database can only be selected once the client has logged in, where Redis wants that."""
        return bool(self.database) and not self.login()


class Upstream:
    """One upstream: address, TLS, and its health as the last attempts showed it."""

    def __init__(
        self,
        address: UpstreamAddress,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = 5.0,
        on_change: Callable[[bool], None] = lambda _up: None,
        on_failure: Callable[[], None] = lambda: None,
        on_fault: Callable[[str], None] = lambda _kind: None,
        on_state: Callable[[bool, str], None] = lambda _up, _reason: None,
    ) -> None:
        """`on_change` hears that it is up or down, `on_state` also each new reason.
        `on_fault` is called with what came unasked on a shared connection: `push` or `out_of_step`."""
        self.address = address
        self.connect_timeout = connect_timeout
        self.up: bool | None = None  # None: not tried yet
        self.reason = "not tried yet"
        self.since = time.time()  # when `up` became what it is
        self.connects = 0
        self.failures = 0
        self._tls = tls
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_state = on_state
        self.on_fault = on_fault
        self._backoff = 0.0
        self._retry_at = 0.0
        self._drops = 0  # in a row
        self._trying = False  # to connect, while it is down
        self._turns = asyncio.Semaphore(ATTEMPTS_AT_ONCE)

    def take(self, address: UpstreamAddress, tls: ssl.SSLContext | None) -> None:
        """Open connections with this login and these certificates from now on. The place is the same."""
        self.address = dataclasses.replace(address, shown=self.address.shown)
        self._tls = tls

    @property
    def state(self) -> str:
        """One phrase for clients and operators."""
        where = f"upstream {self.address.shown}"
        return f"{where} is up" if self.up else f"{where} is unreachable: {self.reason}"

    @property
    def must_wait(self) -> bool:
        """Whether another attempt should not be made yet: the last failure is so fresh, or one is under way
        to see whether Redis is back."""
        return self._trying or asyncio.get_running_loop().time() < self._retry_at

    def succeeded(self) -> None:
        self.connects += 1
        self._backoff = self._retry_at = 0.0
        self._drops = 0
        self._set(up=True, reason="")

    def dropped(self, reason: str) -> None:
        """A connection was made and ended before a byte had come back.

        One such may have been killed by an operator. Several in a row are what a balancer without servers or
        a Redis without room for more clients does: then it is a failure.
        """
        self._drops += 1
        if self._drops >= DROPS_IN_A_ROW:
            self.failed(reason)

    def failed(self, reason: str) -> None:
        """An attempt to connect failed. The next ones wait, longer each time, with jitter against herds."""
        self.failures += 1
        self._on_failure()
        self._backoff = min(max(self._backoff * 2, FIRST_BACKOFF), LONGEST_BACKOFF)
        self._retry_at = asyncio.get_running_loop().time() + self._backoff * random.uniform(0.5, 1.0)
        self._set(up=False, reason=reason)

    def _set(self, *, up: bool, reason: str) -> None:
        before = self.up, self.reason
        self.up, self.reason = up, reason
        if before[0] is not up:
            self.since = time.time()
            self._on_change(up)
        if before != (up, reason):
            self._on_state(up, reason)

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection for a client, in its turn. Raises UpstreamDown, after an attempt or for a failure
        that is fresh: also where Redis was found gone while the client waited for its turn."""
        async with self._turns:
            if self.must_wait:
                raise UpstreamDown(self.state)
            try:
                await self.attempt(protocol)
            except OSError as exc:
                self.failed(describe(exc))
                raise UpstreamDown(self.state) from None

    async def attempt(
        self, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection of keyfence's own, whatever is known of the upstream. Raises OSError, as
        TimeoutError and ssl.SSLError are."""
        if self.up is not False:
            return await self._connect(protocol)
        self._trying = True
        try:
            return await self._connect(protocol)
        finally:
            self._trying = False

    async def _connect(
        self, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        loop = asyncio.get_running_loop()
        address = self.address
        async with asyncio.timeout(self.connect_timeout):
            if address.kind == "unix":
                return await loop.create_unix_connection(protocol, address.path)
            name = (address.server_name or address.host) if self._tls is not None else None
            return await loop.create_connection(
                protocol, address.host, address.port, ssl=self._tls, server_hostname=name
            )

    async def probe_forever(self) -> None:
        """Ask Redis for a sign of life each second, so that its state is known without any client."""
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_INTERVAL)

    async def probe(self) -> bool:
        """One connection, greeting and PING. Any reply but an error of the greeting is a sign of life.
        Returns whether there was one."""
        try:
            async with asyncio.timeout(self.connect_timeout):
                probe = await self._ask()
        except OSError as exc:
            self.failed(describe(exc))
            return False
        reason = probe.trouble
        if probe.dropped:
            self.dropped(reason)
        elif reason.startswith(_NOT_READY):
            self._set(up=False, reason=reason)  # clients are let through: Redis tells them itself
        elif reason:
            self.failed(reason)
        elif not self.up:
            self.succeeded()
        return not reason

    async def _ask(self) -> _Probe:
        probe = _Probe(len(self.address.greeting()))
        transport, _ = await self.attempt(lambda: probe)
        try:
            transport.write(b"".join([*self.address.greeting(), PING.request()]))
            await probe.settled
            return probe
        finally:
            transport.abort()


class UpstreamDown(Exception):
    """No connection can be had. `str` is the upstream's `state`."""


class GreetingError(Exception):
    """A connection can't be used: what came is no RESP, or Redis refused one of the commands. `str` says why.

    `refusal` is Redis' own text, or empty; `unanswered` how many commands stood behind the refused one.
    """

    def __init__(self, reason: str, refusal: str = "", unanswered: int = 0) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.unanswered = unanswered


class Greeting:
    """The replies to what a connection is opened with, taken off its head."""

    def __init__(self, expected: int, *, logs_in_later: bool = False) -> None:
        """`logs_in_later`: it is no fault that Redis wants a login first."""
        self.expected = expected
        self._tolerated = b"-NOAUTH" if logs_in_later else None
        self._framer = ReplyFramer()
        self._reply = bytearray()

    def take(self, data: bytes) -> bytes:
        """Consume the greeting's replies; the rest belongs to the connection's user. Raises GreetingError."""
        at = 0
        while self.expected and at < len(data):
            try:
                end = self._framer.advance(data, at, 1)
            except ReplyError as exc:
                raise GreetingError(f"it doesn't speak RESP ({exc})") from None
            if len(self._reply) + end - at > LONGEST_GREETING:
                raise GreetingError("its answer to keyfence's login is too long")
            self._reply += data[at:end]
            at = end
            if self._framer.completed:
                self.expected -= 1
                if self._reply.startswith(b"-") and not self._is_tolerated():
                    refusal = self._reply[1:].decode("utf-8", "replace").strip()
                    raise GreetingError(f"it refused keyfence's login: {refusal}", refusal, self.expected)
                self._reply.clear()
        return data[at:] if at else data

    def _is_tolerated(self) -> bool:
        return self._tolerated is not None and self._reply.startswith(self._tolerated)


class _Probe(asyncio.Protocol):
    """Waits for the answers to greeting and PING. `trouble` is "" for a sign of life, else what is wrong;
    `dropped` says that it is an end before any answer."""

    def __init__(self, greeting: int) -> None:
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.trouble = ""
        self.dropped = False
        self._greeting = Greeting(greeting, logs_in_later=True)

    def data_received(self, data: bytes) -> None:
        try:
            rest = self._greeting.take(data)
        except GreetingError as exc:
            self._settle(str(exc))
            return
        if not self._greeting.expected and rest:
            # NOAUTH and NOPERM are answers too: clients bring their own credentials.
            answer = rest[1:].split(b"\r\n")[0].decode("utf-8", "replace")
            self._settle(answer if answer.startswith(_NOT_READY) else "")

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(describe(exc) if exc else "it closed the connection", dropped=True)

    def _settle(self, trouble: str, *, dropped: bool = False) -> None:
        if not self.settled.done():
            self.trouble, self.dropped = trouble, dropped
            self.settled.set_result(None)


def keep_alive(sock: socket.socket | None) -> None:
    """Have TCP notice a peer that is gone without a word, with the times of Redis' `tcp-keepalive 300`."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # the peer may have closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 300), ("TCP_KEEPINTVL", 100), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def send_with_end(transport: asyncio.BaseTransport) -> None:
    """Have TCP hold back what is written next until the end is sent too (TCP_CORK, tcp(7)).

    Both then reach the peer in one segment: who looks for the end before it sends again finds it.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_CORK"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)


def describe(exc: BaseException) -> str:
    """A connection error in a few words."""
    if isinstance(exc, TimeoutError):
        return "timed out"
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed ({exc.reason or 'handshake'})"
    if isinstance(exc, OSError) and exc.strerror:
        with contextlib.suppress(AttributeError):
            return exc.strerror.lower()
    return str(exc) or type(exc).__name__
