"""How a new connection to Redis begins: keyfence's login, the client's settings, and the replies to them.

Rule: nothing else is sent before Redis has answered each of these commands, or within a time limit. Only
Redis' own error is a refusal; in any other case the connection counts as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from keyfence.resp import encode
from keyfence.resp.replies import ReplyError, ReplyFramer
from keyfence.resp.role import REPLICA, role_in

from .attempt import Attempt

# Every user may send it, and it changes nothing. Its reply has the role.
ASK_ROLE = encode.command(b"HELLO")
LONGEST_GREETING = 64 * 1024  # bytes of one reply; the reply to HELLO is the longest
_SETINFO = b"*4\r\n$6\r\nCLIENT\r\n$7\r\nSETINFO\r\n"


def introduces(request: bytes) -> bool:
    """Whether a request is CLIENT SETINFO, which says only which library a client uses."""
    return request[: len(_SETINFO)].upper() == _SETINFO


class GreetingError(Exception):
    """A connection cannot be used: Redis sent no RESP, or refused one of the commands. `str` says why.

    `refusal` is Redis' own text, or empty. `unanswered` is the number of commands after the refused one.
    `is_first`: it is the first one, which is keyfence's login if there is one.
    """

    def __init__(
        self, reason: str, refusal: str = "", unanswered: int = 0, *, is_first: bool = False
    ) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.unanswered = unanswered
        self.is_first = is_first


class Misplaced(GreetingError):
    """The connection leads to a replica, and a primary is wanted. Nothing was sent on it for a client."""

    def __init__(self) -> None:
        super().__init__("it is a replica, and the Sentinels name it still")


class Greeting:
    """Reads the replies to the greeting, the first commands on a connection."""

    def __init__(
        self, expected: int, *, logs_in_later: bool = False, asks_role: bool = False, introductions: int = 0
    ) -> None:
        """`expected` is the number of replies. `logs_in_later`: accept the error that a login is required.
        `asks_role`: the last reply is that to ASK_ROLE. `introductions`: the number of replies to CLIENT
        SETINFO at the end (before ASK_ROLE's), which a Redis that a script keeps busy refuses."""
        self.expected = expected
        self._is_first = True  # whether the next reply is the first one
        self._tolerated = b"-NOAUTH" if logs_in_later else None
        self._may_be_busy = introductions + asks_role if introductions else 0  # the last replies
        self._asks_role = asks_role
        self._framer = ReplyFramer()
        self._reply = bytearray()

    def take(self, data: bytes) -> bytes:
        """Consume the greeting's replies and return the rest of `data`. Raises GreetingError."""
        at = 0
        while self.expected and at < len(data):
            try:
                end = self._framer.advance(data, at, 1)
            except ReplyError as exc:
                raise GreetingError(f"it does not speak RESP ({exc})") from None
            if len(self._reply) + end - at > LONGEST_GREETING:
                raise GreetingError("its answer to keyfence's login is too long")
            self._reply += data[at:end]
            at = end
            if self._framer.completed:
                self.expected -= 1
                if self._asks_role and not self.expected:
                    self._check_role()
                elif self._reply.startswith(b"-") and not self._is_tolerated():
                    refusal = self._reply[1:].decode("utf-8", "replace").strip()
                    text = f"it refused keyfence's login: {refusal}"
                    raise GreetingError(text, refusal, self.expected, is_first=self._is_first)
                self._is_first = False
                self._reply.clear()
        return data[at:] if at else data

    def _check_role(self) -> None:
        """An error tells nothing: Redis may be too old, or want a login first."""
        if role_in(self._reply) == REPLICA:
            raise Misplaced

    def _is_tolerated(self) -> bool:
        if self.expected < self._may_be_busy and self._reply.startswith(b"-BUSY "):
            return True
        return self._tolerated is not None and self._reply.startswith(self._tolerated)


class Answers(asyncio.Protocol):
    """The replies to requests of keyfence's own that follow a greeting: `raw` becomes their bytes, or raises
    GreetingError."""

    def __init__(self, greeting: int, expected: int, most: int) -> None:
        """`greeting` and `expected` are the numbers of replies: to the greeting, and after it. Those after it
        may have `most` bytes together."""
        self.raw: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # Who waits for it may give up in the turn in which it fails. Then nobody takes the error.
        self.raw.add_done_callback(lambda raw: raw.cancelled() or raw.exception())
        self._greeting = Greeting(greeting)
        self._expected = expected
        self._most = most
        self._framer = ReplyFramer()
        self._collected = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.raw.done():
            return
        try:
            data = self._greeting.take(data)
            if not self._greeting.expected:
                self._collect(data)
        except GreetingError as exc:
            self.raw.set_exception(exc)
        except ReplyError as exc:
            self._fail(f"it does not speak RESP ({exc})")

    def _collect(self, data: bytes) -> None:
        end = self._framer.advance(data, 0, self._expected)
        self._collected += data[:end]
        self._expected -= self._framer.completed
        if len(self._collected) > self._most:
            self._fail(f"its answer is longer than {self._most} bytes")
        elif not self._expected:
            self.raw.set_result(bytes(self._collected))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.raw.done():
            self._fail(describe(exc))

    def _fail(self, reason: str) -> None:
        self.raw.set_exception(GreetingError(reason))


class Host(Protocol):
    """A connection that begins with a handshake."""

    def opened(self) -> None:
        """Redis has accepted all commands, so requests may be sent."""

    def login_failed(self, failure: GreetingError) -> None:
        """The connection cannot be used. It was aborted."""


class Handshake:
    """The beginning of one connection. It is over when Redis has sent a byte and has answered all commands;
    then its host lets go of it."""

    def __init__(self, host: Host, on_first_byte: Callable[[], None]) -> None:
        """`on_first_byte` is called when Redis sends something, which shows that a server answers there; if
        only a primary will do, once Redis has said its role."""
        self._host = host
        self._on_first_byte: Callable[[], None] | None = on_first_byte
        self._greeting: Greeting | None = None  # while replies to the commands are due
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asks_role = False

    def begin(
        self,
        transport: asyncio.Transport,
        commands: Sequence[bytes],
        seconds: float,
        *,
        logs_in_later: bool = False,
        asks_role: bool = False,
    ) -> None:
        """Send the commands, which Redis has to answer within `seconds`. `asks_role`: only a primary will
        do."""
        keep_alive(transport.get_extra_info("socket"))
        self._asks_role = asks_role
        introductions = sum(map(introduces, commands))
        if asks_role:
            commands = [*commands, ASK_ROLE]
        if not commands:
            self._host.opened()
            return
        self._transport = transport
        self._greeting = Greeting(
            len(commands), logs_in_later=logs_in_later, asks_role=asks_role, introductions=introductions
        )
        transport.writelines(commands)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._fail, GreetingError("login timed out"))

    @property
    def is_logging_in(self) -> bool:
        """Whether replies to the commands are due."""
        return self._greeting is not None

    def take(self, data: bytes) -> bytes:
        """Read what Redis has sent, and return what follows the replies to the commands."""
        if not self._asks_role:
            self._is_answered()
        greeting = self._greeting
        if greeting is None:
            return data
        try:
            rest = greeting.take(data)
        except GreetingError as exc:
            self._fail(exc)
            return b""
        if not greeting.expected:
            self._is_answered()
            self.stop()
            self._host.opened()
        return rest

    def _is_answered(self) -> None:
        if self._on_first_byte is not None:
            on_first_byte, self._on_first_byte = self._on_first_byte, None
            on_first_byte()

    def cut_short(self, exc: Exception | None) -> bool:
        """The connection has ended. Returns whether the login has failed by that."""
        if not self.is_logging_in:
            return False
        self._fail(GreetingError(describe(exc) if exc else f"{describe(exc)} during login"))
        return True

    def _fail(self, failure: GreetingError) -> None:
        self.stop()
        assert self._transport is not None
        self._transport.abort()
        self._host.login_failed(failure)

    def stop(self) -> None:
        """Wait no longer."""
        self._greeting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def give_up(
    attempt: Attempt | None, handshake: Handshake | None, transport: asyncio.Transport | None
) -> None:
    """End the attempt to open a connection, however far it has come."""
    if attempt is not None:
        attempt.give_up()
    if handshake is not None:
        handshake.stop()
    if transport is not None:
        transport.abort()


def keep_alive(sock: socket.socket | None) -> None:
    """Have TCP detect a peer that has vanished, with the times of Redis' `tcp-keepalive 300`."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # the peer may have closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 300), ("TCP_KEEPINTVL", 100), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def describe(exc: BaseException | None) -> str:
    """Why a connection ended, in a few words; None: the other side closed it."""
    if exc is None:
        return "it closed the connection"
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
