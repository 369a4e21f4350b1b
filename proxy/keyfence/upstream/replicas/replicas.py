"""All replicas of the upstream: which there are, how far each is, and which one a client reads from.

Rule: the primary is asked first and the replicas after it. So a replica that has as much by then has all that
any client had read or written before the check. While no client wants to know, this happens once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any

from keyfence.resp.role import MASTER, REPLICA
from keyfence.telemetry.operator_log import report_fault
from keyfence.upstream.doubt import Doubt
from keyfence.upstream.handshake import GreetingError, describe
from keyfence.upstream.health import Upstream
from keyfence.upstream.shared import SharedConnection

from .position import Position
from .replica import Replica, position_of
from .sorting import Sorter

CHECK_SECONDS = 1.0  # between two checks …
LEAST_SECONDS = 0.05  # … and between two that clients wait for
FIND_SECONDS = 10.0  # between two looks for other replicas
KEPT_POSITIONS = 8  # of the primary: a replica that lags is compared with earlier ones

Node = tuple[str, int]


class Replicas:
    """The replicas of one upstream, as one process knows them."""

    def __init__(
        self,
        primary: Upstream,
        size: int,
        reads: Collection[bytes],
        nodes: Sequence[Node] = (),
        find: Callable[[], Awaitable[Sequence[Node] | None]] | None = None,
        *,
        of_cluster: bool = False,
    ) -> None:
        """`size`: the maximum number of shared connections of one kind to one replica. `reads`: the commands
        that only read. The replicas are `nodes`, or those that `find` finds; it returns None if it cannot
        tell. `of_cluster`: they serve reads only after READONLY."""
        self.sorter = Sorter(reads)
        self.trouble = ""  # why nothing is known of the replicas; "": something is
        self._primary = primary
        self._size = size
        self._find = find
        self._of_cluster = of_cluster
        self._reads = Counter[str]()  # since the last `take_reads`
        self._replicas: dict[Node, Replica] = {}
        self._left: list[Replica] = []  # that are replicas no more, and still have connections
        self._positions: deque[tuple[float, Position]] = deque(maxlen=KEPT_POSITIONS)
        self._is_wanted = asyncio.Event()
        self._waiting: dict[Callable[[], None], None] = {}
        self._doubt = Doubt()
        primary.looked_for_by(self._doubt)
        self.take(nodes)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def choose(self, now: float) -> Replica | None:
        """The replica with the fewest clients; None: none can be used."""
        usable = [one for one in self if not one.why_not(now)]
        return min(usable, key=lambda one: one.readers) if usable else None

    def when_checked(self, act: Callable[[], None]) -> None:
        """Call this once the next check has ended that begins from now on."""
        self._waiting[act] = None
        self._is_wanted.set()

    def forget(self, act: Callable[[], None]) -> None:
        """It waits no more."""
        self._waiting.pop(act, None)

    def look_again(self) -> None:
        """There is a sign that a replica is used no more, or can be used: check soon."""
        self._is_wanted.set()

    # -- checks

    async def check_forever(self) -> None:
        while True:
            self._is_wanted.clear()
            await self.check()
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS * random.uniform(0.9, 1.1)):
                    await self._is_wanted.wait()

    async def check(self) -> None:
        """Ask all nodes once how far they are."""
        waiting, self._waiting = self._waiting, {}
        at = asyncio.get_running_loop().time()
        try:
            position = await position_of(self._primary)
            if not position.is_primary:
                raise ValueError("it is a replica now")
        except (OSError, GreetingError, ValueError) as exc:
            why = describe(exc) if isinstance(exc, OSError) else str(exc)
            self.trouble = f"the primary does not say how far it is: {why}"
        else:
            self.trouble = ""
            if self._positions and self._positions[-1][1].history != position.history:
                self._positions.clear()
            self._positions.append((at, position))
        for one in self:
            self._follow_login(one)
        await asyncio.gather(*(one.check(self._positions) for one in self))
        for act in waiting:
            try:
                act()
            except Exception as exc:  # the others' work goes on
                report_fault(exc)

    def _follow_login(self, replica: Replica) -> None:
        """keyfence logs in at a replica as it does at the primary."""
        upstream, primary = replica.upstream, self._primary
        upstream.address = _at(primary, upstream.address.host, upstream.address.port)
        upstream.login = primary.login

    # -- which there are

    async def find_forever(self) -> None:
        """Look which replicas there are, from time to time and when another node is the primary."""
        while self._find is not None:
            await self.find()
            await self._doubt.wait(FIND_SECONDS * random.uniform(0.5, 1.5))

    async def find(self) -> None:
        assert self._find is not None
        nodes = await self._find()
        if nodes is not None:
            self.take(nodes)

    def take(self, nodes: Sequence[Node]) -> None:
        """These are the replicas from now on."""
        for node in [one for one in self._replicas if one not in nodes]:
            gone = self._replicas.pop(node)
            gone.doubt("it is a replica of this primary no more")
            gone.has_left = True
            gone.pools.retire()
            self._left.append(gone)
        for node in nodes:
            if node not in self._replicas:
                address = _at(self._primary, *node)
                upstream = Upstream(
                    address,
                    self._primary.tls,
                    self._primary.connect_timeout,
                    on_fault=self._primary.on_fault,
                )
                upstream.login = self._primary.login
                upstream.reads_only = self._of_cluster
                upstream.looked_for_by(self)
                self._replicas[node] = Replica(upstream, self._size)
                self.look_again()

    # -- time

    def tick(self) -> None:
        """Call this about once a second."""
        for one in (*self, *self._left):
            try:
                one.pools.tick()
            except Exception as exc:  # the caller's other work goes on
                report_fault(exc)
        self._left = [one for one in self._left if any(one.pools.connections())]

    def connections(self) -> Iterator[SharedConnection]:
        """All connections to replicas that are not closed."""
        for one in (*self, *self._left):
            yield from one.pools.connections()

    def count_reads(self, replica: Replica | None, count: int) -> None:
        """So many reads were sent to a replica; None: to the primary."""
        if replica is not None:
            replica.sent += count
        self._reads[MASTER if replica is None else REPLICA] += count

    def take_reads(self) -> Counter[str]:
        """The number of reads since the last call, by the role of the node that they were sent to."""
        reads, self._reads = self._reads, Counter()
        return reads

    def status(self) -> list[dict[str, Any]]:
        """What operators see of each replica."""
        now = asyncio.get_running_loop().time()
        return [
            {"address": one.shown, "reason": self.trouble or one.why_not(now), "behind": one.behind}
            for one in self
        ]


def _at(primary: Upstream, host: str, port: int) -> Any:
    """The address of a replica: logins and TLS are the primary's."""
    address = primary.address
    kind = "tcp" if address.kind == "unix" else address.kind
    return dataclasses.replace(address, kind=kind, host=host, port=port, path="", shown="", sentinels=None)
