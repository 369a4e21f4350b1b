"""Which requests are timed, in keyfence and until their reply, and under which service."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from keyfence.downstream.timing import RETRIED_AFTER, TIMED_EACH
from keyfence.policy.enforcement.modes import ModeRule
from tests.downstream.test_client import Handler, Stage, Streams, in_loop
from tests.session.sessions import ADMITTED, cmd

SLOW = 0.05  # seconds that the upstream takes
PIPELINE = 3


def answering(reply: bytes, seconds: float = 0.0) -> Handler:
    """An upstream that answers each read with one reply."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            await asyncio.sleep(seconds)
            writer.write(reply)

    return answer


async def says(streams: Streams, request: bytes, reply: bytes) -> None:
    reader, writer = streams
    writer.write(request)
    assert await reader.readexactly(len(reply)) == reply


def timed(stage: Stage) -> Counter[tuple[str, str]]:
    """Returns the number of times in each histogram, by service."""
    found: Counter[tuple[str, str]] = Counter()
    for (what, service, _), number in stage.telemetry.counters.timed.items():
        found[what, service] += number
    del found["decision", "CubeProxy"]
    return found


def both(times: int) -> dict[tuple[str, str], int]:
    return {("request", "CubeProxy"): times, ("upstream", "CubeProxy"): times}


@pytest.mark.parametrize("shared", [0, 1])
def test_the_second_read_is_timed_and_then_each_64th(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_loop
    async def run() -> None:
        async with Stage(answering(b"*0\r\n"), shared_connections=shared) as stage:
            client = await stage.client()
            for count in range(1, 2 * TIMED_EACH + 3):
                await says(client, ADMITTED, b"*0\r\n")
                assert timed(stage) == (both((count - 2) // TIMED_EACH + 1) if count > 1 else {})

    run(monkeypatch)


@pytest.mark.parametrize("shared", [0, 1])
def test_the_time_of_redis_is_not_that_of_keyfence(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_loop
    async def run() -> None:
        async with Stage(answering(b"*0\r\n", SLOW), shared_connections=shared) as stage:
            client = await stage.client()
            for _ in range(2):
                await says(client, ADMITTED, b"*0\r\n")
            seconds = stage.telemetry.counters.timed_seconds
            assert seconds["request", "CubeProxy"] < SLOW <= seconds["upstream", "CubeProxy"]

    run(monkeypatch)


@in_loop
async def test_a_pipeline_counts_once() -> None:
    async with Stage(answering(b"*0\r\n" * PIPELINE)) as stage:
        client = await stage.client()
        for _ in range(2):
            await says(client, ADMITTED * PIPELINE, b"*0\r\n" * PIPELINE)
        assert timed(stage) == both(1)


@in_loop
async def test_the_wait_of_a_blocking_command_is_not_the_time_of_redis() -> None:
    async with Stage(answering(b"*-1\r\n"), ModeRule("observe")) as stage:
        client = await stage.client()
        await says(client, ADMITTED, b"*-1\r\n")
        await says(client, cmd("BLPOP", "queue", "0"), b"*-1\r\n")
        assert timed(stage) == {("request", "CubeProxy"): 1}


@in_loop
async def test_a_read_while_a_reply_is_due_is_not_timed() -> None:
    async with Stage(answering(b"*0\r\n*0\r\n", SLOW)) as stage:
        reader, writer = await stage.client()
        writer.write(ADMITTED)
        while stage.telemetry.counters.traffic.get(("CubeProxy", "client_in"), 0) < len(ADMITTED):
            await asyncio.sleep(0.001)
        writer.write(ADMITTED)
        assert await reader.readexactly(8) == b"*0\r\n*0\r\n"
        assert timed(stage) == {}


@in_loop
async def test_a_request_that_comes_in_two_reads_is_not_timed() -> None:
    async with Stage(answering(b"*0\r\n")) as stage:
        client = await stage.client()
        await says(client, ADMITTED, b"*0\r\n")
        client[1].write(ADMITTED[:5])
        while stage.telemetry.counters.traffic["CubeProxy", "client_in"] < len(ADMITTED) + 5:
            await asyncio.sleep(0.001)
        await says(client, ADMITTED[5:], b"*0\r\n")
        assert timed(stage) == {}


@in_loop
async def test_nothing_is_timed_in_passthrough() -> None:
    async with Stage(answering(b"*0\r\n"), spliced=True) as stage:
        client = await stage.client()
        for _ in range(TIMED_EACH + 2):
            await says(client, ADMITTED, b"*0\r\n")
        assert timed(stage) == {}
        assert stage.telemetry.counters.traffic["CubeProxy", "client_in"] == (TIMED_EACH + 2) * len(ADMITTED)


@in_loop
async def test_a_client_that_was_busy_is_timed_some_reads_later() -> None:
    async with Stage(answering(b"*0\r\n")) as stage:
        client = await stage.client()
        for request, reply in ((cmd("MULTI"), b"*0\r\n"), (ADMITTED, b"*0\r\n"), (cmd("DISCARD"), b"*0\r\n")):
            await says(client, request, reply)
        assert timed(stage) == {}
        for _ in range(RETRIED_AFTER):
            await says(client, ADMITTED, b"*0\r\n")
        assert timed(stage) == both(1)
