"""A client's reads at a replica: its replies come in its order, and it never reads what is older than what it
knows. The nodes are simulated; connections, exchanges and checks are the real ones."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import cast

import pytest

from keyfence.resp import encode
from keyfence.resp.limits import RequestLimits
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart
from keyfence.resp.requests import RequestReader
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.attempt import Attempt
from keyfence.upstream.exchange import Share, Sharer
from keyfence.upstream.health import Upstream
from keyfence.upstream.pools import Pools
from keyfence.upstream.replicas import replica, replicas, whereabouts
from keyfence.upstream.replicas.position import Position
from keyfence.upstream.replicas.reading import ReadingLinks
from keyfence.upstream.replicas.replicas import Replicas
from tests.downstream.test_client import in_loop

GET, INCR = encode.command(b"GET", b"k"), encode.command(b"INCR", b"k")
PROFILE = Profile()


class Node(asyncio.Transport):
    """A Redis with one number, which answers one request at a time when it is told to."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__()
        self.value = 0  # also how much has run here
        self.asked = 0  # GETs that it has answered
        self.requests: deque[list[bytes]] = deque()
        self._reader = RequestReader(RequestLimits())
        self._protocol: asyncio.Protocol | None = None
        upstream.connect = self._connect  # type: ignore[method-assign]

    async def _connect(self, attempt: Attempt) -> None:
        attempt.protocol().connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._reader.feed(bytes(data))
        while (argv := self._reader.next()) is not None:
            self.requests.append(argv)

    def writelines(self, _list_of_data: object) -> None:
        raise AssertionError("a handshake needs no commands")

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Nobody listens any more."""

    def abort(self) -> None:
        """Nobody listens any more."""

    def answer(self, most: int = 1_000_000) -> None:
        """Answers what was asked."""
        replies = b""
        while self.requests and most:
            most -= 1
            argv = self.requests.popleft()
            name = argv[0].upper()
            if name == b"ECHO":
                replies += b"$%d\r\n%b\r\n" % (len(argv[1]), argv[1])
                continue
            self.value += name == b"INCR"
            self.asked += name == b"GET"
            replies += b":%d\r\n" % self.value
        if replies:
            assert self._protocol is not None
            self._protocol.data_received(replies)

    def lose(self) -> None:
        """The connection ends."""
        protocol, self._protocol = self._protocol, None
        self.requests.clear()
        self._reader = RequestReader(RequestLimits())
        assert protocol is not None
        protocol.connection_lost(None)


class Reader(Sharer):
    """A client that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.lost: list[str] = []
        self._part = b""

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:  # noqa: ARG002
        self._part += data
        *lines, self._part = self._part.split(b"\r\n")
        self.got += [int(line[1:]) for line in lines]

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:  # noqa: ARG002
        return data

    def shared_turn(self, link: Share) -> None:
        """It has taken its replies."""

    def shared_lost(self, link: Share, reason: str) -> None:  # noqa: ARG002
        self.lost.append(reason)

    def upstream_full(self, link: object, full: bool) -> None:
        """It sends no more."""


class Stage:
    """A primary, replicas, and clients."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int = 1) -> None:
        primary = Upstream(UpstreamAddress("tcp", "primary", 1, shown="primary"))
        named = [(f"replica{number}", 1) for number in range(count)]
        self.all = Replicas(primary, 1, [b"GET"], named)
        self.primary = Node(primary)
        self.nodes = [Node(one.upstream) for one in self.all]
        by_upstream = {id(primary): self.primary}
        by_upstream |= {id(one.upstream): node for one, node in zip(self.all, self.nodes, strict=True)}
        self.silent: set[Node] = set()

        async def position_of(upstream: Upstream) -> Position:
            await asyncio.sleep(0)
            node = by_upstream[id(upstream)]
            if node in self.silent:
                raise ConnectionRefusedError
            role = "master" if node is self.primary else "slave"
            return Position(role, "history", node.value, "it is a primary" if role == "master" else "")

        patch.setattr(replicas, "position_of", position_of)
        patch.setattr(replica, "position_of", position_of)
        self._pools = Pools(primary, 1)
        self.open: list[ReadingLinks] = []

    def reads(self, client: Sharer, after_write: float = 0.0) -> ReadingLinks:
        links = ReadingLinks(client, self._pools, self.all, after_write)
        assert links.may_share(PROFILE)
        self.open.append(links)
        return links

    async def client(self, after_write: float = 0.0) -> tuple[Reader, ReadingLinks]:
        """A client whose next read goes to a replica."""
        client = Reader()
        links = self.reads(client, after_write)
        for _ in range(2):
            await self.settle()
            links.send([GET], [1], False)  # the first one has the connections opened
        await self.settle()
        client.got.clear()
        for node in self.nodes:
            node.asked = 0
        return client, links

    async def settle(self) -> None:
        """Everything is answered, and all is known."""
        for _ in range(3):
            await asyncio.sleep(0.002)  # uvloop's clock counts milliseconds
            self.primary.answer()
            for node in self.nodes:
                node.value = self.primary.value
                node.answer()
            await self.all.check()

    async def end(self) -> None:
        for links in self.open:
            links.close()
        await asyncio.sleep(0)


@in_loop
async def test_a_client_reads_at_a_replica_and_writes_at_the_primary(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch)
    client, links = await stage.client()
    links.send([GET + GET], [2], False)
    links.send([INCR], [1], False)
    await stage.settle()
    assert client.got == [0, 0, 1]
    assert stage.nodes[0].asked == 2
    assert stage.primary.value == 1
    await stage.end()


@in_loop
async def test_a_write_waits_for_the_reads_before_it(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch)
    client, links = await stage.client()
    links.send([GET + INCR + GET], [3], False)
    await asyncio.sleep(0)
    assert not stage.primary.requests
    stage.nodes[0].answer()
    await asyncio.sleep(0)
    assert [argv[0] for argv in stage.primary.requests] == [b"INCR", b"GET"]
    stage.primary.answer()
    assert client.got == [0, 1, 1]
    await stage.end()


@in_loop
async def test_a_read_after_a_write_stays_at_the_primary_for_a_while(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch)
    client, links = await stage.client(after_write=3600.0)
    links.send([INCR], [1], False)
    await stage.settle()
    links.send([GET], [1], False)
    await stage.settle()
    assert client.got == [1, 1]
    assert stage.nodes[0].asked == 0
    await stage.end()


@in_loop
async def test_a_read_waits_for_a_check_before_it_returns_to_a_replica(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch)
    client, links = await stage.client()
    links.send([INCR], [1], False)
    await asyncio.sleep(0)
    stage.primary.answer()
    links.send([GET], [1], False)
    await asyncio.sleep(0)
    assert not stage.primary.requests
    assert not stage.nodes[0].requests
    await stage.all.check()  # the replica lags
    assert not stage.nodes[0].requests
    stage.nodes[0].value = 1
    await asyncio.sleep(0.002)  # uvloop's clock counts milliseconds
    await stage.all.check()
    await asyncio.sleep(0)
    stage.nodes[0].answer()
    assert client.got == [1, 1]
    assert stage.nodes[0].asked == 1
    await stage.end()


@in_loop
async def test_a_read_after_work_on_the_clients_own_connection_waits_for_a_check(
    patch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(patch)
    client, links = await stage.client()
    links.works_elsewhere()
    stage.primary.value = 1
    links.send([GET], [1], False)
    await asyncio.sleep(0)
    assert not stage.nodes[0].requests
    await stage.settle()
    await stage.settle()
    assert client.got == [1]
    await stage.end()


@in_loop
async def test_a_read_that_has_waited_too_long_goes_to_the_primary(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(whereabouts, "HOLD_SECONDS", 0.001)
    stage = Stage(patch)
    client, links = await stage.client()
    links.send([INCR], [1], False)
    await asyncio.sleep(0)
    stage.primary.answer()
    links.send([GET], [1], False)
    while not stage.primary.requests:
        await asyncio.sleep(0)
    stage.primary.answer()
    assert client.got == [1, 1]
    await stage.end()


@in_loop
async def test_without_a_replica_that_can_be_used_reads_go_to_the_primary(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch)
    client, links = await stage.client()
    stage.silent.add(stage.nodes[0])
    await stage.all.check()
    links.send([GET], [1], False)
    await asyncio.sleep(0)
    stage.primary.answer()
    assert client.got == [0]
    assert [one["reason"] for one in stage.all.status()] == ["connection refused"]
    await stage.end()


@in_loop
async def test_a_lost_replica_closes_only_clients_that_await_its_replies(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch)
    waiting, links = await stage.client()
    idle, others = await stage.client()
    links.send([GET], [1], False)
    await asyncio.sleep(0)
    stage.nodes[0].lose()
    assert (len(waiting.lost), idle.lost) == (1, [])
    others.send([GET], [1], False)
    await asyncio.sleep(0)
    stage.primary.answer()
    assert idle.got == [0]
    await stage.end()


@in_loop
async def test_a_connection_that_was_opened_after_the_check_is_not_used_before_the_next_one(
    patch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(patch)
    client, links = await stage.client()
    stage.nodes[0].lose()
    stage.all.tick()  # opens another one
    await asyncio.sleep(0)
    links.send([GET], [1], False)
    await asyncio.sleep(0)
    stage.primary.answer()
    assert (client.got, stage.nodes[0].asked) == ([0], 0)
    await stage.settle()
    links.send([GET], [1], False)
    await stage.settle()
    assert (client.got, stage.nodes[0].asked) == ([0, 0], 1)
    await stage.end()


@in_loop
async def test_clients_are_spread_over_the_replicas(patch: pytest.MonkeyPatch) -> None:
    stage = Stage(patch, count=2)
    for _ in range(4):
        await stage.client()
    assert [one.readers for one in stage.all] == [2, 2]
    await stage.end()
    assert [one.readers for one in stage.all] == [0, 0]


@pytest.mark.parametrize("seed", range(60))
def test_values_never_fall_and_replies_come_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random schedules of clients, nodes, replication and losses. Each number that a client gets is at least
    the one before, and after its own INCR at least that."""
    drawn = random.Random(seed)

    async def play() -> None:
        monkeypatch.setattr(whereabouts, "HOLD_SECONDS", drawn.choice([0.0, 0.001, 1.0]))
        stage = Stage(monkeypatch, count=drawn.choice([1, 2]))
        clients = [await stage.client() for _ in range(3)]
        sent = [0] * len(clients)
        for _ in range(300):
            act = drawn.random()
            if act < 0.35:
                number = drawn.randrange(len(clients))
                reader, links = clients[number]
                if reader.lost:
                    continue
                requests = [drawn.choice([GET, GET, GET, INCR]) for _ in range(drawn.randint(1, 4))]
                links.send([b"".join(requests)], [len(requests)], False)
                sent[number] += len(requests)
            elif act < 0.5:
                stage.primary.answer(drawn.randint(1, 5))
            elif act < 0.75:
                drawn.choice(stage.nodes).answer(drawn.randint(1, 5))
            elif act < 0.85:
                node = drawn.choice(stage.nodes)
                node.value = drawn.randint(node.value, stage.primary.value)
            elif act < 0.98:
                await stage.all.check()
                stage.all.tick()
            elif any(node._protocol is not None for node in stage.nodes):
                drawn.choice([node for node in stage.nodes if node._protocol is not None]).lose()
            await asyncio.sleep(0)
        for _ in range(8):
            await stage.settle()
        for (reader, _), count in zip(clients, sent, strict=True):
            assert reader.got == sorted(reader.got)
            assert reader.lost or len(reader.got) == count
        await stage.end()

    asyncio.run(play())
