"""A model of a cluster whose nodes are scanned while hash slots move and primaries fail over.

Rule: a node's cursor means something to that node only, as in Redis: each has a hash function of its own.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterable

from keyfence.policy.compiled.hash_slots import SLOTS, hash_slot
from keyfence.resp import encode
from keyfence.upstream.cluster.scanning import Step
from keyfence.upstream.cluster.topology import Topology, topology_in

BUCKETS = 1 << 10  # of a node's table
PAGE = 64  # buckets that a SCAN looks at


class ModelNode:
    """A primary and its keys."""

    def __init__(self, number: int) -> None:
        self.id = f"{number:040x}"
        self.number = number
        self.keys: set[bytes] = set()
        self.leaving: dict[int, str] = {}  # hash slots that it gives away key by key, and who takes them
        self.epoch = number

    def scan(self, cursor: int) -> tuple[int, list[bytes]]:
        begin, end = cursor % BUCKETS, cursor % BUCKETS + PAGE
        found = [key for key in sorted(self.keys) if begin <= self.bucket(key) < end]
        return (end if end < BUCKETS else 0), found

    def bucket(self, key: bytes) -> int:
        return zlib.crc32(b"%d %b" % (self.number, key)) % BUCKETS


class ModelCluster:
    """Some primaries with all hash slots, and keys."""

    def __init__(self, nodes: int, keys: Iterable[bytes], chance: random.Random) -> None:
        self.chance = chance
        self.nodes = [ModelNode(number + 1) for number in range(nodes)]
        self.owners = [self.nodes[slot * nodes // SLOTS] for slot in range(SLOTS)]
        self.keys = list(keys)
        self.calls = 0
        self._topology: Topology | None = None  # until something happens
        self._ranges_of: dict[ModelNode, list[tuple[int, int]]] | None = None
        self._born = nodes
        for key in self.keys:
            self.owners[hash_slot(key)].keys.add(key)

    def text(self, asked: ModelNode) -> bytes:
        """What a node answers to CLUSTER NODES."""
        return "".join(self._line(one, is_asked=one is asked) for one in self.nodes).encode()

    def _line(self, node: ModelNode, *, is_asked: bool) -> str:
        if self._ranges_of is None:
            self._ranges_of = self._ranges()
        words = [
            node.id,
            f"10.0.0.1:{node.number}@1",
            "myself,master" if is_asked else "master",
            "-",
            "0",
            "0",
        ]
        words += [str(node.epoch), "connected"]
        words += [f"{first}-{last}" for first, last in self._ranges_of[node]]
        words += [f"[{slot}->-{taker}]" for slot, taker in node.leaving.items()] if is_asked else []
        return " ".join(words) + "\n"

    def _ranges(self) -> dict[ModelNode, list[tuple[int, int]]]:
        found: dict[ModelNode, list[tuple[int, int]]] = {node: [] for node in self.nodes}
        slot = 0
        for owner, group in itertools.groupby(self.owners):
            count = len(list(group))
            found[owner].append((slot, slot + count - 1))
            slot += count
        return found

    def topology(self) -> Topology:
        if self._topology is None:
            self._topology = topology_in(self.text(self.nodes[0]), "10.0.0.1")
        return self._topology

    def at(self, node_id: str) -> ModelNode | None:
        return next((one for one in self.nodes if one.id == node_id), None)

    # -- what happens

    def move(self, slots: Iterable[int], taker: ModelNode) -> None:
        """Hash slots go to another node, with all their keys."""
        moving = set(slots)
        for slot in moving:
            self.owners[slot].leaving.pop(slot, None)
            self.owners[slot] = taker
        for node in self.nodes:
            keys = {key for key in node.keys if hash_slot(key) in moving}
            if node is not taker:
                node.keys -= keys
                taker.keys |= keys
        self._raise_epoch(taker)
        self._topology = self._ranges_of = None
        self.nodes = [one for one in self.nodes if one.keys or one in set(self.owners)]

    def _raise_epoch(self, node: ModelNode) -> None:
        highest = max(one.epoch for one in self.nodes)
        if node.epoch < highest:  # as Redis: the highest stays
            node.epoch = highest + 1

    def move_keys(self) -> None:
        """Some keys of a hash slot go to the node that takes it, one by one."""
        key = self.chance.choice(self.keys)
        slot = hash_slot(key)
        giver = self.owners[slot]
        if slot not in giver.leaving:
            if len(self.nodes) < 2:
                return
            giver.leaving[slot] = self.chance.choice([one for one in self.nodes if one is not giver]).id
        taker = self.at(giver.leaving[slot])
        if taker is None:
            giver.leaving.pop(slot)
            return
        for one in [one for one in giver.keys if hash_slot(one) == slot]:
            if self.chance.random() < 0.7:
                giver.keys.remove(one)
                taker.keys.add(one)

    def finish_moving(self) -> None:
        """A hash slot whose keys went one by one has a new owner."""
        leaving = [(slot, taker) for one in self.nodes for slot, taker in one.leaving.items()]
        if leaving:
            slot, taker_id = self.chance.choice(leaving)
            taker = self.at(taker_id)
            if taker is not None:
                self.move([slot], taker)

    def fail_over(self) -> None:
        """A replica takes the place of a primary: another node, with the same keys in another order."""
        node = self.chance.choice(self.nodes)
        if node.leaving or any(node.id in one.leaving.values() for one in self.nodes):
            return
        self._born += 1
        heir = ModelNode(self._born)
        heir.keys = set(node.keys)
        heir.epoch = max(one.epoch for one in self.nodes) + 1
        self.nodes[self.nodes.index(node)] = heir
        self.owners = [heir if owner is node else owner for owner in self.owners]
        self._topology = self._ranges_of = None

    def happen(self) -> None:
        """Something happens."""
        kind = self.chance.choice(["range", "slot", "keys", "keys", "finish", "fail", "split", "merge"])
        taker = self.chance.choice(self.nodes)
        if kind == "range":
            first = self.chance.randrange(SLOTS)
            self.move(range(first, min(first + self.chance.choice([1, 30, 3000]), SLOTS)), taker)
        elif kind == "slot":
            self.move([hash_slot(self.chance.choice(self.keys))], taker)
        elif kind == "keys":
            self.move_keys()
        elif kind == "finish":
            self.finish_moving()
        elif kind == "fail":
            self.fail_over()
        elif kind == "split" and len(self.nodes) < 6:
            self._born += 1
            self.nodes.append(ModelNode(self._born))
            half = [slot for slot, owner in enumerate(self.owners) if owner is taker and slot // 99 % 2]
            self.move(half, self.nodes[-1])
        elif kind == "merge" and len(self.nodes) > 2 and not taker.leaving:
            other = self.chance.choice([one for one in self.nodes if one is not taker])
            self.move([slot for slot, owner in enumerate(self.owners) if owner is other], taker)

    # -- a client

    def scan(self, cursor: bytes, known: Topology) -> tuple[bytes, list[bytes]] | None:
        """A client's SCAN, with the topology that keyfence knows; None: a node cannot be asked."""
        self.calls += 1
        step = Step([b"SCAN", cursor], known)
        node = self.at(step.node)
        if node is None:
            return None
        at, keys = node.scan(int(step.request.split(b"\r\n")[4]))
        page = encode.command(*keys) if keys else b"*0\r\n"
        reply = step.answered(b"*2\r\n$%d\r\n%d\r\n%b" % (len(b"%d" % at), at, page))
        if reply is None:
            owner = self.at(step.owner)
            if owner is None:
                return None
            reply = step.confirmed(self.text(owner), "10.0.0.1")
        assert reply.startswith(b"*2\r\n"), reply
        assert reply.endswith(page)
        return reply.split(b"\r\n")[2], keys
