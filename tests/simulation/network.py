"""A network between processes: connections, and what may happen to them.

Rule: bytes of one direction arrive in their order, in pieces and after delays that the dice choose. A piece
that cannot be delivered waits, as with TCP: the receiver is stopped or does not read, or the network is cut.
A side that closes ends the stream or resets the connection, as the dice say.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.journal import Journal
from tests.simulation.loop import VirtualLoop

_END = b""  # stands for the end of the stream among its pieces
RARELY = 0.02  # a piece is delayed for longer
LONGER = 20  # times the usual delay
LONGEST_TOO_LATE = 1.0  # seconds for which a connection stands that was given up while it was made


class _NoSocket:
    """What a transport shows in place of a socket."""

    family = 0

    def fileno(self) -> int:
        raise OSError("there is no socket")


_NO_SOCKET = _NoSocket()


class Host:
    """A machine with one process."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.is_silent = False  # the machine is gone: nothing answers, not even with a reset
        self.is_stopped = False  # as by SIGSTOP: its system takes connections and bytes, its process nothing
        self.ends: dict[End, None] = {}  # its open ends of connections, in their order
        # See what its process writes and reads.
        self.sees_written: Callable[[End, bytes], None] = lambda _end, _data: None
        self.sees_read: Callable[[End, bytes], None] = lambda _end, _data: None
        self.forgotten: list[End] = []  # the other ends of those that vanished with the machine


class End(asyncio.Transport):
    """One end of a connection, as the process there has it."""

    def __init__(self, network: Network, host: Host, address: tuple[str, int]) -> None:
        super().__init__()
        self.network = network
        self.host = host
        self.address = address  # that the other end has asked for, or has
        self.protocol: Any = None
        self.peer: End
        self.opened_at = network.loop.now
        self.is_lost = False  # nothing more happens here
        self._is_closing = False
        self._is_reading = True
        self._is_full = False  # whether the protocol was told to write no more
        self._ended = False  # whether the end of the stream was written
        self._flight: deque[bytes] = deque()  # pieces on their way to the peer
        self._in_flight = 0  # their bytes, and those in the peer's inbox
        self._inbox: deque[bytes] = deque()  # pieces that have arrived, and were not taken in
        self._reset_came = False
        self._last_arrival = 0.0

    # -- what a protocol does with it

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.address
        return _NO_SOCKET if name == "socket" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.network.loop.call_soon(self.take_in)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return max(0, self._in_flight - self.network.kernel)

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        if not data or self.is_lost or self._ended or self._is_closing:
            return
        self.host.sees_written(self, data)
        self._send(bytes(data))
        if not self._is_full and self.get_write_buffer_size() > self.network.high:
            self._is_full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._ended and not self.is_lost:
            self._ended = True
            self._fly(_END)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._inbox:  # what was not read resets the connection
            self.abort()
            return
        self.write_eof()
        self._settle_closing()

    def abort(self) -> None:
        if not self.is_lost:
            self._is_closing = True
            self.network.loop.call_soon(self._lose, None)
            self.vanish()

    # -- what happens to it

    def vanish(self) -> None:
        """The process has let go of it, or has died. The other side is told by an end or a reset."""
        if self.is_lost:
            return
        self.is_lost = True
        del self.host.ends[self]
        if self.host.is_silent:
            self._flight.clear()
        elif self._inbox or self.network.dice.random() < 0.5:
            self._flight.clear()
            self.network.loop.call_later(self.network.delay(), self.peer.be_reset)
        elif not self._ended:
            self._ended = True
            self._fly(_END)

    def vanish_silently(self) -> None:
        """As `vanish`, and the protocol is not told."""
        if not self.is_lost:
            self.protocol = None
            self.vanish()

    def be_reset(self) -> None:
        """A reset has arrived. It overtakes what was not taken in."""
        if not self.is_lost:
            self._reset_came = True
            self._inbox.clear()
            self.take_in()

    def start(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        self.network.loop.call_soon(self.take_in)

    def take_in(self) -> None:
        """The process reads what has arrived, if it can."""
        while not self.is_lost and self.protocol is not None and self.network.passes(self):
            if self._reset_came:
                self.network.journal.add(
                    "%s loses a connection to %s: reset", self.host.name, self.peer.host.name
                )
                self._is_closing = True
                self._gone()
                self._lose(ConnectionResetError(104, "Connection reset by peer"))
                return
            if not self._inbox or not self.is_reading():
                return
            piece = self._inbox.popleft()
            if piece:
                self.peer.taken(len(piece))
                self.host.sees_read(self, piece)
                self.protocol.data_received(piece)
            elif not self.protocol.eof_received():
                self.close()

    def taken(self, size: int) -> None:
        """The other process has read `size` of the bytes that were written here."""
        self._in_flight -= size
        if self._is_full and self.get_write_buffer_size() <= self.network.high // 4:
            self._is_full = False
            if not self._is_closing and self.protocol is not None:
                self.protocol.resume_writing()
        self._settle_closing()

    def _settle_closing(self) -> None:
        if self._is_closing and not self.is_lost and not self.get_write_buffer_size():
            self._gone()
            self.network.loop.call_soon(self._lose, None)
            if self._inbox:
                self.network.loop.call_later(self.network.delay(), self.peer.be_reset)

    def _gone(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            del self.host.ends[self]

    def _lose(self, exc: Exception | None) -> None:
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            protocol.connection_lost(exc)

    def _send(self, data: bytes) -> None:
        self._in_flight += len(data)
        dice = self.network.dice
        if len(data) == 1 or dice.random() < self.network.whole:
            self._fly(data)
            return
        cuts = sorted({dice.randrange(1, len(data)) for _ in range(dice.randrange(1, 4))})
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            self._fly(data[start:end])

    def _fly(self, piece: bytes) -> None:
        loop = self.network.loop
        self._flight.append(piece)
        self._last_arrival = max(self._last_arrival, loop.now + self.network.delay())
        loop.call_at(self._last_arrival, self._arrive)

    def _arrive(self) -> None:
        if not self._flight:
            return  # a reset has overtaken it
        piece, peer = self._flight.popleft(), self.peer
        if not peer.is_lost:
            peer._inbox.append(piece)
            peer.take_in()
        elif piece and not self.is_lost and not peer.host.is_silent:
            self.network.loop.call_later(self.network.delay(), self.be_reset)


class Network:
    """All hosts, and the connections between them."""

    def __init__(self, loop: VirtualLoop, dice: random.Random, journal: Journal) -> None:
        self.loop = loop
        self.dice = dice
        self.journal = journal
        self.kernel = dice.choice([1_000, 64_000])  # bytes that systems hold of one direction
        self.high = dice.choice([500, 64_000])  # bytes of a transport's buffer with which it is full
        self.whole = dice.choice([0.5, 0.9, 1.0])  # the share of writes that arrive in one piece
        self._longest = dice.choice([0.0005, 0.005, 0.05])  # usual delay
        self.hosts: dict[str, Host] = {}  # by address
        self.leads: dict[str, str] = {}  # an address that leads to another one's host
        self._listening: dict[tuple[str, int], Callable[[], Any]] = {}
        self._cut: set[frozenset[str]] = set()  # pairs of hosts, by name
        self._jobs: set[asyncio.Task[None]] = set()
        self._reachable: list[asyncio.Future[None]] = []  # what waits until something is mended

    def host(self, name: str, address: str) -> Host:
        made = self.hosts[address] = Host(name, address)
        return made

    def delay(self) -> float:
        dice = self.dice
        return dice.random() * self._longest * (LONGER if dice.random() < RARELY else 1)

    @property
    def longest_delay(self) -> float:
        """Seconds that a piece takes at most while nothing holds it up."""
        return self._longest * LONGER

    def start(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job of the models, which may fail as connections do."""
        task = self.loop.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled():
            task.exception()

    async def end(self) -> None:
        """End the jobs of the models."""
        for one in list(self._jobs):
            one.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    # -- connections

    def listen(self, address: str, port: int, serves: Callable[[], Any]) -> None:
        """From now on, `serves` makes the protocol of each connection to this address."""
        self._listening[address, port] = serves

    async def connect(
        self, origin: Host, makes: Callable[[], Any], address: str, port: int
    ) -> tuple[End, Any]:
        """Open a connection from one host. Raises OSError."""
        try:
            await asyncio.sleep(self.delay())
        except asyncio.CancelledError:
            self._make_too_late(origin, makes, address, port)
            raise
        place = self.leads.get(address, address)
        while (target := self.hosts.get(place)) is None or target.is_silent or self.is_cut(origin, target):
            future = self.loop.create_future()
            self._reachable.append(future)
            await future
            place = self.leads.get(address, address)
        serves = self._listening.get((place, port))
        if serves is None:
            await asyncio.sleep(self.delay())
            raise ConnectionRefusedError(111, "Connection refused")
        here = self._joined(origin, target, (address, port), serves)
        protocol = makes()
        here.protocol = protocol
        opened = self.loop.create_future()
        self.loop.call_soon(protocol.connection_made, here)
        self.loop.call_soon(here.take_in)
        self.loop.call_soon(lambda: opened.done() or opened.set_result(None))
        try:
            await opened
        except BaseException:
            here.close()
            raise
        return here, protocol

    def _joined(self, origin: Host, target: Host, address: tuple[str, int], serves: Callable[[], Any]) -> End:
        """The near end of a new connection, whose far end will be served."""
        here, there = End(self, origin, address), End(self, target, (origin.address, 50_000))
        here.peer, there.peer = there, here
        origin.ends[here] = target.ends[there] = None
        self.loop.call_later(self.delay(), self._accept, there, address[1], serves)
        return here

    def _make_too_late(self, origin: Host, makes: Callable[[], Any], address: str, port: int) -> None:
        """Who connects has given up. uvloop may make the transport in that very turn, and data may come to it
        before it is closed, of which its protocol is not told."""
        place = self.leads.get(address, address)
        target, serves = self.hosts.get(place), self._listening.get((place, port))
        if target is None or serves is None or target.is_silent or self.is_cut(origin, target):
            return
        if self.dice.random() < 0.5:
            return
        here = self._joined(origin, target, (address, port), serves)
        here.start(makes())
        self.loop.call_later(min(self.delay() * 10, LONGEST_TOO_LATE), here.vanish_silently)

    def _accept(self, end: End, port: int, serves: Callable[[], Any]) -> None:
        if end.is_lost:
            return
        if (end.host.address, port) in self._listening:
            end.start(serves())
        else:
            end.vanish()  # who listened has left before it took the connection

    # -- faults

    def passes(self, end: End) -> bool:
        """Whether a process can hear its peer now."""
        if end.host.is_stopped or end.host.is_silent:
            return False
        return not self._cut or not self.is_cut(end.host, end.peer.host)

    def is_cut(self, one: Host, other: Host) -> bool:
        return frozenset((one.name, other.name)) in self._cut

    def cut(self, one: Host, other: Host) -> None:
        """Nothing passes between two hosts until `mend`."""
        self._cut.add(frozenset((one.name, other.name)))

    def mend_all(self) -> None:
        """End every fault of hosts and between them."""
        self._cut.clear()
        for host in self.hosts.values():
            self.go_on(host)

    def refuse(self, address: str, port: int) -> Callable[[], Any] | None:
        """Refuse connections to this address, until `listen`. Returns what has served them."""
        return self._listening.pop((address, port), None)

    def mend(self, one: Host, other: Host) -> None:
        self._cut.discard(frozenset((one.name, other.name)))
        self.wake()

    def kill(self, host: Host) -> None:
        """The process on a host dies, as by SIGKILL. Its protocols are told nothing."""
        self._listening = {at: serves for at, serves in self._listening.items() if at[0] != host.address}
        for end in list(host.ends):
            end.protocol = None
            end.vanish()

    def silence(self, host: Host) -> None:
        """A host vanishes with its machine: nobody is told."""
        host.is_silent = True
        host.forgotten = [end.peer for end in host.ends]
        self.kill(host)

    def stop(self, host: Host) -> None:
        host.is_stopped = True

    def go_on(self, host: Host) -> None:
        """End what `stop` or `silence` has begun. A machine that is back resets its former connections."""
        host.is_stopped = host.is_silent = False
        for end in host.forgotten:
            self.loop.call_later(self.delay(), end.be_reset)
        host.forgotten = []
        self.wake()

    def wake(self) -> None:
        """Deliver what waited, after something was mended."""
        waiting, self._reachable = self._reachable, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
        for host in self.hosts.values():
            for end in list(host.ends):
                self.loop.call_soon(end.take_in)

    def reset_one(self, host: Host) -> None:
        """Reset one connection of a host, at both ends."""
        if host.ends:
            end = self.dice.choice(list(host.ends))
            end.be_reset()
            end.peer.be_reset()
