"""A client's two links to Redis: events on one do not affect replies due on the other."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.resp.encode import command
from keyfence.resp.profile import unchanged
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.dedicated import DedicatedLink, Owner
from keyfence.upstream.health import Upstream, UpstreamDown
from keyfence.upstream.links import Links
from keyfence.upstream.own_commands import PING
from keyfence.upstream.pools import Pools
from tests.downstream.test_client import in_loop
from tests.upstream.test_shared import Written


class RecordingOwner(Owner):
    """A client that records refusals."""

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def upstream_lost(self, _link: object, reason: str) -> None:
        self.refusals.append(reason)

    def upstream_full(self, _link: object, full: bool) -> None:
        """It sends no more requests."""


class Asked(Owner):
    """A client that records what comes on its dedicated connection."""

    def __init__(self) -> None:
        self.got: list[tuple[str, object, object]] = []

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        self.got.append(("data", link, data))

    def upstream_unasked(self, link: DedicatedLink, data: bytes) -> None:
        self.got.append(("unasked", link, data))

    def upstream_full(self, link: object, full: bool) -> None:
        self.got.append(("full", link, full))

    def upstream_lost(self, link: DedicatedLink, _reason: str) -> None:
        self.got.append(("lost", link, None))


def opened_link(client: Owner) -> tuple[DedicatedLink, Written]:
    """A dedicated connection that is open."""
    link, transport = DedicatedLink(Upstream(UpstreamAddress("tcp", "127.0.0.1", 1)), client), Written()
    link.connection_made(transport)
    return link, transport


@in_loop
async def test_what_comes_on_a_kept_connection_was_not_asked_for() -> None:
    client = Asked()
    link, _ = opened_link(client)
    link.send([b"GET"])
    link.data_received(b"+1\r\n")
    link.is_kept = True
    link.data_received(b">1\r\n+push\r\n")
    link.send([b"GET"])
    link.data_received(b"+2\r\n")
    assert client.got[0] == ("full", link, False)
    assert client.got[1:] == [
        ("data", link, b"+1\r\n"),
        ("unasked", link, b">1\r\n+push\r\n"),
        ("data", link, b"+2\r\n"),
    ]


@in_loop
async def test_the_reply_to_a_ping_reaches_no_client() -> None:
    client = Asked()
    link, transport = opened_link(client)
    client.got.clear()
    link.is_kept = True
    assert link.ping()
    assert not link.ping()  # the first one is not answered yet
    link.send([b"GET"])
    assert b"".join(transport.pieces) == PING.request() + b"GET"
    link.data_received(b"+PO")
    link.data_received(b"NG\r\n+1\r\n")
    assert client.got == [("data", link, b"+1\r\n")]
    assert link.ping()


@in_loop
async def test_the_reply_to_keyfences_own_request_is_found_behind_pushes() -> None:
    client, replies = Asked(), list[bytes]()
    link, _ = opened_link(client)
    client.got.clear()
    link.is_kept = True
    assert link.ask(b"AUTH", replies.append)
    link.data_received(b">1\r\n+one\r\n>1\r\n+t")
    link.data_received(b"wo\r\n+O")
    link.data_received(b"K\r\n>1\r\n+three\r\n")
    assert replies == [b"+OK\r\n"]
    pushes = b"".join(got[2] for got in client.got)  # type: ignore[misc]
    assert pushes == b">1\r\n+one\r\n>1\r\n+two\r\n>1\r\n+three\r\n"


@in_loop
async def test_a_full_connection_that_is_closed_holds_its_client_up_no_longer() -> None:
    client = Asked()
    link, _ = opened_link(client)
    client.got.clear()
    link.pause_writing()
    link.close()
    link.connection_lost(None)
    assert client.got == [("full", link, True), ("full", link, False)]
    assert link.is_closed


@in_loop
async def test_a_lost_connection_tells_its_client_once() -> None:
    client = Asked()
    link, _ = opened_link(client)
    client.got.clear()
    link.connection_lost(None)
    link.close()
    assert client.got == [("lost", link, None)]


@in_loop
async def test_a_connection_that_was_never_open_is_not_tried_again_while_the_client_shares(
    patch: pytest.MonkeyPatch,
) -> None:
    """By then its client may await replies on the shared one."""
    upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", 1, shown="fake"))
    tries = 0

    async def connect(_protocol: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise UpstreamDown("no")
        await asyncio.sleep(3600)  # the shared connection is being opened

    patch.setattr(upstream, "connect", connect)
    client = RecordingOwner()
    pools = Pools(upstream, 1)
    links = Links(upstream, pools, client)
    links.send_own(unchanged(0), [b"HELLO"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.refusals == ["no"]
    assert links.may_share(unchanged(0))
    links.send_shared([b"GET"], [1])
    await asyncio.sleep(0)
    links.keep_alive(1e9)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (tries, client.refusals) == (2, ["no"])
    links.close()
    pools.close()


@in_loop
async def test_the_connection_of_a_client_that_has_gone_does_not_wait_for_the_end_of_an_outage(
    patch: pytest.MonkeyPatch,
) -> None:
    """Else each client that looks in during a long outage leaves one behind, and all are made at its end."""
    upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", 1, shown="fake"))
    is_tried = asyncio.Event()
    fails = asyncio.Event()

    async def connect(_attempt: object) -> None:
        is_tried.set()
        await fails.wait()
        raise UpstreamDown("no")

    patch.setattr(upstream, "connect", connect)
    before = asyncio.all_tasks()
    link = DedicatedLink(upstream, RecordingOwner())
    link.send([command(b"CLIENT", b"SETINFO", b"LIB-NAME", b"redis-py")])
    await is_tried.wait()
    link.close()
    fails.set()
    while asyncio.all_tasks() != before:
        await asyncio.sleep(0)
    assert not link.unsent()
