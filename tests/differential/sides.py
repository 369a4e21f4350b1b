"""Two sides of one Redis, direct and through keyfence, and the playing of a session on each.

Rule: a step ends when all its effects have happened, on every connection. The harness finds that out by
asking the servers, never by waiting. So the steps of a session have one order on both sides.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from keyfence.resp import encode
from keyfence.resp.replies import ReplyError, ReplyFramer
from tests.differential.differences import HELLO_ID, Difference, masked
from tests.servers import PATIENCE_SECONDS

# A command of wrong arity: no server runs it, so MONITOR, statistics and logs do not show it.
_ASK = encode.command("ECHO")
# Through keyfence a reply counts as missing after this number of silences of this length in a row, while the
# servers have answered others.
_SILENT_TURNS = 3
_SILENCE_SECONDS = 0.7


class Id(str):
    """In a command: the id of the connection named so."""


class Step(NamedTuple):
    """The bytes that one connection sends, in pieces, and the expectations about the replies."""

    on: str
    words: tuple[bytes | tuple[str | bytes | int, ...], ...]
    ignoring: tuple[Difference, ...] = ()
    replies: int = 0  # the least number of replies, at once or later
    silent: bool = False  # the requests after the last reply have none, and must be finished too
    pieces: tuple[int, ...] = ()  # sizes of the pieces; the rest is sent as one
    closes: bool = False  # the client closes its connection instead
    half_closes: bool = False  # the client closes its side after the bytes

    def __str__(self) -> str:
        shown = " ".join(
            repr(one) if isinstance(one, bytes) else " ".join(map(str, one)) for one in self.words
        )
        return f"{self.on}: {shown[:600]}"


# Lines of MONITOR for keyfence's own commands: its probe's PING and HELLO in database 0, and barriers
# (`resp.barrier`).
_KEYFENCES_OWN = re.compile(
    rb'\+[0-9.]+ \[(?:0 [^\]]*\] (?:"PING"|"HELLO" "2")'
    rb'|\d+ [^\]]*\] "(?:ECHO|HELLO" "2|PING)" "[0-9a-f]{32}")\r\n'
)

Heard = dict[str, tuple[bytes, bool]]  # connection → the bytes of one step, and whether the connection ended


class Peer:
    """One connection of a session."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.data = bytearray()  # of this step
        self.frames = 0  # of this step
        self.ended = False
        self.id = 0
        self._boundary = 0  # where the frame begins in `data` that is coming in
        self._lost = False  # the received bytes are not replies
        self._framer = ReplyFramer()
        self._unsent = memoryview(b"")

    def has_come(self, size: int, frames: int) -> bool:
        """Returns whether this many replies have come, or this many bytes if replies cannot be counted."""
        if self._lost or frames < 0:
            return len(self.data) >= size
        return self.frames >= frames and self._framer.at_boundary

    @property
    def busy(self) -> bool:
        """Returns whether bytes are unsent, or sent and unread by the other end (on a unix socket)."""
        if self.ended:
            return False
        if self._unsent:
            return True
        if self.sock.family != socket.AF_UNIX:
            return False
        return struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0" * 4))[0] > 0

    def send(self, data: bytes) -> None:
        if not self.ended:
            assert not self._unsent
            self._unsent = memoryview(data)

    def pump(self, timeout: float = 0) -> bool:
        """Sends and receives as much as possible without waiting. Returns whether anything moved."""
        moved = False
        if self._unsent and not self.ended:
            try:
                sent = self.sock.send(self._unsent)
                self._unsent = self._unsent[sent:]
                moved = sent > 0
            except BlockingIOError:
                pass
            except OSError:
                self._unsent = memoryview(b"")  # the reading will find out
        while not self.ended:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            moved = True
            if data:
                self._take(data)
            else:
                self.ended = True
                self._unsent = memoryview(b"")
        if not moved and timeout and not self.ended:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(timeout * 1000)
        return moved

    def _take(self, data: bytes) -> None:
        if self._lost:
            self.data += data
            return
        try:
            at = 0
            while at < len(data):
                end = self._framer.advance(data, at, 1, stop_after_push=True)
                self.data += data[at:end]
                at = end
                if self._framer.at_boundary:
                    self._end_frame()
        except ReplyError:
            self.data += data[at:]
            self._lost = True

    def _end_frame(self) -> None:
        if _KEYFENCES_OWN.fullmatch(self.data, self._boundary):
            del self.data[self._boundary :]
        else:
            self.frames += 1
        self._boundary = len(self.data)

    def heard(self) -> tuple[bytes, bool]:
        """Returns the bytes received since the last call."""
        data = bytes(self.data)
        self.data.clear()
        self.frames = self._boundary = 0
        self._lost = False
        self._framer = ReplyFramer()
        return data, self.ended


class Asker:
    """A connection that finds out whether a server has processed everything before."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_SECONDS)
        self._sock = sock

    def ask(self) -> None:
        self._sock.sendall(_ASK)
        reply = b""
        while not reply.endswith(b"\n"):
            more = self._sock.recv(4096)
            assert more, f"closed after {reply!r}"
            reply += more
        assert reply.startswith(b"-"), reply

    def close(self) -> None:
        self._sock.close()


Connect = Callable[[], socket.socket]


class Side:
    """One side: a way to Redis.

    `connect` opens a client's connection. `ask` opens connections that find out whether the servers on this
    side, in their order, have processed everything sent.
    """

    def __init__(self, connect: Connect, ask: Sequence[Connect]) -> None:
        self._connect = connect
        self._askers = [Asker(one()) for one in ask]
        self.peers: dict[str, Peer] = {}

    def close(self) -> None:
        self.end_session()
        for asker in self._askers:
            asker.close()

    def end_session(self) -> None:
        for peer in self.peers.values():
            peer.sock.close()
        self.peers.clear()

    def pump(self) -> bool:
        return sum(peer.pump() for peer in self.peers.values()) > 0

    def settle(self) -> bool:
        """Returns when the servers have processed everything sent, and all its effects have arrived.

        The result says whether anything arrived meanwhile.
        """
        came = False
        while True:
            moved = self.pump()
            # Send before asking the servers: they may answer later input after the question.
            busy = any(peer.busy for peer in self.peers.values())
            for asker in self._askers * 2:
                asker.ask()
                asker.ask()
            moved |= self.pump()
            came |= moved
            if not moved and not busy:
                return came

    def play(self, steps: Sequence[Step], resp: int, expected: Sequence[Heard] = ()) -> list[Heard]:
        """Plays a session. Returns the replies of each step.

        With `expected`, a step ends once as many replies have come, or none come any more. The session ends
        with the first step whose replies are not the expected ones.
        """
        self._open(steps, resp)
        heard: list[Heard] = []
        for number, step in enumerate(steps):
            hope = expected[number] if expected else None
            self._begin(step)
            if hope is None:
                self._await(
                    lambda step=step: self.peers[step.on].frames >= step.replies or self.peers[step.on].ended
                )
                self.settle()
            else:
                self._await_as(step, hope)
            heard.append({name: peer.heard() for name, peer in self.peers.items()})
            if hope is not None and not alike(step, hope, heard[-1]):
                break
        return heard

    def _open(self, steps: Sequence[Step], resp: int) -> None:
        asked = {
            word
            for step in steps
            for words in step.words
            if isinstance(words, tuple)
            for word in words
            if isinstance(word, Id)
        }
        for name in sorted({step.on for step in steps} | asked):
            peer = self.peers[name] = Peer(self._connect())
            if resp == 3:
                self._exchange(peer, encode.command("HELLO", 3))
            if name in asked:
                peer.id = int(self._exchange(peer, encode.command("CLIENT", "ID")).strip(b":\r\n"))

    def _exchange(self, peer: Peer, request: bytes) -> bytes:
        peer.send(request)
        self._await(lambda: peer.frames >= 1)
        return peer.heard()[0]

    def _begin(self, step: Step) -> None:
        peer = self.peers[step.on]
        if step.closes:
            peer.sock.shutdown(socket.SHUT_RDWR)
            peer.sock.close()
            peer.ended = True
            return
        data = b"".join(one if isinstance(one, bytes) else self._command(one) for one in step.words)
        at = 0
        for size in step.pieces:
            peer.send(data[at : at + size])
            at += size
            self._await(lambda: not peer.busy or peer.ended)
            self._askers[0].ask()  # so that it is read before the next piece comes
        peer.send(data[at:])
        peer.pump()
        if step.half_closes:
            self._await(lambda: not peer.busy or peer.ended)
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_WR)

    def _command(self, words: Sequence[str | bytes | int]) -> bytes:
        return encode.command(*(self.peers[word].id if isinstance(word, Id) else word for word in words))

    def _await(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, f"waited in vain; came: {self._shown()}"
            if not self.pump():
                self._wait_a_little()

    def _wait_a_little(self) -> None:
        poll = select.poll()
        for peer in self.peers.values():
            if not peer.ended:
                poll.register(peer.sock, select.POLLIN | (select.POLLOUT if peer._unsent else 0))
        poll.poll(50)

    def _await_as(self, step: Step, hope: Heard) -> None:
        """Waits for as much as came on the other side. After a silence, the rest counts as missing."""
        wanted = [
            (self.peers[name], len(data), count_frames(data), ended) for name, (data, ended) in hope.items()
        ]
        heard_last = time.monotonic()
        turns = 0
        while not all(one.ended if ended else one.has_come(*size) for one, *size, ended in wanted):
            if self.pump():
                heard_last = time.monotonic()
                turns = 0
            elif time.monotonic() - heard_last < _SILENCE_SECONDS:
                self._wait_a_little()
            elif turns == _SILENT_TURNS:
                return
            else:
                turns = 0 if self.settle() else turns + 1
                heard_last = time.monotonic()
        if step.silent or not hope[step.on][0]:
            self.settle()

    def _shown(self) -> str:
        return ", ".join(f"{name} {bytes(peer.data[-200:])!r}" for name, peer in self.peers.items())


def count_frames(data: bytes) -> int:
    """Returns the number of complete replies and pushes in the data; -1 if it is not RESP."""
    framer = ReplyFramer()
    frames = at = 0
    try:
        while at < len(data):
            at = framer.advance(data, at, 1, stop_after_push=True)
            frames += framer.at_boundary
    except ReplyError:
        return -1
    return frames if framer.at_boundary else -1


def alike(step: Step, one: Heard, other: Heard) -> bool:
    """Returns whether a step has the same replies on both sides, apart from the ignored differences."""
    return _comparable(step, one) == _comparable(step, other)


def _comparable(step: Step, heard: Heard) -> Heard:
    ignoring = (*step.ignoring, HELLO_ID)
    return {name: (masked(data, ignoring), ended) for name, (data, ended) in heard.items()}


def first_difference(
    steps: Sequence[Step], direct: Sequence[Heard], through: Sequence[Heard]
) -> Iterator[str]:
    """Yields the lines of a report on the first step with different replies; nothing if there is none."""
    for number, (step, one, other) in enumerate(zip(steps, direct, through, strict=False)):
        if alike(step, one, other):
            continue
        yield f"step {number + 1} of {len(steps)}: {step}"
        for before in steps[max(0, number - 12) : number]:
            yield f"  after {before}"
        one, other = _comparable(step, one), _comparable(step, other)
        for name in one:
            if one[name] != other[name]:
                at = _first(one[name][0], other[name][0])
                yield f"  {name}, from byte {at} on:"
                yield f"    direct:  {_cut(one[name], at)}"
                yield f"    through: {_cut(other[name], at)}"
        return


def _first(one: bytes, other: bytes) -> int:
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return max(0, (min(len(one), len(other)) if common is None else common) - 60)


def _cut(heard: tuple[bytes, bool], at: int) -> str:
    data, ended = heard
    return f"{data[at : at + 400]!r}{' …' if len(data) > at + 400 else ''}{' and the end' if ended else ''}"
