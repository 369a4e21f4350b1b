"""What goes wrong in a cluster: hash slots that move, failovers, crashes, members that come and go.

Rule: one failover or migration concerns a shard at a time; all else may overlap it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.cluster.node import ClusterNode
from tests.simulation.cluster.shards import Cluster, Shard
from tests.simulation.network import Host, Network
from tests.simulation.redis_model import PORT

Fault = Callable[[], Coroutine[Any, Any, None]]


class ClusterFaults:
    """The faults that a schedule may draw."""

    def __init__(self, network: Network, dice: random.Random, cluster: Cluster, keyfence: Host) -> None:
        self._network = network
        self._dice = dice
        self._cluster = cluster
        self._keyfence = keyfence
        self.atomic: list[Fault] = [self._move_at_once]
        self.classic: list[Fault] = [self._move_key_by_key]
        self.graceful: list[Fault] = [self._hand_over]
        self.members: list[Fault] = [self._grow, self._shrink]
        self.crashes: list[Fault] = [self._crash, self._lose_machine, self._stop]
        self.splits: list[Fault] = [self._split, self._cut_and_take_over]
        self.beside: list[Fault] = [
            *(self._reset, self._refuse, self._drop, self._stall, self._cut, self._restart)
        ]

    def _say(self, text: str, *nodes: ClusterNode) -> None:
        self._network.journal.add(f"{', '.join(one.name for one in nodes)} {text}")

    async def _wait(self, most: float) -> None:
        await asyncio.sleep(self._dice.random() * most)

    def _take(self, *, with_slots: bool = True) -> Shard | None:
        """A shard to which nothing else happens, for one fault; None: there is none."""
        free = [
            one
            for one in self._cluster.shards
            if not one.is_busy and not one.has_left and (not with_slots or one in self._cluster.serving)
        ]
        if not free:
            return None
        taken = self._dice.choice(free)
        taken.is_busy = True
        return taken

    async def _on_one(self, play: Callable[[Shard], Coroutine[Any, Any, None]]) -> None:
        shard = self._take()
        if shard is not None:
            await play(shard)
            shard.is_busy = False

    # -- hash slots that move

    async def _on_two(
        self, play: Callable[[Shard, Shard, frozenset[int]], Coroutine[Any, Any, None]]
    ) -> None:
        source = self._take()
        target = self._take(with_slots=False)
        if source is not None and target is not None:
            await play(source, target, self._some_slots(source))
        for one in (source, target):
            if one is not None:
                one.is_busy = False

    def _some_slots(self, source: Shard) -> frozenset[int]:
        """Some hash slots with keys in them, and perhaps many without."""
        used = self._cluster.slots_in_use(source)
        self._dice.shuffle(used)
        chosen = set(used[: self._dice.choice([1, 1, 2, 4, 100])])
        if not chosen or self._dice.random() < 0.5:
            owned = sorted(self._cluster.slots_of(source))
            begin = self._dice.randrange(len(owned))
            chosen |= set(owned[begin : begin + self._dice.choice([1, 100, 2000])])
        return frozenset(chosen)

    async def _until_awake(self, *nodes: ClusterNode) -> None:
        while not all(one.answers for one in nodes):
            await asyncio.sleep(0.05)

    async def _move_at_once(self) -> None:
        await self._on_two(self._play_at_once)

    async def _play_at_once(self, source: Shard, target: Shard, slots: frozenset[int]) -> None:
        """Writes wait, the target has all keys, and owns the hash slots from one moment to the next."""
        giver, taker = source.first, target.first
        await self._until_awake(giver, taker)
        self._say(f"gives {len(slots)} hash slots at once to {taker.name}", giver)
        giver.pause_writes()
        await self._wait(0.05)
        await self._until_awake(giver, taker)
        for key in self._cluster.keys_in(giver, slots):
            self._cluster.move_key(key, source, target)
        self._cluster.owns_now(target, slots)
        self._cluster.catch_up(giver)
        giver.resume_writes()

    async def _move_key_by_key(self) -> None:
        await self._on_two(self._play_key_by_key)

    async def _play_key_by_key(self, source: Shard, target: Shard, slots: frozenset[int]) -> None:
        """As CLUSTER SETSLOT and MIGRATE do it, one hash slot after the other."""
        giver, taker, dice = source.first, target.first, self._dice
        used = [slot for slot in sorted(slots) if slot in self._cluster.slots_in_use(source)]
        self._say(f"gives hash slots {used} key by key to {taker.name}", giver)
        if dice.random() < 0.7:  # those first of which commands have several keys
            used.sort(key=lambda slot: -len(self._cluster.keys_in(giver, frozenset([slot]))))
        for slot in used[:6]:
            await self._until_awake(giver, taker)
            taker.importing[slot] = giver
            await self._wait(0.02)
            await self._until_awake(giver, taker)
            giver.migrating[slot] = taker
            await self._wait(dice.choice([0.02, 0.3]))
            only = frozenset([slot])
            while keys := self._cluster.keys_in(giver, only):
                await self._until_awake(giver, taker)
                if keys := self._cluster.keys_in(giver, only):
                    self._cluster.move_key(dice.choice(keys), source, target)
                    await self._wait(dice.choice([0.001, 0.05, 0.3]) if len(keys) == 1 else 1.0)
            await self._wait(dice.choice([0.02, 0.6]))
            await self._until_awake(giver, taker)
            self._say(f"has hash slot {slot} now", taker)
            # If the giver hears of it first, each of the two leads to the other one for a moment.
            first, last = dice.choice([(taker, giver), (taker, giver), (giver, taker)])
            self._cluster.owns_now(target, only, first)
            await self._wait(dice.choice([0.001, 0.02, 0.05]))
            await self._until_awake(last)
            self._cluster.catch_up(last)

    # -- members

    async def _grow(self) -> None:
        shard = self._cluster.join()
        self._say("join", *shard.members)
        shard.is_busy = True
        await self._wait(1.0)
        shard.is_busy = False
        source = self._take()
        if source is None or source is shard:
            return
        shard.is_busy = True
        play = self._dice.choice([self._play_at_once, self._play_key_by_key])
        await play(source, shard, self._some_slots(source))
        source.is_busy = shard.is_busy = False

    async def _shrink(self) -> None:
        """A shard gives all hash slots away, and leaves once all nodes know that. Its nodes may live on."""
        shard, target = self._take(), self._take()
        if shard is not None and target is not None:
            await self._play_at_once(shard, target, frozenset(self._cluster.slots_of(shard)))
            for _ in range(100):
                await asyncio.sleep(0.05)
                if self._cluster.agrees:
                    break
            is_free = self._cluster.agrees and shard not in self._cluster.serving
            if is_free and self._cluster.is_known_without(shard):
                self._say("leave", *shard.members)
                self._cluster.has_ended_nodes = True
                self._cluster.leave(shard)
                await self._wait(2.0)
                if self._dice.random() < 0.5:
                    self._say("end", *shard.members)
                    for node in shard.members:
                        node.kill(with_machine=False)
        for one in (shard, target):
            if one is not None:
                one.is_busy = False

    # -- failovers

    async def _hand_over(self) -> None:
        await self._on_one(self._play_hand_over)

    async def _play_hand_over(self, shard: Shard) -> None:
        await self._until_awake(*shard.members)
        await shard.fail_over()

    async def _take_over(self, shard: Shard, former: ClusterNode) -> None:
        """The others notice that a primary does not answer, and its replica is promoted."""
        cluster = self._cluster
        await asyncio.sleep(0.1 + self._dice.random())
        self._say("is taken for dead", former)
        cluster.failing[former] = None
        if shard.is_isolated(former):
            cluster.cut_off[former] = None
        await self._wait(0.5)
        if shard.primary is former:
            shard.take_over()

    async def _back(self, shard: Shard, former: ClusterNode) -> None:
        """A former primary is back, and takes itself for the primary until it hears of the new one."""
        await self._wait(1.0)
        self._cluster.failing.pop(former, None)
        self._cluster.cut_off.pop(former, None)
        if former is not shard.primary:
            self._say("becomes a replica", former)
            shard.attach(former)
        else:
            shard.isolate_none()

    async def _crash(self) -> None:
        await self._on_one(lambda shard: self._play_death(shard, with_machine=False))

    async def _lose_machine(self) -> None:
        await self._on_one(lambda shard: self._play_death(shard, with_machine=True))

    async def _play_death(self, shard: Shard, *, with_machine: bool) -> None:
        former = shard.first
        self._say("vanishes with its machine" if with_machine else "is killed", former)
        former.kill(with_machine=with_machine)
        await self._take_over(shard, former)
        await self._wait(2.0)
        self._say("is back", former)
        shard.restart(former)
        await self._back(shard, former)

    async def _stop(self) -> None:
        await self._on_one(self._play_stop)

    async def _play_stop(self, shard: Shard) -> None:
        former = shard.first
        self._say("stops", former)
        self._network.stop(former.host)
        await self._take_over(shard, former)
        await self._wait(2.0)
        self._say("goes on", former)
        self._network.go_on(former.host)
        await self._back(shard, former)

    async def _split(self) -> None:
        await self._on_one(lambda shard: self._play_split(shard, is_cut=False))

    async def _cut_and_take_over(self) -> None:
        await self._on_one(lambda shard: self._play_split(shard, is_cut=True))

    async def _play_split(self, shard: Shard, *, is_cut: bool) -> None:
        """The other nodes lose a primary, which lives on; keyfence as well, if it `is_cut`."""
        former = shard.first
        self._say("is cut off from all" if is_cut else "is cut off from the other nodes", former)
        if is_cut:
            self._network.cut(former.host, self._keyfence)
        shard.isolate(former)
        await self._take_over(shard, former)
        await self._wait(2.0)
        self._say("is reached again", former)
        self._network.mend(former.host, self._keyfence)
        await self._back(shard, former)

    # -- what changes nothing in the cluster

    def _any(self) -> ClusterNode:
        return self._dice.choice(self._cluster.nodes)

    async def _reset(self) -> None:
        self._network.journal.add("a connection of keyfence's is reset")
        self._network.reset_one(self._keyfence)

    async def _refuse(self) -> None:
        node = self._any()
        self._say("refuses connections", node)
        self._network.refuse(node.host.address, PORT)
        await self._wait(1.0)
        self._say("takes connections again", node)
        if not node.host.is_silent and not node.is_dead:
            node.listen()

    async def _drop(self) -> None:
        """A node ends connections as soon as they are open, as at `maxclients`."""
        node = self._any()
        self._say("drops connections", node)
        node.drops = True
        await self._wait(1.0)
        self._say("drops connections no more", node)
        node.drops = False

    async def _stall(self) -> None:
        node = self._any()
        self._say("stalls", node)
        self._network.stop(node.host)
        await self._wait(1.0)
        self._say("stalls no more", node)
        if not node.host.is_silent:
            self._network.go_on(node.host)

    async def _cut(self) -> None:
        node = self._any()
        self._say("is cut off from keyfence", node)
        self._network.cut(node.host, self._keyfence)
        await self._wait(2.0)
        self._say("is reached by keyfence again", node)
        self._network.mend(node.host, self._keyfence)

    async def _restart(self) -> None:
        await self._on_one(self._play_restart)

    async def _play_restart(self, shard: Shard) -> None:
        """A primary is killed, and is the primary again, once it has loaded its data."""
        node = shard.first
        self._say("is restarted", node)
        node.kill(with_machine=False)
        await self._wait(0.5)
        node.is_loading = True
        shard.restart(node)
        await self._wait(0.5)
        node.is_loading = False
