"""Clients of a Sentinel listener, in one loop with it: the limits of all clients hold, and Redis is not
needed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from keyfence.config.limits import ClientLimits
from keyfence.config.models import ListenerModel
from keyfence.downstream.idle import look
from keyfence.downstream.listeners import Listeners
from keyfence.net.addresses import Address
from keyfence.resp import encode
from keyfence.session.sentinel.facts import Primary
from tests.downstream.test_client import Stage, Streams, in_loop
from tests.servers import PATIENCE_SECONDS

ASKED = encode.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
TOLD = b"*2\r\n$1\r\nh\r\n$4\r\n6380\r\n"
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"


class OneSentinel:
    """A Sentinel listener of a process whose Redis is away."""

    def __init__(self, limits: ClientLimits | None = None, *, spliced: bool = False) -> None:
        self._stage = Stage(None, limits=limits, spliced=spliced)
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> OneSentinel:
        await self._stage.__aenter__()
        self.context = self._stage.context
        self.counters = self._stage.telemetry.counters
        self.listeners = Listeners(self.context)
        model = ListenerModel(listen="127.0.0.1:0", service="CubeProxy")
        self.listeners.open(model, primaries=[Primary("main", "h", 6380)])
        await self.listeners.start()
        self.name = self.listeners.bound[0][0]
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        await self.listeners.close(0)
        await self._stage.__aexit__()
        assert self.context.quotas.taken == 0

    async def client(self) -> Streams:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that little data fills it
        sock.connect(Address(self.name).host_port)
        streams = await asyncio.open_connection(sock=sock)
        self._writers.append(streams[1])
        return streams

    @contextlib.asynccontextmanager
    async def subscriber(self) -> AsyncIterator[Streams]:
        reader, writer = await self.client()
        writer.write(encode.command("SUBSCRIBE", "+switch-master"))
        assert await reader.readexactly(len(SUBSCRIBED)) == SUBSCRIBED
        yield reader, writer


async def told(streams: Streams) -> bytes:
    reader, writer = streams
    writer.write(ASKED)
    return await reader.readexactly(len(TOLD))


@in_loop
async def test_a_client_is_told_an_address_while_redis_is_away() -> None:
    async with OneSentinel() as place:
        assert await told(await place.client()) == TOLD
        assert place.counters.connections_open == {("CubeProxy", place.name): 1}
        (client,) = place.context.clients
        assert not client.speaks_to_redis
        assert not client._links.is_open


@in_loop
async def test_it_answers_without_a_policy_too() -> None:
    async with OneSentinel(spliced=True) as place:
        assert await told(await place.client()) == TOLD


@in_loop
async def test_a_failover_of_redis_does_not_concern_its_clients() -> None:
    async with OneSentinel() as place, place.subscriber(), place.subscriber() as (reader, writer):
        place.context.upstream_moved("another node is the primary", ())
        writer.write(encode.command("PING"))
        assert await reader.readexactly(18) == b"*2\r\n$4\r\npong\r\n$0\r\n"
        assert len(place.context.clients) == 2


@in_loop
async def test_its_clients_count_towards_the_quotas() -> None:
    async with OneSentinel(ClientLimits(connections=2, per_service={"CubeProxy": 1})) as place:
        assert await told(await place.client()) == TOLD
        reader, _ = await place.client()
        assert await reader.read() == b"-ERR max number of clients reached for CubeProxy\r\n"


@in_loop
async def test_a_subscriber_is_not_idle_and_others_are() -> None:
    limits = ClientLimits(idle=3600)
    async with OneSentinel(limits) as place, place.subscriber():
        idle = await place.client()
        assert await told(idle) == TOLD
        for after in (0, 7200):
            look(place.context.clients, limits, asyncio.get_running_loop().time() + after)
        assert await idle[0].read() == b""
        assert len(place.context.clients) == 1
        assert place.counters.closures == {"idle": 1}


@in_loop
async def test_a_client_that_reads_nothing_is_not_read_any_more_or_closed() -> None:
    async with OneSentinel(ClientLimits(output=100_000)) as place:
        _, writer = await place.client()
        while not place.context.clients:
            await asyncio.sleep(0)
        (client,) = place.context.clients
        while client._flow.is_reading and not place.counters.closures:
            writer.write(encode.command("COMMAND") * 100)
            await asyncio.sleep(0)
        assert place.counters.closures in ({}, {"output": 1})


@in_loop
async def test_a_client_that_sends_its_end_gets_all_answers() -> None:
    async with OneSentinel() as place:
        reader, writer = await place.client()
        writer.write(ASKED * 2000)
        writer.write_eof()
        assert await reader.read() == TOLD * 2000


@in_loop
async def test_the_end_of_the_process_closes_its_clients_soon() -> None:
    async with OneSentinel() as place, place.subscriber() as (reader, _):
        closing = asyncio.ensure_future(place.listeners.close(PATIENCE_SECONDS))
        assert await reader.read() == b""
        await closing
        assert place.counters.closures == {"shutdown": 1}
