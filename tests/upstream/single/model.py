"""A model of a cluster and of clients behind one address, without sockets: random schedules play it.

Rule: the shares, the order, the cutting and the exchanges are the real ones. Each node has its own view of
who has a hash slot, which lags behind; keys move one by one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.resp.frames import tree
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart, ReplyFramer
from keyfence.resp.requests import RequestReader
from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.exchange import Exchange, Share, Sharer
from keyfence.upstream.single.masters import Masters
from keyfence.upstream.single.shares import ClusterShares

PROFILE = Profile()
OK = b"+OK\r\n"
TAGS = [b"{%d}" % number for number in range(6)]
KEYS = [tag + name for tag in TAGS for name in (b"a", b"b")]
HOST = "10.0.0.1"
SPLITS = frozenset({b"MGET", b"DEL"})


class Later:
    """Calls back in any order of time; a schedule says when."""

    def __init__(self) -> None:
        self.waiting: list[Timer] = []

    def __call__(self, seconds: float, act: Callable[[], None]) -> Timer:
        timer = Timer(self, seconds, act)
        self.waiting.append(timer)
        return timer

    def run_next(self) -> None:
        timer = min(self.waiting, key=lambda one: one.seconds)
        self.waiting.remove(timer)
        timer.act()


class Timer:
    def __init__(self, later: Later, seconds: float, act: Callable[[], None]) -> None:
        self.later, self.seconds, self.act = later, seconds, act

    def cancel(self) -> None:
        if self in self.later.waiting:
            self.later.waiting.remove(self)


class Link(Share):
    """A client's share of the one connection to a node."""

    def __init__(self, server: Server, sharer: Sharer) -> None:
        super().__init__(sharer)
        self.kind = PROFILE.kind
        self.is_evicted = False
        self.is_timed = False
        self._server = server
        self._exchange = server.exchange

    @property
    def is_held(self) -> bool:
        return not self._exchange.is_open

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool = False) -> None:
        if not self.awaited:
            self._exchange = self._server.exchange
        self._exchange.send(self, chunks, counts, shapeable)

    def close(self) -> None:
        if self.awaited and not self._exchange.is_open:
            self._exchange.withdraw(self)
        self.sharer = None


class Pools:
    def __init__(self, server: Server) -> None:
        self._server = server

    def link(self, _profile: Profile, sharer: Sharer) -> Link:
        return Link(self._server, sharer)

    def retire(self) -> None:
        pass


def ignore(_word: str) -> None:
    """An error for a client that has gone."""


class Upstream:
    def __init__(self, port: int) -> None:
        self.up: bool | None = True
        self.address = type("Address", (), {"host": HOST, "port": port})


class Server:
    """One node, and the connection that all clients share."""

    def __init__(self, number: int, cluster: ModelCluster) -> None:
        self.number = number
        self.upstream = Upstream(7000 + number)
        self.exchange = Exchange(cluster.faults.append, ignore)
        self.exchange.open()
        self.keys: dict[bytes, bytes] = {}
        self.owners: dict[int, int] = {}  # of hash slots, as this node knows it
        self.migrates: dict[int, int] = {}  # hash slots, and where they go
        self.imports: set[int] = set()
        self.is_down = False  # it holds the cluster to be down
        self.queued: list[list[bytes]] | None = None  # commands of an open transaction
        self.is_aborted = False
        self.to_client = bytearray()
        self._cluster = cluster
        self._asking = False
        self._reader = RequestReader(IDENTIFIED)

    def go_away(self) -> None:
        """Nobody reaches it, and no reply is due."""
        self.exchange = Exchange(self._cluster.faults.append, ignore)
        self.upstream.up = False

    def come_back(self) -> None:
        self.upstream.up = True
        if not self.exchange.is_open:
            self.exchange.open()

    def take_in(self) -> None:
        if not self.exchange.is_open:
            return
        for chunk in self.exchange.output:
            self._reader.feed(chunk)
            while (argv := self._reader.next()) is not None:
                self._inbox.append(argv)
        self.exchange.output.clear()

    @property
    def _inbox(self) -> deque[list[bytes]]:
        return self._cluster.inboxes[self.number]

    def work(self) -> None:
        """Carry out the next request."""
        self.take_in()
        if self._inbox:
            argv = self._inbox.popleft()
            asking, self._asking = self._asking, argv[0] == b"ASKING"
            self.to_client += self._answer([argv[0].upper(), *argv[1:]], asking)

    def _answer(self, argv: list[bytes], asking: bool) -> bytes:
        name, *rest = argv
        if name in (b"ASKING", b"PING"):
            return OK
        if name == b"HELLO":  # a barrier
            return b"-ERR Syntax error in HELLO option '%b'\r\n" % rest[1]
        if name == b"ECHO":
            return b"$%d\r\n%b\r\n" % (len(rest[0]), rest[0])
        if name == b"MULTI":
            self.queued, self.is_aborted = [], False
            return OK
        if name == b"EXEC":
            queued, self.queued = self.queued or [], None
            if self.is_aborted:
                return b"-EXECABORT Transaction discarded because of previous errors.\r\n"
            refused = [one for one in (self._refusal(each, asking) for each in queued) if one]
            return refused[0] if refused else b"*%d\r\n" % len(queued) + b"".join(map(self._run, queued))
        refusal = self._refusal(argv, asking)
        if self.queued is not None:
            self.is_aborted = self.is_aborted or bool(refusal)
            self.queued.append(argv)
            return refusal or b"+QUEUED\r\n"
        return refusal or self._run(argv)

    def _refusal(self, argv: list[bytes], asking: bool) -> bytes:
        name, *rest = argv
        keys = rest[::2] if name == b"MSET" else rest if name in SPLITS else rest[:1]
        slot = hash_slot(keys[0])
        if self.is_down:
            return b"-CLUSTERDOWN The cluster is down\r\n"
        if any(hash_slot(key) != slot for key in keys):
            return b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
        here = [key in self.keys for key in keys]
        if self.owners[slot] == self.number:
            target = self.migrates.get(slot)
            if target is None or all(here):
                return b""
            if any(here):
                return b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
            return b"-ASK %d %b:%d\r\n" % (slot, HOST.encode(), 7000 + target)
        if slot in self.imports and asking:
            is_split = len(keys) > 1 and not all(here)
            return b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n" if is_split else b""
        return b"-MOVED %d %b:%d\r\n" % (slot, HOST.encode(), 7000 + self.owners[slot])

    def _run(self, argv: list[bytes]) -> bytes:
        name, *rest = argv
        if name == b"SET":
            self.keys[rest[0]] = rest[1]
            return OK
        if name == b"MSET":
            self.keys |= dict(zip(rest[::2], rest[1::2], strict=True))
            return OK
        if name == b"DEL":
            return b":%d\r\n" % sum(self.keys.pop(key, None) is not None for key in rest)
        found = [self.keys.get(key) for key in rest]
        bulks = [b"$-1\r\n" if one is None else b"$%d\r\n%b\r\n" % (len(one), one) for one in found]
        return bulks[0] if name == b"GET" else b"*%d\r\n%b" % (len(bulks), b"".join(bulks))

    def deliver(self, size: int) -> None:
        """Hand on some bytes of the replies."""
        data = bytes(self.to_client[:size])
        del self.to_client[:size]
        if data:
            doubt = self.exchange.receive(data)
            assert not doubt, doubt
            self.exchange.end_turn()


def values_in(reply: bytes) -> list[bytes]:
    frame = tree(reply)
    return [one.text or b"" for one in frame.items or [frame]]


class ModelClient(Sharer):
    """Writes rising values, and knows what each of its replies must be. No other client writes its keys."""

    def __init__(self, cluster: ModelCluster, name: bytes, *, splits: bool = False) -> None:
        self.shares = ClusterShares(self, cluster.masters)
        self.splits = splits
        if splits:
            self.shares.split(SPLITS)
        self.expected: deque[list[bytes]] = deque()
        self.values: dict[bytes, bytes] = {}
        self.unsure: dict[bytes, bytes] = {}  # values of keys that a failed DEL may have deleted
        self.replies = 0
        self.errors: list[bytes] = []
        self.lost = ""
        self.name = name
        self._number = 0
        self._framer = ReplyFramer()
        self._part = b""
        self._slots: deque[int] = deque()  # requests that were sent together
        self._queued: list[list[bytes]] = []

    def key(self, chosen: random.Random) -> bytes:
        return chosen.choice(KEYS) + self.name

    def command(self, chosen: random.Random) -> list[bytes]:
        key = self.key(chosen)
        self._number += 1
        if self.splits and chosen.random() < 0.3:
            keys = [self.key(chosen) for _ in range(chosen.randint(1, 8))]
            return chosen.choice([[b"MGET", *keys], [b"mget", *keys], [b"DEL", *keys]])
        value = b"%b=%d" % (key, self._number)
        other = key[:3] + (b"b" if key[3:4] == b"a" else b"a") + key[4:]
        return chosen.choice(
            [
                [b"SET", key, value],
                [b"SET", key, value],
                [b"GET", key],
                [b"GET", key],
                [b"MSET", key, value, other, b"%b=%d" % (other, self._number)],
                [b"MGET", key, other],
                [b"PING"],
            ]
        )

    def send(self, chosen: random.Random) -> None:
        if self.lost:
            return
        chunks, counts = [], []
        for _ in range(chosen.randint(1, 3)):
            commands = [self.command(chosen) for _ in range(chosen.randint(1, 6))]
            if chosen.random() < 0.2:
                tag = chosen.choice(TAGS)
                commands = [
                    [b"MULTI"],
                    [b"SET", tag + b"a" + self.name, b"%b=%d" % (tag, self._number)],
                    [b"GET", tag + b"a" + self.name],
                    [b"EXEC"],
                ]
            chunks.append(b"".join(encode.command(*one) for one in commands))
            counts.append(len(commands))
            self.expect(*commands)
        self.shares.may_share(PROFILE)
        self.shares.send(chunks, counts, chosen.random() < 0.1)

    def expect(self, *commands: list[bytes]) -> None:
        self.expected.extend(commands)
        self._slots.append(len(commands))

    def ask(self, *commands: list[bytes]) -> None:
        """Send these commands together."""
        self.expect(*commands)
        self.shares.may_share(PROFILE)
        self.shares.send([b"".join(encode.command(*one) for one in commands)], [len(commands)], False)

    # -- as `ClusterShares` uses it

    def shared_replies(self, link: Any, data: bytes, completed: int, whole: bool) -> None:  # noqa: ARG002
        assert self._slots[0] >= completed, "replies straddle what was sent together"
        self._slots[0] -= completed
        if not self._slots[0]:
            self._slots.popleft()
        at = seen = 0
        while at < len(data):
            begin, at = at, self._framer.advance(data, at, 1)
            self._framer.take_errors()
            self._part += data[begin:at]
            if self._framer.completed:
                reply, self._part = self._part, b""
                seen += 1
                self._check(self.expected.popleft(), reply)
        assert seen == completed
        assert self._framer.at_boundary == whole

    def _check(self, argv: list[bytes], reply: bytes) -> None:
        self.replies += 1
        name, *rest = argv
        name = name.upper()
        assert HOST.encode() not in reply
        if name == b"MULTI":
            self._queued = []
            return
        if name == b"EXEC":
            if reply.startswith(b"*"):
                (_, key, value), _ = self._queued
                assert reply == b"*2\r\n+OK\r\n$%d\r\n%b\r\n" % (len(value), value)
                self.values[key] = value
            else:
                assert reply.startswith((b"-EXECABORT", b"-TRYAGAIN", b"-CLUSTERDOWN")), reply
                self.errors.append(reply)
            return
        if reply == b"+QUEUED\r\n":
            self._queued.append(argv)
            return
        if reply.startswith(b"-"):
            is_across = len({*map(hash_slot, rest)}) > 1 and reply.startswith(b"-CROSSSLOT")
            known = (b"-TRYAGAIN", b"-CLUSTERDOWN", b"-ERR the nodes' replies")
            assert is_across or reply.startswith(known), reply
            self.errors.append(reply)
            if name == b"DEL":
                self.unsure |= {key: self.values.pop(key) for key in {*rest} if key in self.values}
        elif name in (b"SET", b"MSET"):
            assert reply == OK
            self.values |= dict(zip(rest[::2], rest[1::2], strict=True))
            self.unsure = {key: value for key, value in self.unsure.items() if key not in self.values}
        elif name == b"DEL":
            deleted = len({*rest} & self.values.keys())
            assert deleted <= int(reply[1:-2]) <= deleted + len({*rest} & self.unsure.keys())
            for key in rest:
                self.values.pop(key, None)
                self.unsure.pop(key, None)
        elif name in (b"GET", b"MGET"):
            for key, value in zip(rest, values_in(reply), strict=True):
                if key in self.unsure and value == self.unsure.pop(key):
                    self.values[key] = value
                assert value == self.values.get(key, b""), (argv, reply)

    def shared_errors(self, link: Any, data: bytes, errors: list[ErrorPart], at: int) -> bytes:  # noqa: ARG002
        return data

    def shared_sent(self, link: Any) -> None:
        pass

    def shared_turn(self, link: Any) -> None:
        pass

    def shared_lost(self, link: Any, reason: str) -> None:  # noqa: ARG002
        self.lost = reason

    def upstream_full(self, link: object, full: bool) -> None:
        pass


class ModelCluster:
    """Three nodes, and what happens to them."""

    def __init__(self, seed: int, clients: int = 2, *, splits: bool = False) -> None:
        """`splits`: the clients' commands are sent in parts."""
        self.random = random.Random(seed)
        self.faults: list[str] = []
        self.signs: list[str] = []
        self.later = Later()
        self.masters = Masters(1, 1.0, self.signs.append, self.later)
        self.masters.clock = lambda: 0.0  # pauses that a change cuts short take no time
        self.inboxes: list[deque[list[bytes]]] = [deque() for _ in range(3)]
        self.servers = [Server(number, self) for number in range(3)]
        self.slots = sorted({hash_slot(tag) for tag in TAGS})
        self.owner = {slot: index % 3 for index, slot in enumerate(self.slots)}
        self._epoch = 1
        for one in self.servers:
            one.owners = dict(self.owner)
        self.tell()
        self.clients = [ModelClient(self, b":%d" % number, splits=splits) for number in range(clients)]

    def tell(self, *, without: int | None = None) -> None:
        """keyfence learns who has the hash slots. `without`: this node has left."""
        there = [one for one in self.servers if one.number != without]
        nodes = [
            Node(
                f"n{one.number}",
                HOST,
                7000 + one.number,
                slots=tuple((slot, slot) for slot in self.slots if self.owner[slot] == one.number),
            )
            for one in there
        ]
        upstreams: dict[str, Any] = {f"n{one.number}": one.upstream for one in there}
        self.masters.take(Topology(nodes), upstreams)
        for server in there:
            pools: Any = Pools(server)
            self.masters[server.number].pools = pools

    def node_of(self, key: bytes) -> int:
        return self.owner[hash_slot(key)]

    # -- what may happen

    def migrate(self) -> None:
        slot = self.random.choice(self.slots)
        source = self.servers[self.owner[slot]]
        if slot not in source.migrates and all(slot not in one.imports for one in self.servers):
            target = self.random.choice([one for one in self.servers if one is not source])
            target.imports.add(slot)
            source.migrates[slot] = target.number

    def move_key(self) -> None:
        moving = [(one, slot, to) for one in self.servers for slot, to in one.migrates.items()]
        if moving:
            source, slot, to = self.random.choice(moving)
            keys = [key for key in source.keys if hash_slot(key) == slot]
            if keys:
                key = self.random.choice(keys)
                self.servers[to].keys[key] = source.keys.pop(key)

    def end_migration(self) -> None:
        for source in self.servers:
            for slot, to in list(source.migrates.items()):
                if all(hash_slot(key) != slot for key in source.keys):
                    self.owner[slot] = to
                    target = self.servers[to]
                    target.owners[slot] = to
                    target.imports.discard(slot)
                    source.owners[slot] = to
                    del source.migrates[slot]
                    return

    def gossip(self) -> None:
        self.random.choice(self.servers).owners.update(self.owner)

    def go_down(self) -> None:
        one = self.random.choice(self.servers)
        one.is_down = not one.is_down

    def go_away(self) -> None:
        one = self.random.choice(self.servers)
        if one.exchange.is_open and one.exchange.due is None and not one.to_client:
            one.go_away()

    def come_back(self) -> None:
        self.random.choice(self.servers).come_back()

    def fail_over(self) -> None:
        """Another node takes over what a node has that nobody reaches."""
        for one in self.servers:
            moving = {*one.migrates, *one.imports}
            slots = [slot for slot in self.slots if self.owner[slot] == one.number and slot not in moving]
            heirs = [heir for heir in self.servers if heir.exchange.is_open]
            if not one.exchange.is_open and slots and heirs:
                heir = self.random.choice(heirs)
                for slot in slots:
                    self.owner[slot] = heir.number
                for key in [key for key in one.keys if hash_slot(key) in slots]:
                    heir.keys[key] = one.keys.pop(key)
                for server in self.servers:
                    server.owners.update(dict.fromkeys(slots, heir.number))
                self.tell()

    def step(self) -> None:
        happens = self.random.random()
        if happens < 0.3:
            self.random.choice(self.servers).work()
        elif happens < 0.55:
            server = self.random.choice(self.servers)
            server.deliver(self.random.choice([1, 3, 20, 200]))
        elif happens < 0.65:
            self.random.choice(self.clients).send(self.random)
        elif happens < 0.8:
            if self.later.waiting:
                self.later.run_next()
        else:
            self.random.choice(
                [
                    *(self.migrate, self.move_key, self.move_key, self.move_key, self.end_migration),
                    *(self.gossip, self.gossip, self.tell, self.go_down),
                    *(self.go_away, self.come_back, self.come_back, self.fail_over),
                ]
            )()

    def settle(self) -> None:
        """Nothing happens to the nodes any more, and all replies come."""
        for one in self.servers:
            one.come_back()
            one.is_down = False
            one.owners = dict(self.owner)
            for slot, to in one.migrates.items():
                for key in [key for key in one.keys if hash_slot(key) == slot]:
                    self.servers[to].keys[key] = one.keys.pop(key)
        while any(one.migrates for one in self.servers):
            self.end_migration()
        self.tell()
        for one in self.servers:
            one.owners = dict(self.owner)
        for _ in range(10_000):
            if not any(one.expected for one in self.clients if not one.lost):
                return
            self.go_round()
        raise AssertionError("replies are missing")

    def go_round(self) -> None:
        """Each node answers something."""
        for server in self.servers:
            server.work()
            server.deliver(1_000)
        if self.later.waiting:
            self.later.run_next()
