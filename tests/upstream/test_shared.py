"""Shared connections: when requests are written, and which client gets a reply."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.net.closures import CREDENTIALS, lost
from keyfence.resp.profile import Profile
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.credentials.login import Login
from keyfence.upstream.exchange import Sharer
from keyfence.upstream.health import Upstream
from keyfence.upstream.pools import Pools
from keyfence.upstream.shared import SharedConnection, SharedLink
from tests.downstream.test_client import in_loop


class Recorder(Sharer):
    """A client that records its callbacks."""

    def __init__(self) -> None:
        self.replies: list[tuple[bytes, int, bool]] = []
        self.lost = ""

    def shared_replies(self, _link: object, data: bytes, completed: int, whole: bool) -> None:
        self.replies.append((data, completed, whole))

    def shared_turn(self, _link: object) -> None:
        """Nothing is deferred to the end of the turn."""

    def upstream_refused(self, _link: object, reason: str) -> None:
        self.lost = reason

    def shared_lost(self, _link: object, reason: str) -> None:
        self.lost = reason

    def upstream_full(self, _link: object, full: bool) -> None:
        raise AssertionError(f"upstream_full({full})")


class Written(asyncio.Transport):
    """The transport that a connection writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """There is nothing to close."""

    def abort(self) -> None:
        """There is nothing to close."""


class Shared:
    """Clients on one connection with a simulated transport."""

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
        """Have every client send once, and open the connection with all replies."""
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
        """Have every client send a chunk of that many requests, and forget earlier callbacks."""
        for client, link in zip(self.clients, self.links, strict=True):
            client.replies.clear()
            link.send([b"a"], [count])

    def taken(self) -> list[bytes]:
        pieces, self.transport.pieces = self.transport.pieces, []
        return pieces


@in_loop
async def test_requests_of_several_clients_in_one_turn_are_written_together(
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
async def test_requests_of_a_single_active_client_are_written_at_once(patch: pytest.MonkeyPatch) -> None:
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
    assert at_once == sorted(at_once)  # not at first, then always
    assert at_once[-1]
    assert [reply for reply in shared.clients[0].replies if reply != (b"+OK\r\n", 1, True)] == []


@in_loop
async def test_with_a_second_active_client_requests_are_collected_again(
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
async def test_a_reply_in_pieces_reaches_only_its_client(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.all_send(2)
    shared.connection.data_received(b":1\r\n$5\r\nhe")
    shared.connection.data_received(b"llo\r\n:2\r\n")
    shared.connection.data_received(b":3\r\n")
    assert shared.clients[0].replies == [(b":1\r\n$5\r\nhe", 1, False), (b"llo\r\n", 1, True)]
    assert shared.clients[1].replies == [(b":2\r\n", 1, True), (b":3\r\n", 1, True)]


@in_loop
async def test_what_a_client_sent_in_an_outage_is_not_sent_once_it_has_gone(
    patch: pytest.MonkeyPatch,
) -> None:
    """It may have asked again."""
    shared, connection = opened_after_two_have_left(patch, up=False)
    sent = b"".join(shared.taken())
    assert (b"<a0>" in sent, b"<a1>" in sent) == (False, False)
    assert sent.endswith(b"<a2><b2>")
    connection.data_received(answered(sent) + b"+OK\r\n" * 2)
    assert sum(completed for _, completed, _ in shared.clients[2].replies) == 2
    assert [client.lost for client in shared.clients] == [""] * 3


@in_loop
async def test_while_redis_is_up_a_client_may_send_and_go(patch: pytest.MonkeyPatch) -> None:
    shared, connection = opened_after_two_have_left(patch, up=True)
    sent = b"".join(shared.taken())
    assert sent.startswith(b"<a0><b0><a1><b1>")
    connection.data_received(b"+OK\r\n" * 4 + answered(sent) + b"+OK\r\n" * 2)
    assert sum(completed for _, completed, _ in shared.clients[2].replies) == 2


def opened_after_two_have_left(patch: pytest.MonkeyPatch, *, up: bool) -> tuple[Shared, SharedConnection]:
    """Three clients have sent two requests each, and two of them have gone before the connection opens. A
    barrier follows the second one's."""
    shared = Shared(patch, 3)
    for number, link in enumerate(shared.links):
        link.send([b"<a%d>" % number, b"<b%d>" % number], [1, 1], shapeable=number == 1)
    shared.upstream.up = up
    connection = shared.links[0]._connection
    assert connection is not None
    assert all(link.is_held for link in shared.links)
    shared.links[0].close()
    shared.links[1].close()
    connection.connection_made(shared.transport)
    assert not shared.links[2].is_held
    return shared, connection


def answered(sent: bytes) -> bytes:
    """The reply to the barrier in what was sent."""
    _, number, _ = sent.partition(b"HELLO\r\n$1\r\n2\r\n$")[2].split(b"\r\n", 2)
    return b"-ERR Syntax error in HELLO option '%b'\r\n" % number


@in_loop
async def test_replies_to_a_client_that_has_gone_are_dropped(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.all_send(1)
    shared.links[0].close()
    shared.connection.data_received(b":1\r\n:2\r\n")
    assert shared.clients[0].replies == []
    assert shared.clients[1].replies == [(b":2\r\n", 1, True)]


@in_loop
async def test_a_reply_without_a_request_ends_the_connection_for_all_that_wait(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.links[1].send([b"a"], [1])
    shared.connection.data_received(b":1\r\n:2\r\n")
    assert shared.connection.is_closed
    shared.links[0].send([b"a"], [1])
    assert shared.links[0]._connection is not shared.connection


# -- keyfence's login


LOGIN = Login(2, b"AUTH keyfence token", 1000.0, 2000.0)


@in_loop
async def test_the_answer_to_keyfences_login_reaches_no_client(patch: pytest.MonkeyPatch) -> None:
    for answer in (b"+OK\r\n", b"-WRONGPASS no\r\n", b"-READONLY no\r\n"):
        shared = Shared(patch, 2)
        await shared.open()
        shared.all_send(1)
        answers: list[bytes] = []
        assert shared.connection.log_in_again(LOGIN, answers.append)
        assert not shared.connection.log_in_again(LOGIN, answers.append)  # one is under way
        shared.links[0].send([b"b"], [1])
        await asyncio.sleep(0)
        assert b"".join(shared.taken()) == b"aa" + LOGIN.request + b"b"
        for byte in b":1\r\n:2\r\n" + answer + b":3\r\n":
            shared.connection.data_received(bytes([byte]))
        assert answers == [answer]
        texts = [b"".join(data for data, _, _ in one.replies) for one in shared.clients]
        assert texts == [b":1\r\n:3\r\n", b":2\r\n"]
        assert shared.connection.login is (LOGIN if answer == b"+OK\r\n" else None)
        assert not shared.connection.is_logging_in


@in_loop
async def test_keyfence_does_not_log_in_where_a_client_has(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 0)
    of_client = SharedConnection(shared.upstream, Profile(user=b"u", password=b"p"))
    assert of_client.is_clients
    assert not of_client.log_in_again(LOGIN, lambda _reply: None)
    not_open = SharedConnection(shared.upstream, Profile())
    assert not not_open.log_in_again(LOGIN, lambda _reply: None)


@in_loop
async def test_a_connection_whose_login_ends_is_left_by_those_who_await_nothing(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.links[0].send([b"a"], [1])
    shared.connection.login_ends(at_once=False)
    shared.links[0].send([b"a"], [1])  # its reply must not overtake the first one
    shared.links[1].send([b"a"], [1])
    assert shared.links[0]._connection is shared.connection
    assert shared.links[1]._connection is not shared.connection
    shared.connection.data_received(b":1\r\n:2\r\n")
    shared.connection.close_if_idle(0.0)
    assert shared.connection.is_closed
    assert [one.lost for one in shared.clients] == ["", ""]
    shared.links[0].send([b"a"], [1])
    assert shared.links[0]._connection is shared.links[1]._connection


@in_loop
async def test_at_its_end_a_connection_is_closed_with_those_who_wait(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.links[0].send([b"a"], [1])
    shared.connection.login_ends(at_once=True)
    assert [one.lost for one in shared.clients] == ["upstream fake: the login ends", ""]
    assert lost(shared.clients[0].lost).closure is CREDENTIALS


@in_loop
async def test_a_fault_in_one_client_ends_no_other(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 3)
    await shared.open()
    failed: list[Exception] = []

    def fault(*_: object) -> None:
        raise AssertionError("a fault of keyfence")

    first = shared.clients[0]
    patch.setattr(first, "shared_replies", fault)
    patch.setattr(first, "shared_failed", lambda _link, exc: failed.append(exc))
    shared.all_send(1)
    await asyncio.sleep(0)
    shared.connection.data_received(b":1\r\n:2\r\n:3\r\n")
    assert [one.replies for one in shared.clients[1:]] == [[(b":2\r\n", 1, True)], [(b":3\r\n", 1, True)]]
    assert not shared.connection.is_closed
    assert len(failed) == 1
