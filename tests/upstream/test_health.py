"""The state of the upstream, and which connection attempts it allows."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.upstream.attempt import Attempt
from keyfence.upstream.health import (
    ATTEMPTS_AT_ONCE,
    DROPS_IN_A_ROW,
    Upstream,
    UpstreamAddress,
    UpstreamDown,
)
from tests.downstream.test_client import in_loop
from tests.servers import PATIENCE_SECONDS, free_port, running_redis


def nobody_there() -> Upstream:
    return Upstream(UpstreamAddress("tcp", "127.0.0.1", free_port(), shown="redis"))


@in_loop
async def test_of_many_concurrent_clients_only_the_first_attempt_to_connect() -> None:
    upstream = nobody_there()
    outcomes = await asyncio.gather(
        *(upstream.connect(Attempt(asyncio.Protocol())) for _ in range(500)), return_exceptions=True
    )
    assert {str(one) for one in outcomes} == {"upstream redis is unreachable: connection refused"}
    assert 1 <= upstream.failures <= ATTEMPTS_AT_ONCE


@in_loop
async def test_there_are_no_attempts_right_after_a_failure() -> None:
    upstream = nobody_there()
    upstream.failed("connection refused")
    with pytest.raises(UpstreamDown):
        await upstream.connect(Attempt(asyncio.Protocol()))
    assert upstream.failures == 1


@in_loop
async def test_no_client_waits_while_redis_refuses_the_login() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"-WRONGPASS invalid username-password pair\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        address = UpstreamAddress("tcp", "127.0.0.1", port, password="pw", shown="redis")
        upstream = Upstream(address, connect_timeout=PATIENCE_SECONDS)
        upstream.succeeded()
        assert not await upstream.probe()
        with pytest.raises(UpstreamDown, match="WRONGPASS") as down:
            await upstream.connect(Attempt(asyncio.Protocol()))  # within the back-off
    assert down.value.is_refused
    assert not upstream.is_patient
    assert not upstream.given_up_at  # clients that wait for nothing stay
    upstream.failed("connection refused")
    assert not upstream.is_refused


@in_loop
async def test_connections_that_break_at_once_are_a_failure_only_in_a_row(patch: pytest.MonkeyPatch) -> None:
    upstream = nobody_there()
    upstream.succeeded()

    async def breaks(_protocol: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    patch.setattr(upstream, "attempt", breaks)
    for attempt in range(1, DROPS_IN_A_ROW + 1):
        assert not await upstream.probe()
        assert upstream.up is (attempt < DROPS_IN_A_ROW)


@in_loop
async def test_one_killed_probe_is_not_a_failure_but_several_in_a_row_are() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", port, shown="redis"))
        upstream.succeeded()
        for _ in range(DROPS_IN_A_ROW - 1):
            assert not await upstream.probe()
        assert upstream.up
        assert not upstream.must_wait
        assert not await upstream.probe()
        assert not upstream.up


@in_loop
async def test_a_probe_that_redis_answers_ends_the_row_of_killed_ones() -> None:
    with running_redis() as server:
        upstream = Upstream(UpstreamAddress("unix", path=str(server.socket_path), shown="redis"))
        for _ in range(DROPS_IN_A_ROW):
            assert await upstream.probe()
            for _ in range(DROPS_IN_A_ROW - 1):
                upstream.dropped("it closed the connection")
                assert upstream.up


@in_loop
async def test_keyfence_itself_may_always_attempt_to_connect() -> None:
    upstream = nobody_there()
    upstream.failed("connection refused")
    with pytest.raises(ConnectionRefusedError):
        await upstream.attempt(asyncio.Protocol)
