"""A client's connection as the checks use it: requests out, and each reply as the bytes that came.

Rule: nothing here waits longer than the connection's deadline, whatever the other end does.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import hiredis

from keyfence.resp import encode
from keyfence.resp.replies import ReplyError, ReplyFramer

Word = str | bytes | int
OK = b"+OK\r\n"
PONG = b"+PONG\r\n"
QUEUED = b"+QUEUED\r\n"
NIL = b"$-1\r\n"
NIL_ARRAY = b"*-1\r\n"
EMPTY = b"*0\r\n"
_CHUNK = 1 << 20


class Address(NamedTuple):
    """Where a server listens, and the login that it wants."""

    host: str
    port: int
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def login(self) -> bytes:
        """The request that logs in; empty without a password."""
        words = (self.user, self.password) if self.user else (self.password,)
        return encode.command("AUTH", *words) if self.password else b""


class Silence(Exception):
    """Nothing came in time; the text says after what."""


class Ended(Exception):
    """The other end closed the connection, or sent what is no reply; the text says after what."""


class Connection:
    """One connection. `ends_at` is the deadline, by `time.monotonic`, of all that is done with it."""

    def __init__(self, address: Address, ends_at: float) -> None:
        self._ends_at = ends_at
        self._sock = socket.create_connection(address[:2], timeout=max(0.1, ends_at - time.monotonic()))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setblocking(False)
        self._data = b""  # received last
        self._at = 0  # how much of it has been read as replies
        self._frame = bytearray()  # the beginning of the next reply
        self._framer = ReplyFramer()
        self._unsent = memoryview(b"")
        self._asked = "connecting"
        if address.login:
            (came,) = self.exchange(address.login, 1)
            if came != OK:
                raise Ended(f"AUTH was answered by {shown(came)}")

    def close(self) -> None:
        self._sock.close()

    def send(self, *words: Word) -> None:
        """Sends a request, without a look at replies."""
        self.send_bytes(encode.command(*words))

    def send_bytes(self, data: bytes) -> None:
        self._begin(data)
        while self._unsent:
            self._move(reading=False)

    def half_close(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def ask(self, *words: Word) -> bytes:
        """Sends a request and returns its reply."""
        return self.exchange(encode.command(*words), 1)[0]

    def pipeline(self, commands: Iterable[Sequence[Word]]) -> list[bytes]:
        """Sends requests in one piece and returns their replies. Reads while it sends."""
        requests = [encode.command(*words) for words in commands]
        return self.exchange(b"".join(requests), len(requests))

    def exchange(self, data: bytes, replies: int) -> list[bytes]:
        self._begin(data)
        came = self.replies(replies)
        while self._unsent:
            self._move(reading=False)
        return came

    def reply(self) -> bytes:
        """Returns the next reply or push."""
        while True:
            if self._at < len(self._data) and (frame := self._take()):
                return frame
            self._move(reading=True)

    def replies(self, count: int) -> list[bytes]:
        """Returns the next replies. Raises Silence or Ended with the number of those that came."""
        came: list[bytes] = []
        try:
            while len(came) < count:
                came.append(self.reply())
        except (Silence, Ended) as why:
            if came:
                raise type(why)(f"{len(came)} of {count} replies, then {why}") from None
            raise
        return came

    def rest(self) -> bytes:
        """Returns everything up to the connection's end. Raises Silence if it does not end."""
        while True:
            try:
                self._move(reading=True)
            except Ended:
                return self._unread()

    def nothing_for(self, seconds: float) -> bytes:
        """Waits this long. Returns what came meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            if poll.poll(left * 1000):
                self._move(reading=True)
        return self._unread()

    def _unread(self) -> bytes:
        return bytes(self._frame) + self._data[self._at :]

    def _begin(self, data: bytes) -> None:
        assert not self._unsent
        self._unsent = memoryview(data)
        if data:
            self._asked = (
                "AUTH" if data.startswith(b"*") and b"\r\nAUTH\r\n" in data[:20] else shown(data[:60])
            )

    def _take(self) -> bytes:
        """Returns the next reply, if all of it has come."""
        try:
            end = self._framer.advance(self._data, self._at, 1, stop_after_push=True)
        except ReplyError as error:
            raise Ended(f"what came is no reply ({error}): {shown(self._unread())}") from None
        self._frame += self._data[self._at : end]
        self._at = end
        if not self._framer.at_boundary:
            return b""
        frame = bytes(self._frame)
        self._frame.clear()
        return frame

    def _move(self, *, reading: bool) -> None:
        """Waits until bytes can be sent or received, and does so."""
        left = self._ends_at - time.monotonic()
        events = (select.POLLIN if reading else 0) | (select.POLLOUT if self._unsent else 0)
        try:
            poll = select.poll()
            poll.register(self._sock, events)
            ready = poll.poll(left * 1000) if left > 0 else []
            if not ready:
                raise Silence(f"nothing more in time, after {self._asked}")
            if self._unsent and ready[0][1] & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                self._unsent = self._unsent[self._sock.send(self._unsent[:_CHUNK]) :]
            if reading and ready[0][1] & (select.POLLIN | select.POLLERR | select.POLLHUP):
                data = self._sock.recv(_CHUNK)
                if not data:
                    raise ConnectionError
                self._data = self._data[self._at :] + data
                self._at = 0
        except BlockingIOError:
            return
        except (OSError, ValueError):  # ValueError: closed by the runner, because its time is over
            self._unsent = memoryview(b"")
            raise Ended(f"the end of the connection, after {self._asked}") from None


def bulk(text: Word) -> bytes:
    data = b"%d" % text if isinstance(text, int) else text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%b\r\n" % (len(data), data)


def integer(number: int) -> bytes:
    return b":%d\r\n" % number


def array(*replies: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(replies), b"".join(replies))


def push(*replies: bytes) -> bytes:
    return b">%d\r\n%b" % (len(replies), b"".join(replies))


def bulks(*texts: Word) -> bytes:
    return array(*map(bulk, texts))


def value(frame: bytes) -> Any:
    """Returns what a reply says as Python's values; an error as an exception."""
    reader = hiredis.Reader()
    reader.feed(frame)
    return reader.gets()


def shown(data: bytes, most: int = 160) -> str:
    """Returns bytes for people: on one line, and not all of many."""
    text = data[:most].decode("utf-8", "backslashreplace").replace("\r\n", "\\r\\n")
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return f"{text} … ({len(data)} bytes)" if len(data) > most else text
