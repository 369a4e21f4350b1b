"""keyfence follows the primary that real Sentinels name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path

import pytest

from keyfence.resp import encode
from keyfence.upstream.address import Sentinels, UpstreamAddress
from keyfence.upstream.failovers import Failover
from keyfence.upstream.health import Upstream
from keyfence.upstream.sentinel.answers import SWITCHED, Named
from keyfence.upstream.sentinel.follower import SETTLED_SECONDS, Follower
from tests.loops import in_loop
from tests.sentinel import NAME, Watched, running_sentinels
from tests.servers import PATIENCE_SECONDS, free_port, running_redis


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with running_sentinels(tmp_path) as found:
        yield found


class Followed:
    """An upstream that follows Sentinels, and the failovers that it has seen."""

    def __init__(self, ports: list[int], name: str = NAME) -> None:
        hosts = tuple(("127.0.0.1", port) for port in ports)
        self.sentinels = Sentinels(hosts, name)
        address = UpstreamAddress("tcp", port=0, shown=f"sentinel:{name}", sentinels=self.sentinels)
        self.upstream = Upstream(address, connect_timeout=2.0)
        self.failovers: list[tuple[int, str]] = []
        self.now = 1000.0
        self.follower = Follower(self.upstream, self.sentinels, lambda: self.now)
        self.upstream.on_move = self._moved
        self.upstream.on_failover = self._failed_over

    def _moved(self, _node: str, held: Collection[str]) -> None:
        assert held == ()  # nothing stays on another node

    def _failed_over(self, now: Failover) -> None:
        self.failovers.append((self.upstream.address.port, now.why))

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.follower.follow_forever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not check():
                await asyncio.sleep(0.02)


@in_loop
async def test_the_primary_is_found_and_reached(watched: Watched) -> None:
    one = Followed(watched.sentinels)
    assert await one.follower.find()
    assert one.upstream.address.port == watched.primary.port
    assert one.upstream.address.shown == "sentinel:main"
    assert await one.upstream.probe()
    assert one.failovers == []  # nothing stood on another node


@in_loop
async def test_a_failover_is_followed_by_what_a_sentinel_reports(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyfence.upstream.sentinel.follower.POLL_SECONDS", 1e6)
    one = Followed(watched.sentinels)
    await one.follower.find()
    async with one.following():
        await asyncio.to_thread(watched.fail_over)
        await one.until(lambda: one.upstream.address.port == watched.replica.port)
    [(port, who)] = one.failovers
    assert port == watched.replica.port
    assert "+switch-master" in who
    assert await one.upstream.probe()


@in_loop
async def test_a_failover_is_followed_by_asking_if_no_report_comes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyfence.upstream.sentinel.follower.POLL_SECONDS", 1e6)
    one = Followed(watched.sentinels)
    one.follower.followed = Named("127.0.0.1", free_port(), -1)  # an earlier primary
    one.upstream.move("127.0.0.1", one.follower.followed.port, "the test")
    async with one.following():
        one.upstream.look_again()
        await one.until(lambda: one.upstream.address.port == watched.primary.port)
    assert one.failovers == [(watched.primary.port, "the Sentinels")]


class Scripted:
    """A Sentinel that names what it is told to; None: it gives no answer."""

    def __init__(self, named: Named | None) -> None:
        self.named = named
        self.asked = 0
        self.port = 0
        self._subscribers: list[asyncio.StreamWriter] = []

    @property
    def subscribed(self) -> bool:
        return bool(self._subscribers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    def report(self, named: Named) -> None:
        self.named = named
        for one in self._subscribers:
            one.write(encode.command("message", SWITCHED, f"{NAME} 10.0.0.1 1 {named.host} {named.port}"))

    def hang_up(self) -> None:
        """Close the connections of those who listen."""
        while self._subscribers:
            self._subscribers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(65536):
                if b"SUBSCRIBE" in data:
                    self._subscribers.append(writer)
                    writer.write(encode.command("subscribe", SWITCHED, "1"))
                elif b"MASTER" in data:
                    self.asked += 1
                    if self.named is not None:
                        host, port, epoch = self.named
                        answer = encode.command("ip", host, "port", str(port), "config-epoch", str(epoch))
                        writer.write(answer)


@in_loop
async def test_sentinels_that_have_not_heard_of_a_failover_yet_do_not_undo_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right after a failover, they may be most of those that answer."""
    monkeypatch.setattr("keyfence.upstream.sentinel.follower.LATE_SECONDS", 0.05)
    former, promoted = Named("127.0.0.1", free_port(), 1), Named("127.0.0.1", free_port(), 2)
    scripted = [Scripted(former) for _ in range(3)]
    async with contextlib.AsyncExitStack() as servers:
        for sentinel in scripted:
            await servers.enter_async_context(sentinel.running())
        one = Followed([sentinel.port for sentinel in scripted])
        await one.follower.find()
        async with one.following():
            await one.until(lambda: all(sentinel.subscribed for sentinel in scripted))
            scripted[2].report(promoted)
            await one.until(lambda: one.upstream.address.port == promoted.port)
            scripted[2].named = None
            for _ in range(3):
                asked = scripted[0].asked
                one.upstream.look_again()
                await one.until(lambda asked=asked: scripted[0].asked > asked)  # type: ignore[misc]
            assert [port for port, _ in one.failovers] == [promoted.port]

            one.now += SETTLED_SECONDS  # they were set up anew, perhaps
            one.upstream.look_again()
            await one.until(lambda: one.upstream.address.port == former.port)


@in_loop
async def test_a_failover_between_two_subscriptions_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears what a Sentinel says while its connection is lost."""
    monkeypatch.setattr("keyfence.upstream.sentinel.follower.POLL_SECONDS", 1e6)
    former, promoted = Named("127.0.0.1", free_port(), 1), Named("127.0.0.1", free_port(), 2)
    sentinel = Scripted(former)
    async with sentinel.running():
        one = Followed([sentinel.port])
        await one.follower.find()
        async with one.following():
            await one.until(lambda: sentinel.subscribed and sentinel.asked > 1)
            sentinel.named = promoted
            sentinel.hang_up()
            await one.until(lambda: one.upstream.address.port == promoted.port)
    assert one.failovers == [(promoted.port, "the Sentinels")]


@in_loop
async def test_a_single_sentinel_that_can_be_reached_is_enough(watched: Watched) -> None:
    one = Followed([free_port(), watched.sentinels[1], free_port()])
    assert await one.follower.find()
    assert one.upstream.address.port == watched.primary.port
    assert len(one.follower.troubles) == 2
    assert one.follower.trouble == ""


@in_loop
async def test_a_replica_that_sentinels_still_name_is_not_taken_for_the_primary(watched: Watched) -> None:
    one = Followed(watched.sentinels)
    await one.follower.find()
    with watched.primary.client() as client:
        client.replicaof("127.0.0.1", str(watched.replica.port))
        assert not await one.upstream.probe()
    assert one.upstream.reason == "it is a replica, and the Sentinels name it still"


@in_loop
async def test_a_name_that_no_sentinel_knows_is_told(watched: Watched) -> None:
    one = Followed(watched.sentinels[:1], "mian")
    assert not await one.follower.find()
    text = (
        f"no Sentinel names the primary (127.0.0.1:{watched.sentinels[0]}: it knows no primary called 'mian')"
    )
    assert one.follower.trouble == text
    assert not await one.upstream.probe()
    assert one.upstream.reason == text


@in_loop
async def test_a_redis_that_is_no_sentinel_is_told() -> None:
    with running_redis(tcp=True) as redis:
        one = Followed([redis.port])
        assert not await one.follower.find()
    assert (
        one.follower.trouble == f"no Sentinel names the primary (127.0.0.1:{redis.port}: it is no Sentinel)"
    )


@in_loop
async def test_a_sentinel_that_does_not_answer_is_waited_for_no_longer_than_the_timeout() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        one = Followed([port])
        one.upstream.connect_timeout = 0.2
        assert not await one.follower.find()
    assert one.follower.trouble == f"no Sentinel names the primary (127.0.0.1:{port}: timed out)"


@in_loop
async def test_a_sentinel_that_talks_nonsense_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        one = Followed([server.sockets[0].getsockname()[1]])
        assert not await one.follower.find()
    assert "it does not speak RESP" in one.follower.trouble
