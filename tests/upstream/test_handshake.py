"""The first commands on a connection, and the replies to them."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.upstream.handshake import Answers, Greeting, GreetingError, Handshake, describe
from tests.downstream.test_client import in_loop
from tests.upstream.test_shared import Written


def test_a_greeting_returns_the_data_after_its_replies() -> None:
    greeting = Greeting(2)
    assert greeting.take(b"+OK\r\n+O") == b""
    assert greeting.take(b"K\r\n$1\r\na\r\n") == b"$1\r\na\r\n"


def test_a_refused_greeting_has_the_text_of_redis_and_the_number_of_later_commands() -> None:
    with pytest.raises(GreetingError) as told:
        Greeting(3).take(b"+OK\r\n-WRONGPASS no\r\n+OK\r\n")
    assert str(told.value) == "it refused keyfence's login: WRONGPASS no"
    assert (told.value.refusal, told.value.unanswered) == ("WRONGPASS no", 1)


@pytest.mark.parametrize("asks_role", [False, True])
def test_a_busy_redis_may_refuse_to_hear_of_the_clients_library_but_nothing_else(asks_role: bool) -> None:
    role = b"*0\r\n" if asks_role else b""
    greeting = Greeting(3 + asks_role, asks_role=asks_role, introductions=2)
    assert greeting.take(b"+OK\r\n-BUSY a script runs\r\n-BUSY a script runs\r\n" + role) == b""
    assert not greeting.expected
    with pytest.raises(GreetingError, match="BUSY"):
        Greeting(3 + asks_role, asks_role=asks_role, introductions=2).take(b"-BUSY a script runs\r\n")


def test_a_greeting_that_is_not_resp_is_an_error() -> None:
    with pytest.raises(GreetingError, match="it does not speak RESP"):
        Greeting(1).take(b"HTTP/1.1 400 Bad Request\r\n")


def test_an_endless_greeting_is_an_error() -> None:
    greeting = Greeting(1)
    greeting.take(b"+" + b"x" * 60_000)
    with pytest.raises(GreetingError, match="too long"):
        greeting.take(b"x" * 10_000)


@in_loop
async def test_the_answers_to_own_requests_are_the_bytes_after_the_greeting() -> None:
    answers = Answers(1, 2, 100)
    for data in (b"+OK\r", b"\n:1\r\n$3\r\na", b"bc\r\n+more\r\n"):
        answers.data_received(data)
    assert await answers.raw == b":1\r\n$3\r\nabc\r\n"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"-WRONGPASS no\r\n", "refused keyfence's login"),
        (b"+OK\r\n$30\r\n" + b"x" * 30 + b"\r\n", "longer than 20 bytes"),
        (b"+OK\r\nHTTP/1.1 400\r\n", "does not speak RESP"),
        (b"+OK\r\n:1\r\n", "it closed the connection"),
    ],
)
def test_answers_that_do_not_come_are_an_error(
    monkeypatch: pytest.MonkeyPatch, data: bytes, reason: str
) -> None:
    @in_loop
    async def asked() -> None:
        answers = Answers(1, 2, 20)
        answers.data_received(data)
        answers.connection_lost(None)
        with pytest.raises(GreetingError, match=reason):
            await answers.raw

    asked(monkeypatch)


class Newcomer:
    """A connection that records how its handshake ends."""

    def __init__(self, commands: list[bytes], seconds: float = 3600.0) -> None:
        self.events: list[str] = []
        self.transport = Written()
        self.handshake = Handshake(self, lambda: self.events.append("first byte"))
        self.handshake.begin(self.transport, commands, seconds)

    def opened(self) -> None:
        self.events.append("opened")

    def login_failed(self, failure: GreetingError) -> None:
        self.events.append(f"failed: {failure}")


@in_loop
async def test_without_commands_a_connection_is_open_at_once() -> None:
    one = Newcomer([])
    assert one.events == ["opened"]
    assert one.handshake.take(b"+PONG\r\n") == b"+PONG\r\n"
    assert one.events == ["opened", "first byte"]
    assert not one.handshake.cut_short(None)


@in_loop
async def test_a_connection_is_open_once_every_command_is_answered() -> None:
    one = Newcomer([b"AUTH", b"SELECT"])
    assert b"".join(one.transport.pieces) == b"AUTHSELECT"
    assert one.handshake.take(b"+OK\r\n+O") == b""
    assert one.handshake.is_logging_in
    assert one.handshake.take(b"K\r\n:1\r\n") == b":1\r\n"
    assert not one.handshake.is_logging_in
    assert one.events == ["first byte", "opened"]


@in_loop
async def test_a_refused_command_ends_the_connection() -> None:
    one = Newcomer([b"AUTH"])
    assert one.handshake.take(b"-WRONGPASS no\r\n+OK\r\n") == b""
    assert one.events == ["first byte", "failed: it refused keyfence's login: WRONGPASS no"]
    assert not one.handshake.is_logging_in


@in_loop
async def test_a_connection_that_ends_before_the_last_answer_has_failed() -> None:
    one, other = Newcomer([b"AUTH"]), Newcomer([b"AUTH"])
    assert one.handshake.cut_short(None)
    assert other.handshake.cut_short(ConnectionResetError(104, "Connection reset by peer"))
    assert one.events == ["failed: it closed the connection during login"]
    assert other.events == ["failed: connection reset by peer"]


@in_loop
async def test_a_login_without_an_answer_times_out() -> None:
    one = Newcomer([b"AUTH"], seconds=0.0)
    while not one.events:
        await asyncio.sleep(0)
    assert one.events == ["failed: login timed out"]


def test_an_end_without_an_error_was_the_other_side_s() -> None:
    assert describe(None) == "it closed the connection"
