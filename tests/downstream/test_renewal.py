"""Connections to Redis are replaced as soon as their clients would not notice."""

from __future__ import annotations

import asyncio
import re

import pytest

from keyfence.resp.encode import command

from .test_client import ADMITTED, Stage, in_loop

_ASKED = re.compile(rb"HGETALL|WATCH|(?P<role>HELLO)|(?P<id>\r\nID\r\n)|ECHO\r\n(\$32\r\n[0-9a-f]{32}\r\n)")
KEY = b"cube:v1:shared:sandbox:proxy:7c8f"


class Redis:
    """Answers each request with the number of its connection, once it may."""

    def __init__(self) -> None:
        self.connections = 0
        self.role = b"master"
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        while data := await reader.read(65536):
            await self.may_answer.wait()
            for match in _ASKED.finditer(data):
                role = b"*2\r\n$4\r\nrole\r\n$%d\r\n%s\r\n" % (len(self.role), self.role)
                nonce = match.group(match.re.groups)
                writer.write(
                    role if match["role"] else nonce or b"%c%d\r\n" % (b":" if match["id"] else b"+", number)
                )
        self.closed += 1


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def says(client: Streams) -> bytes:
    """The reply to one request: the number of the connection that it took."""
    client[1].write(ADMITTED)
    return await client[0].readline()


async def until_one_waits(stage: Stage) -> None:
    while not any(client.waits for client in stage.context.clients):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("shared", [0, 1])
def test_the_next_command_takes_a_new_connection(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_loop
    async def renews() -> None:
        redis = Redis()
        async with Stage(redis.serve, shared_connections=shared) as stage:
            reader, writer = await stage.client()
            assert [await says((reader, writer)) for _ in range(2)] == [b"+1\r\n", b"+1\r\n"]
            stage.context.renew()
            writer.write(ADMITTED + ADMITTED)
            assert [await reader.readline(), await reader.readline()] == [b"+2\r\n", b"+2\r\n"]
            stage.context.tick()
            while not redis.closed:
                await asyncio.sleep(0.001)
            assert len(stage.context.clients) == 1

    renews(monkeypatch)


@pytest.mark.parametrize("shared", [0, 1])
def test_a_reply_that_is_due_comes_first(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_loop
    async def renews() -> None:
        redis = Redis()
        async with Stage(redis.serve, shared_connections=shared) as stage:
            reader, writer = await stage.client()
            assert await says((reader, writer)) == b"+1\r\n"
            redis.may_answer.clear()
            writer.write(ADMITTED)
            await until_one_waits(stage)
            stage.context.renew()
            stage.context.tick()
            writer.write(ADMITTED)
            await asyncio.sleep(0.01)
            redis.may_answer.set()
            assert [await reader.readline(), await reader.readline()] == [b"+1\r\n", b"+1\r\n"]
            assert await says((reader, writer)) == b"+2\r\n"

    renews(monkeypatch)


@in_loop
async def test_other_clients_of_a_shared_connection_use_another_one_although_a_reply_is_due_there() -> None:
    redis = Redis()
    async with Stage(redis.serve, shared_connections=1) as stage:
        (reader, writer), (other_reader, other_writer) = await stage.client(), await stage.client()
        for client in ((reader, writer), (other_reader, other_writer)):
            assert await says(client) == b"+1\r\n"
        redis.may_answer.clear()
        writer.write(ADMITTED)
        await until_one_waits(stage)
        stage.context.renew()
        other_writer.write(ADMITTED)
        while redis.connections < 2:
            await asyncio.sleep(0.001)
        redis.may_answer.set()
        assert await other_reader.readline() == b"+2\r\n"
        assert await reader.readline() == b"+1\r\n"


@pytest.mark.parametrize(("role", "stays"), [(b"master", True), (b"replica", False)])
def test_a_client_that_would_notice_is_closed_if_its_connection_leads_to_a_replica(
    role: bytes, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def renews() -> None:
        redis = Redis()
        async with Stage(redis.serve) as stage:
            reader, writer = await stage.client()
            writer.write(command(b"WATCH", KEY))
            assert await reader.readline() == b"+1\r\n"
            redis.role = role
            stage.context.renew()
            if stays:
                writer.write(ADMITTED)
            assert await reader.readline() == (b"+1\r\n" if stays else b"")

    renews(monkeypatch)


@pytest.mark.parametrize(("role", "stays"), [(b"master", True), (b"replica", False)])
def test_so_is_one_whose_connection_was_kept_while_it_shared_another_once_it_needs_that_again(
    role: bytes, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def renews() -> None:
        redis = Redis()
        async with Stage(redis.serve, shared_connections=1) as stage:
            reader, writer = await stage.client()
            writer.write(command(b"CLIENT", b"ID"))
            assert await reader.readline() == b":1\r\n"
            assert await says((reader, writer)) == b"+2\r\n"
            redis.role = role
            stage.context.renew()
            assert await says((reader, writer)) == b"+3\r\n"
            writer.write(command(b"WATCH", KEY))
            assert await reader.readline() == (b"+1\r\n" if stays else b"")

    renews(monkeypatch)
