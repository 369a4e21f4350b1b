"""Without Sentinels, keyfence follows an address that leads to another primary."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection

import pytest

from keyfence.resp.replies import DOUBTS, READ_ONLY, TO_PRIMARY
from keyfence.upstream import health
from keyfence.upstream.address import Sentinels, UpstreamAddress
from keyfence.upstream.failovers import Failover
from keyfence.upstream.health import Upstream
from tests.downstream.test_client import in_loop
from tests.servers import PATIENCE_SECONDS, free_port

LONG = 1e6
NAME = "redis.example.org"


class Node:
    """A Redis that only says its role."""

    def __init__(self, role: str = "master") -> None:
        self.role = role
        self.port = 0
        self.connections = 0
        self.is_silent = False

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if self.is_silent:
                    continue
                if line == b"PING\r\n":
                    writer.write(b"+PONG\r\n")
                elif line == b"HELLO\r\n":
                    role = self.role.encode()
                    writer.write(
                        b"*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$%d\r\n" % len(role)
                    )
                    writer.write(role + b"\r\n")

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Node]:
        server = await asyncio.start_server(self._answer, host, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


class Followed:
    """An upstream that is probed, and what it has reported."""

    def __init__(self, host: str, port: int, connect_timeout: float = PATIENCE_SECONDS) -> None:
        address = UpstreamAddress("tcp", host, port, shown="redis")
        self.upstream = Upstream(address, connect_timeout=connect_timeout)
        self.failovers: list[Failover] = []
        self.held: list[Collection[str]] = []  # at each move
        self.renewals = 0
        self.took: list[float] = []
        self.upstream.on_failover = self.failovers.append
        self.upstream.on_move = lambda _node, held: self.held.append(held)
        self.upstream.on_renewal = self._renewed
        self.upstream.on_served = self.took.append

    def _renewed(self) -> None:
        self.renewals += 1

    @contextlib.asynccontextmanager
    async def probed(self) -> AsyncIterator[None]:
        await self.upstream.probe()
        task = asyncio.ensure_future(self.upstream.probe_forever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(check: Callable[[], bool]) -> None:
    while not check():
        await asyncio.sleep(0.005)


async def looks_at_once(patch: pytest.MonkeyPatch, raise_doubt: Callable[[Upstream], None]) -> Followed:
    """There is doubt once, between two looks that are far apart."""
    patch.setattr(health, "PROBE_INTERVAL", LONG)
    async with Node().running() as node:
        followed = Followed("127.0.0.1", node.port)
        async with followed.probed():
            await until(lambda: node.connections == 2)
            raise_doubt(followed.upstream)
            await until(lambda: node.connections == 3)
    return followed


@pytest.mark.parametrize("error", DOUBTS)
def test_an_error_that_a_primary_does_not_give_makes_keyfence_look_at_once(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def looks(patch: pytest.MonkeyPatch) -> None:
        await looks_at_once(patch, lambda upstream: upstream.answered(error))

    looks(monkeypatch)


@in_loop
async def test_a_lost_connection_makes_keyfence_look_at_once(patch: pytest.MonkeyPatch) -> None:
    followed = await looks_at_once(patch, Upstream.lost)
    assert not followed.failovers  # the node is still there


@pytest.mark.parametrize("error", [READ_ONLY, TO_PRIMARY])
def test_connections_are_renewed_once_new_ones_lead_to_a_primary(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def renews() -> None:
        async with Node("replica").running() as node:
            followed = Followed("127.0.0.1", node.port)
            followed.upstream.seen(error)
            assert await followed.upstream.probe()
            assert followed.renewals == 0
            node.role = "master"
            assert await followed.upstream.probe()
            assert followed.renewals == 1

    renews(monkeypatch)


@in_loop
async def test_nothing_stays_on_a_replica_if_sentinels_will_name_a_primary() -> None:
    """New connections wait for it."""
    async with Node("replica").running() as node:
        followed = Followed("127.0.0.1", node.port)
        sentinels = Sentinels((("127.0.0.1", 1),), "main")
        followed.upstream.address = dataclasses.replace(followed.upstream.address, sentinels=sentinels)
        followed.upstream.answered(READ_ONLY)
        assert not await followed.upstream.probe()
    assert followed.renewals == 1
    assert "it is a replica" in followed.upstream.reason


@in_loop
async def test_an_address_that_leads_to_a_primary_again_is_a_failover_that_closes_nothing() -> None:
    async with Node().running() as node:
        followed = Followed("127.0.0.1", node.port)
        for role in ("master", "replica", "replica", "master", "master"):
            node.role = role
            assert await followed.upstream.probe()
    [failover] = followed.failovers
    assert failover[:2] == ("redis", "its role")
    assert followed.held == []
    assert followed.renewals == 1
    assert len(followed.took) == 1


@in_loop
async def test_a_name_whose_address_changes_is_followed(patch: pytest.MonkeyPatch) -> None:
    answer = ["127.0.0.1"]

    async def addresses_of(host: str, _port: int) -> list[str]:
        assert host == NAME
        return answer

    patch.setattr(health, "addresses_of", addresses_of)
    async with Node().running() as former, Node().running("127.0.0.2", former.port) as later:
        followed = Followed(NAME, former.port)
        assert await followed.upstream.probe()
        answer = ["127.0.0.2", "127.0.0.1"]
        assert await followed.upstream.probe()
        assert (followed.failovers, later.connections) == ([], 1)
        answer = ["127.0.0.2"]
        async with followed.probed():
            await until(lambda: bool(followed.took))
    [failover] = followed.failovers
    assert failover[:2] == (f"127.0.0.2:{former.port}", f"the name {NAME}")
    assert followed.held == [{"127.0.0.2"}]


@pytest.mark.parametrize(
    ("other", "is_left"),
    [("a primary", False), ("a replica", True), ("gone", True), ("silent", True)],
)
def test_a_failover_back_by_a_name_is_told_from_answers_that_take_turns(
    other: str, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def follows(patch: pytest.MonkeyPatch) -> None:
        answers = iter(["127.0.0.1", "127.0.0.2"])

        async def addresses_of(_host: str, _port: int) -> list[str]:
            return [next(answers, "127.0.0.1")]

        patch.setattr(health, "addresses_of", addresses_of)
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(Node().running())
            later = Node()
            async with later.running("127.0.0.2", first.port):
                followed = Followed(NAME, first.port, PATIENCE_SECONDS if other != "silent" else 0.5)
                assert await followed.upstream.probe()
                assert await followed.upstream.probe()
            assert len(followed.failovers) == 1
            later.role = "replica" if other == "a replica" else "master"
            later.is_silent = other == "silent"
            if other != "gone":
                await stack.enter_async_context(later.running("127.0.0.2", first.port))
            before = later.connections
            async with followed.probed():
                await until(
                    lambda: (
                        len(followed.failovers) == 2
                        or (later.connections > before + 1 and first.connections > 3)
                    )
                )
        assert followed.held[1:] == [{"127.0.0.1"}] * is_left

    follows(monkeypatch)


@in_loop
async def test_all_addresses_of_a_name_are_tried_also_if_one_does_not_answer(
    patch: pytest.MonkeyPatch,
) -> None:
    async def addresses_of(_host: str, _port: int) -> list[str]:
        return ["127.0.0.3", "127.0.0.2", "127.0.0.1"]

    connect = Upstream._connect_to

    async def connect_to(self: Upstream, host: str, protocol: Callable[[], asyncio.Protocol]) -> object:
        if host == "127.0.0.3":
            await asyncio.sleep(LONG)  # as if packets were lost
        return await connect(self, host, protocol)

    patch.setattr(health, "addresses_of", addresses_of)
    patch.setattr(Upstream, "_connect_to", connect_to)
    async with Node().running() as node:
        assert await Followed(NAME, node.port, 1.0).upstream.probe()  # nothing listens on 127.0.0.2
    followed = Followed(NAME, free_port(), 1.0)
    assert not await followed.upstream.probe()
    assert followed.upstream.reason == "connection refused"


@in_loop
async def test_a_connection_that_takes_the_place_of_an_earlier_one_is_counted() -> None:
    upstream = Followed("127.0.0.1", 1).upstream
    remade = []
    upstream.on_remade = lambda: remade.append(1)
    upstream.succeeded()
    upstream.lost()
    assert remade == []
    upstream.succeeded()
    upstream.succeeded()
    assert remade == [1]
