"""One schedule: a keyfence, a primary with replicas, clients, and what goes wrong, all drawn from one seed.

Rule: everything that is drawn comes from the seed, and time is virtual. So a seed plays the same schedule
each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.simulation.clients import CHANNEL, Client, Subscriber, Worker
from tests.simulation.faults import Fault, Faults
from tests.simulation.guides import ByAddress, ByName, BySentinels, Guide
from tests.simulation.invariants import Witness
from tests.simulation.journal import Broken, Journal
from tests.simulation.keyfence_under_test import CONNECT_SECONDS, Keyfence
from tests.simulation.loop import StandsStill, VirtualLoop
from tests.simulation.network import End, Host, Network
from tests.simulation.redis_model import written_in
from tests.simulation.replication import Group

TICK = 0.1  # seconds between two messages of the publisher
MOST_LINES = 400  # of a report …
MOST_BROKEN = 10  # … and of the invariants in it
# A connection that answered READONLY is used no longer than this, if only its role shows where it leads:
# the next look at Redis, whose pauses grow to 2 s, and the pause between two renewals.
RENEWAL_SECONDS = 3.5
PROGRESS_SECONDS = 30.0  # after the last fault, within which each client must have had an answer
NODES = "10.0.0."  # how the addresses of nodes begin
AT_WORK = (b"\r\nRPUSH\r\n", b"\r\nSET\r\n", b"\r\nINCR\r\n", b"\r\nGET\r\n", b"\r\nSUBSCRIBE\r\n")


class Player:
    """Base of the schedules: plays one seed."""

    KINDS: tuple[str, ...] = ()  # of schedules
    OPTION = ""  # with which `python -m tests.simulation` plays this kind
    _keyfence: Keyfence

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.journal = Journal(self.loop)
        dice = self._dice = random.Random(seed)
        self.kind = dice.choice(self.KINDS)
        self._network = Network(self.loop, dice, self.journal)
        self._witness = Witness(self.journal)
        self.lay_out()
        self._clients: list[Client] = []
        self._published = 0
        self._is_open = True  # clients are at work
        self._pause = dice.choice([0.2, 0.6, 1.0])  # the longest, between two deeds of a client

    def run(self) -> None:
        """Play it. Raises Broken if an invariant does not hold."""
        state = random.getstate()
        random.seed(self.seed)  # keyfence draws from the module's own generator
        try:
            self.loop.run_until_complete(self._play())
        except StandsStill as exc:
            self.journal.breaks(str(exc))
        except Exception as exc:
            self.journal.breaks(f"the schedule ended by {exc!r}")
            raise
        finally:
            random.setstate(state)
            self._close()
        for fault in self.loop.faults:
            self.journal.breaks(f"unhandled: {fault}")
        if self.journal.broken:
            raise Broken(self.report())

    def _close(self) -> None:
        """End what is left of a schedule that broke off."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with contextlib.suppress(StandsStill):
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    @property
    def shown(self) -> str:
        """What kind of schedule it is."""
        return self.kind

    def features(self) -> list[str]:
        """What the schedule had in it, for those who count."""
        return [self.kind, "confirmed"] if self._witness.has_confirmed else [self.kind]

    def report(self) -> str:
        """What has happened, and how to see it again."""
        lines = [
            f"seed {self.seed} ({self.shown}) breaks an invariant:",
            *(f"  {one}" for one in self.journal.broken[:MOST_BROKEN]),
            f"again: python -m tests.simulation {self.OPTION}--seed {self.seed}",
            "what happened:",
            *self.journal.lines()[-MOST_LINES:],
        ]
        return "\n".join(lines)

    # -- the play

    def lay_out(self) -> None:
        """Draw the models of Redis."""
        raise NotImplementedError

    def make_keyfence(self) -> Keyfence:
        raise NotImplementedError

    def make_client(self, number: int, origin: Host) -> Client:
        kind: type[Client] = Subscriber if self._dice.random() < 0.25 else Worker
        return kind(number, self._network, origin, self._witness)

    async def _play(self) -> None:
        dice = self._dice
        self._keyfence = self.make_keyfence()
        await self._keyfence.start()
        self._tick()
        origin = self._network.host("clients", "10.0.3.1")
        for number in range(dice.randrange(2, 5)):
            self._clients.append(self.make_client(number, origin))
            self._act(self._clients[-1])
        await self.go_wrong()
        await self._settle()
        await self._end()

    def _act(self, client: Client) -> None:
        """A client does something, and again a while later."""
        if not self._is_open:
            return
        if client.end is None:
            self._network.start(client.connect())
        elif self._dice.random() < 0.08 and not client.end.is_closing():
            if self._dice.random() < 0.7:
                client.begin()  # and goes before it has the replies
            client.journal.add("%s connects anew", client.name)
            how = self._dice.choice(["abort", "close", "write_eof"])
            if how == "close" and client.end.get_write_buffer_size():
                how = "abort"  # a client that closes reads no more, so keyfence may never take what it wrote
            client.hang_up(how)
        else:
            client.begin()
        self.loop.call_later(self._dice.random() * self._pause, self._act, client)

    def _tick(self) -> None:
        """Somebody publishes at Redis, and looks whether all is as it should be."""
        if self._is_open:
            if any(isinstance(one, Subscriber) for one in self._clients):
                self._published += 1
                self.publish(b"%d" % self._published)
            self.watch()
            self.loop.call_later(TICK, self._tick)

    async def _settle(self) -> None:
        """Mend all, and wait until each client has had answers again."""
        self.journal.add("all is mended")
        self._network.mend_all()
        await self.mend()
        before = {one: one.answered for one in self._clients}
        for _ in range(round(PROGRESS_SECONDS / 0.25)):
            await asyncio.sleep(0.25)
            if all(self.works(one, before[one]) for one in self._clients):
                return
        waiting = [one.name for one in self._clients if not self.works(one, before[one])]
        self.journal.breaks(
            f"{', '.join(waiting)} got no answers for {PROGRESS_SECONDS} s after the last fault"
        )

    def works(self, client: Client, before: int) -> bool:
        if isinstance(client, Subscriber):
            return client.end is not None and client.heard_at > self.loop.now - 0.5
        return client.answered > before and client.end is not None

    async def _end(self) -> None:
        """Let all replies come, then end the clients and keyfence, and look what is left."""
        self._is_open = False
        if self._dice.random() < 0.3:
            self.journal.add("keyfence ends")
            await self._keyfence.stop()
        for _ in range(200):
            if not any(one.due for one in self._clients):
                break
            await asyncio.sleep(0.05)
        for one in self._clients:
            if one.due:
                self.journal.breaks(f"{one.name} never got the reply to {one.due[0].request!r}")
            one.leave()
        # A client that gave up early may come last, and still wait for a connection of its own.
        given_up = self.loop.now + 2.0 + 6 * self._network.longest_delay
        while self._keyfence.context.clients and self.loop.now < given_up:
            await asyncio.sleep(0.05)
        if self._keyfence.context.clients:
            self.journal.breaks("keyfence keeps clients that have left")
        await self._keyfence.stop()
        await self._network.end()
        await asyncio.sleep(CONNECT_SECONDS + 0.3)  # a connection that is being made ends by its time limit
        self._witness.check(self.written())
        self._look_what_is_left()

    def _look_what_is_left(self) -> None:
        if ends := [one.address for one in self._keyfence.host.ends]:
            self.journal.breaks(f"keyfence has open connections: {ends}")
        tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        if tasks:
            self.journal.breaks(f"tasks are left: {tasks}")
        if errors := self._keyfence.context.counters.internal_errors:
            self.journal.breaks(f"keyfence had an internal error: {errors}")
        own = __name__.rpartition(".")[0]
        if timers := [one for one in self.loop.timers if not one._callback.__module__.startswith(own)]:
            self.journal.breaks(f"timers are left: {timers}")

    # -- what is looked at meanwhile

    def publish(self, text: bytes) -> None:
        """Somebody publishes at Redis."""
        raise NotImplementedError

    def watch(self) -> None:
        """Look whether all is as it should be."""

    async def go_wrong(self) -> None:
        """Play the faults."""
        raise NotImplementedError

    async def mend(self) -> None:
        """Have all nodes and their surroundings as they should be."""
        raise NotImplementedError

    def written(self) -> set[bytes]:
        """All values that were written by the last primaries."""
        raise NotImplementedError


class Schedule(Player):
    """One Redis with replicas."""

    KINDS = ("graceful", "crash", "rough", "rough")

    def lay_out(self) -> None:
        dice = self._dice
        self._group = Group(self._network, dice, self.journal, self._witness)
        guides: list[type[Guide]] = [BySentinels, BySentinels, ByName, ByAddress]
        self._guide = dice.choice(guides)(self._network, dice, self.journal, self._group)
        # Only Sentinels and the role of a node in the handshake keep connections away from replicas.
        self._witness.reads_replicas = not isinstance(self._guide, BySentinels)
        self._witness.may_lose = self.kind != "graceful"
        self._refused: dict[End, float] = {}  # when READONLY first came on a connection

    @property
    def shown(self) -> str:
        return f"{self.kind}, {type(self._guide).__name__}"

    def features(self) -> list[str]:
        followed = ["followed"] if self._keyfence.upstream.last_failover is not None else []
        return [*super().features(), type(self._guide).__name__, *followed]

    def make_keyfence(self) -> Keyfence:
        made = Keyfence.before(self._network, self._guide, self._dice.choice([0, 1, 1, 2]))
        if isinstance(self._guide, BySentinels):
            made.host.sees_written = self._watch_writes
        if self.kind != "rough":
            made.host.sees_read = self._watch_refusals
        return made

    def publish(self, text: bytes) -> None:
        self._group.publish(CHANNEL, text)
        self._watch_subscribers()

    def written(self) -> set[bytes]:
        return written_in(self._group.primary.log)

    async def mend(self) -> None:
        self._guide.lead(self._group.primary)
        self._guide.heal()
        for node in self._group.nodes:
            if node is not self._group.primary and node not in self._group.replicas:
                self._group.attach(node)
        if self.kind != "rough" and not self._guide.patience:
            await asyncio.sleep(RENEWAL_SECONDS + 1.0)

    async def go_wrong(self) -> None:
        """Play the faults, some of them at the same time."""
        faults = Faults(self._network, self._dice, self._group, self._guide, self._keyfence.host)
        await asyncio.sleep(0.3)
        under_way: list[asyncio.Task[None]] = []
        for _ in range(self._dice.choice([1, 2, 2, 3])):
            fault = self._draw(faults)
            is_failover = fault not in faults.beside or fault.__name__ in (
                "_split",
                "_cut_and_take_over",
                "_restart",
            )
            under_way.append(asyncio.ensure_future(faults.one(fault, is_failover)))
            await asyncio.sleep(self._dice.random() * 1.5)
        await asyncio.gather(*under_way)

    def _draw(self, faults: Faults) -> Fault:
        dice = self._dice
        if self.kind == "graceful":
            return dice.choice(faults.graceful)
        if self.kind == "crash":
            return dice.choice(faults.crashes)
        return dice.choice(dice.choice([faults.graceful, faults.crashes, faults.beside, faults.beside]))

    # -- invariants that are looked at meanwhile

    def _watch_writes(self, end: End, data: bytes) -> None:
        """No client's request goes to a node that keyfence does not follow any more. Only what a client has
        left behind may still arrive there, as it does without keyfence."""
        node, place = self._keyfence.upstream.address.host, end.address[0]
        if place == node or not place.startswith(NODES) or getattr(end.protocol, "is_closed", False):
            return
        if any(word in data.upper() for word in AT_WORK):
            self.journal.breaks(f"keyfence sent {data!r:.60} to {place} after it had moved to {node}")

    def _is_late(self, patience: float) -> bool:
        """Whether keyfence must have followed the last failover by now."""
        since = max(self._group.primary_since, self._guide.right_since)
        return patience > 0 and self.loop.now > since + patience

    def _watch_refusals(self, end: End, data: bytes) -> None:
        """A connection that leads to a replica is not used for long."""
        if b"-READONLY" not in data:
            return
        patience = self._guide.patience or RENEWAL_SECONDS
        since = self._refused.setdefault(end, self.loop.now) if not self._guide.patience else end.opened_at
        if self._is_late(patience) and self.loop.now > since + patience:
            self.journal.breaks(
                f"{end.peer.host.name} still answers READONLY, on a connection that is used again"
            )

    def _watch_subscribers(self) -> None:
        """A subscriber is closed or receives again soon after a failover."""
        patience = self._guide.patience
        # A message takes two ways: to keyfence, and on to the client.
        if (
            self.kind == "rough"
            or not patience
            or not self._is_late(patience + 2 * self._network.longest_delay)
        ):
            return
        since = max(self._group.primary_since, self._guide.right_since)
        for one in self._clients:
            if isinstance(one, Subscriber) and one.is_deaf_since(since):
                self.journal.breaks(f"{one.name} hears nothing since the failover, and is not closed")
