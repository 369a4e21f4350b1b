"""Replies on a shared connection are delivered only while they are in step with the requests."""

from __future__ import annotations

import asyncio
import re

import pytest

from keyfence.resp.profile import Profile
from keyfence.upstream import exchange
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from keyfence.upstream.pools import MAX_POOLS, Pools
from tests.downstream.test_client import in_loop
from tests.upstream.test_shared import Recorder, Shared, Written

ECHO = re.compile(rb"\*2\r\n\$4\r\nECHO\r\n(\$32\r\n[0-9a-f]{32}\r\n)")
HELLO = re.compile(rb"\*3\r\n\$5\r\nHELLO\r\n\$1\r\n2\r\n\$32\r\n([0-9a-f]{32})\r\n")


def echoed(written: list[bytes]) -> bytes:
    """Redis' reply to the ECHO barrier in these chunks."""
    match = ECHO.search(b"".join(written))
    assert match is not None
    return match[1]


def told_off(written: list[bytes]) -> bytes:
    """Redis' reply to the HELLO barrier in these chunks."""
    match = HELLO.search(b"".join(written))
    assert match is not None
    return b"-ERR Syntax error in HELLO option '%b'\r\n" % match[1]


async def send_shaped(shared: Shared) -> list[bytes]:
    """The first client sends a request whose reply its text may shape, then the second one a plain
    request. Redis has answered an ECHO before."""
    shared.pools.tick()
    await asyncio.sleep(0)
    shared.connection.data_received(echoed(shared.taken()))
    for client in shared.clients:
        client.replies.clear()
    shared.links[0].send([b"eval"], [1], True)
    shared.links[1].send([b"get"], [1])
    await asyncio.sleep(0)
    written = shared.taken()
    assert re.sub(ECHO, b"<barrier>", b"".join(written)) == b"eval<barrier>get"
    return written


@in_loop
async def test_a_reply_that_may_be_shaped_waits_for_its_barrier(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    barrier = echoed(await send_shaped(shared))
    shared.connection.data_received(b"-ERR x\r\n")
    assert shared.clients[0].replies == []
    shared.connection.data_received(barrier + b"$1\r\nv\r\n")
    assert shared.clients[0].replies == [(b"-ERR x\r\n", 1, True)]
    assert shared.clients[1].replies == [(b"$1\r\nv\r\n", 1, True)]


@in_loop
async def test_a_reply_of_two_frames_is_not_delivered_and_ends_the_connection(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 2)
    faults: list[str] = []
    shared.upstream.on_fault = faults.append
    await shared.open()
    barrier = echoed(await send_shaped(shared))
    shared.connection.data_received(b"-ERR x\r\n$8\r\nINJECTED\r\n" + barrier + b"$1\r\nv\r\n")
    assert [client.replies for client in shared.clients] == [[], []]
    assert all("out of step" in client.lost for client in shared.clients)
    assert shared.connection.is_closed
    assert faults == ["out_of_step"]


@in_loop
async def test_if_echo_is_refused_hello_proves_the_order(patch: pytest.MonkeyPatch) -> None:
    """ECHO fails for a user without the right to it, or while a script runs too long."""
    shared = Shared(patch, 2)
    await shared.open()
    shared.pools.tick()
    shared.all_send(1)
    await asyncio.sleep(0)
    shared.taken()
    shared.connection.data_received(b"-BUSY Redis is busy running a script\r\n:1\r\n:2\r\n")
    assert [client.replies for client in shared.clients] == [[], []]
    await asyncio.sleep(0)
    shared.connection.data_received(told_off(shared.taken()))
    assert [client.replies for client in shared.clients] == [[(b":1\r\n", 1, True)], [(b":2\r\n", 1, True)]]
    assert not shared.connection.is_closed


@in_loop
async def test_until_redis_has_answered_an_echo_hello_follows_what_may_be_shaped(
    patch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(patch, 2)
    await shared.open()
    shared.links[0].send([b"eval"], [1], True)
    shared.links[1].send([b"get"], [1])
    await asyncio.sleep(0)
    for client in shared.clients:
        client.replies.clear()
    shared.connection.data_received(b":1\r\n" + told_off(shared.taken()) + b":2\r\n")
    assert [client.replies for client in shared.clients] == [[(b":1\r\n", 1, True)], [(b":2\r\n", 1, True)]]


@in_loop
async def test_text_that_looks_like_a_refused_echo_ends_the_connection(patch: pytest.MonkeyPatch) -> None:
    """A later barrier proves nothing about the replies before it: `%1` in a text takes two of them in, and
    so makes up for the frame too many."""
    shared = Shared(patch, 2)
    await shared.open()
    barrier = echoed(await send_shaped(shared))
    shared.connection.data_received(b":1\r\n-NOPERM x\r\n%1\r\n" + barrier + b"$6\r\nsecret\r\n")
    assert [client.replies for client in shared.clients] == [[], []]
    assert all("out of step" in client.lost for client in shared.clients)
    assert shared.connection.is_closed


@in_loop
async def test_a_barrier_follows_each_group_of_plain_requests(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 1)
    await shared.open()
    sent = 0
    while not ECHO.search(b"".join(shared.transport.pieces)):
        shared.links[0].send([b"a"], [10])
        sent += 10
        await asyncio.sleep(0)
    assert 500 <= sent <= 520
    barrier = echoed(shared.taken())
    shared.connection.data_received(b":1\r\n" * sent + barrier)
    assert not shared.connection.is_closed


@in_loop
async def test_a_barrier_follows_the_requests_of_a_second(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 1)
    await shared.open()
    shared.pools.tick()
    await asyncio.sleep(0)
    shared.connection.data_received(echoed(shared.taken()))
    shared.pools.tick()
    await asyncio.sleep(0)
    assert shared.taken() == []  # no request was sent since


@in_loop
async def test_a_client_whose_shaped_reply_is_too_large_to_keep_is_closed_alone(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(exchange, "MAX_KEPT", 1000)
    shared = Shared(patch, 2)
    await shared.open()
    barrier = echoed(await send_shaped(shared))
    shared.connection.data_received(b"$2000\r\n" + b"x" * 1500)
    assert "too large" in shared.clients[0].lost
    shared.links[0].close()
    shared.connection.data_received(b"x" * 500 + b"\r\n" + barrier + b":2\r\n")
    assert shared.clients[0].replies == []
    assert shared.clients[1].replies == [(b":2\r\n", 1, True)]


@in_loop
async def test_with_too_many_held_replies_the_client_with_most_of_them_is_closed(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(exchange, "MAX_KEPT", 1000)
    shared = Shared(patch, 2)
    await shared.open()
    shared.pools.tick()
    shared.all_send(1)
    shared.connection.data_received(b"-ERR no ECHO\r\n$900\r\n" + b"x" * 900 + b"\r\n$200\r\n" + b"y" * 150)
    assert "too large" in shared.clients[0].lost
    assert shared.clients[1].lost == ""


@in_loop
async def test_a_push_is_dropped_at_any_position(patch: pytest.MonkeyPatch) -> None:
    shared = Shared(patch, 2)
    faults: list[str] = []
    shared.upstream.on_fault = faults.append
    await shared.open()
    shared.all_send(2)
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
    stream = push + b":1\r\n" + push * 2 + b"$5\r\nhello\r\n" + push + b":3\r\n:4\r\n" + push
    for size in (1, 7, len(stream)):
        for at in range(0, len(stream), size):
            shared.connection.data_received(stream[at : at + size])
        texts = [b"".join(data for data, _, _ in client.replies) for client in shared.clients]
        assert texts == [b":1\r\n$5\r\nhello\r\n", b":3\r\n:4\r\n"]
        assert [sum(n for _, n, _ in client.replies) for client in shared.clients] == [2, 2]
        assert all(client.replies[-1][2] for client in shared.clients)
        shared.all_send(2)
        await asyncio.sleep(0)
    assert faults == ["push"] * 5 * 3


# -- kinds of connections


def fake_upstream(patch: pytest.MonkeyPatch) -> Upstream:
    upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", 1, shown="fake"))

    async def never(_factory: object) -> None:
        await asyncio.Event().wait()

    patch.setattr(upstream, "connect", never)
    return upstream


def user(name: str, password: str = "x") -> Profile:
    return Profile(user=name.encode(), password=password.encode())


@in_loop
async def test_one_user_is_one_kind_with_any_password(patch: pytest.MonkeyPatch) -> None:
    pools = Pools(fake_upstream(patch), 1)
    links = [pools.link(user("default", f"{number}"), Recorder()) for number in range(MAX_POOLS + 10)]
    assert len({link.kind for link in links if link is not None}) == 1


@in_loop
async def test_a_kind_without_clients_is_evicted_for_a_new_one(patch: pytest.MonkeyPatch) -> None:
    pools = Pools(fake_upstream(patch), 1)
    held = pools.link(user("held"), Recorder())
    for number in range(MAX_POOLS + 10):
        link = pools.link(user(f"short-{number}"), Recorder())
        assert link is not None
        link.close()
    assert held is not None
    assert not held.is_evicted


@in_loop
async def test_the_least_recently_used_kind_is_evicted_if_all_have_clients(
    patch: pytest.MonkeyPatch,
) -> None:
    pools = Pools(fake_upstream(patch), 1)
    now = 0.0
    patch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    links = []
    for number in range(MAX_POOLS):
        now += 1.0
        links.append(pools.link(user(f"u{number}"), Recorder()))
    assert pools.link(user("new"), Recorder()) is not None
    assert [link.is_evicted for link in links if link is not None] == [True] + [False] * (MAX_POOLS - 1)


@in_loop
async def test_a_kind_with_replies_due_is_never_evicted(patch: pytest.MonkeyPatch) -> None:
    pools = Pools(fake_upstream(patch), 1)
    for number in range(MAX_POOLS):
        link = pools.link(user(f"u{number}"), Recorder())
        assert link is not None
        link.send([b"a"], [1])
    assert pools.link(user("new"), Recorder()) is None
    pools.close()


@in_loop
async def test_a_refused_password_is_replaced_by_another(
    patch: pytest.MonkeyPatch,
) -> None:
    pools = Pools(fake_upstream(patch), 1)
    recorder = Recorder()
    link = pools.link(user("u", "new"), recorder)
    # the last known password, which was changed since
    assert pools.link(user("u", "old"), Recorder()) is not None
    assert link is not None
    tried = []
    for reply in (b"-WRONGPASS x\r\n", b"+OK\r\n"):
        link.send([b"get"], [1])
        transport = Written()
        assert link._connection is not None
        link._connection.connection_made(transport)
        tried.append(b"".join(transport.pieces))
        link._connection.data_received(reply)
    assert [b"old" in tried[0], b"new" in tried[1]] == [True, True]
    pools.close()
