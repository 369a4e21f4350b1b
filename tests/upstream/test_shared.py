"""Connections that are shared: what is written when, and whose the replies are."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.resp.profile import Profile
from keyfence.upstream.health import Upstream, UpstreamAddress
from keyfence.upstream.pools import Pools
from keyfence.upstream.shared import SharedLink, Sharer
from tests.downstream.test_client import in_loop


class Recorder(Sharer):
    """A client that keeps what it is told."""

    def __init__(self) -> None:
        self.replies: list[tuple[bytes, int, bool]] = []
        self.lost = ""

    def shared_replies(self, data: bytes, completed: int, whole: bool) -> None:
        self.replies.append((data, completed, whole))

    def shared_turn(self) -> None:
        """Nothing is kept for the turn's end."""

    def upstream_refused(self, reason: str) -> None:
        self.lost = reason

    def shared_lost(self, reason: str) -> None:
        self.lost = reason

    def upstream_full(self, full: bool) -> None:
        raise AssertionError(f"upstream_full({full})")


class Written(asyncio.Transport):
    """Where a connection writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""


class Shared:
    """Clients on one connection that is made by hand."""

    def __init__(self, patch: pytest.MonkeyPatch, clients: int) -> None:
        upstream = self.upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", 1, shown="fake"))

        async def never(_factory: object) -> None:
            await asyncio.Event().wait()

        patch.setattr(upstream, "connect", never)
        pools = self.pools = Pools(upstream, 1)
        self.clients = [Recorder() for _ in range(clients)]
        self.links: list[SharedLink] = []
        for client in self.clients:
            link = pools.link(Profile(), client)
            assert link is not None
            self.links.append(link)
        self.transport = Written()

    async def open(self) -> None:
        """Have every client send once, and the connection made and answered."""
        for link in self.links:
            link.send([b"first"], [1])
        connection = self.links[0]._connection
        assert connection is not None
        assert all(link._connection is connection for link in self.links)
        self.connection = connection
        connection.connection_made(self.transport)
        assert self.taken() == [b"first" * len(self.links)]
        self.connection.data_received(b"+OK\r\n" * len(self.links))
        await asyncio.sleep(0)

    def all_send(self, count: int) -> None:
        """Have every client send a piece of so many requests, and forget what it was told before."""
        for client, link in zip(self.clients, self.links, strict=True):
            client.replies.clear()
            link.send([b"a"], [count])

    def taken(self) -> list[bytes]:
        pieces, self.transport.pieces = self.transport.pieces, []
        return pieces


@in_loop
async def test_what_several_clients_send_in_one_turn_is_written_as_one_piece(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 3)
    await shared.open()
    for link in shared.links:
        link.send([b"a", b"b"], [1, 1])
    assert shared.taken() == []
    await asyncio.sleep(0)
    assert shared.taken() == [b"ababab"]


@in_loop
async def test_where_one_client_alone_works_nothing_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    link = shared.links[0]
    at_once = []
    for _ in range(40):
        link.send([b"a"], [1])
        at_once.append(shared.taken() == [b"a"])
        await asyncio.sleep(0)
        shared.taken()
        shared.connection.data_received(b"+OK\r\n")
    assert at_once == sorted(at_once)  # first not, then always
    assert at_once[-1]
    assert [reply for reply in shared.clients[0].replies if reply != (b"+OK\r\n", 1, True)] == []


@in_loop
async def test_once_another_sends_meanwhile_their_requests_are_collected_again(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    one, other = shared.links
    for _ in range(40):
        one.send([b"a"], [1])
        await asyncio.sleep(0)
        shared.connection.data_received(b"+OK\r\n")
    shared.taken()
    one.send([b"a"], [1])
    assert shared.taken() == [b"a"]
    other.send([b"b"], [1])
    one.send([b"c"], [1])
    assert shared.taken() == []
    await asyncio.sleep(0)
    assert shared.taken() == [b"bc"]
    shared.connection.data_received(b":1\r\n:2\r\n:3\r\n")
    assert shared.clients[0].replies[-2:] == [(b":1\r\n", 1, True), (b":3\r\n", 1, True)]
    assert shared.clients[1].replies[-1:] == [(b":2\r\n", 1, True)]


@in_loop
async def test_a_reply_in_pieces_is_its_clients_alone(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.all_send(2)
    shared.connection.data_received(b":1\r\n$5\r\nhe")
    shared.connection.data_received(b"llo\r\n:2\r\n")
    shared.connection.data_received(b":3\r\n")
    assert shared.clients[0].replies == [(b":1\r\n$5\r\nhe", 1, False), (b"llo\r\n", 1, True)]
    assert shared.clients[1].replies == [(b":2\r\n", 1, True), (b":3\r\n", 1, True)]


@in_loop
async def test_who_has_gone_leaves_replies_that_nobody_gets(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.all_send(1)
    shared.links[0].close()
    shared.connection.data_received(b":1\r\n:2\r\n")
    assert shared.clients[0].replies == []
    assert shared.clients[1].replies == [(b":2\r\n", 1, True)]


@in_loop
async def test_a_reply_that_nothing_asked_for_ends_the_connection_for_all_that_wait(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.links[1].send([b"a"], [1])
    shared.connection.data_received(b":1\r\n:2\r\n")
    assert shared.connection.is_closed
    shared.links[0].send([b"a"], [1])
    assert shared.links[0]._connection is not shared.connection
