from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from keyfence.commands.learned import learn
from keyfence.upstream import discovery as learning
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.discovery import CannotLearn, Learner, NotAllowed, ask_for_commands
from keyfence.upstream.health import Upstream
from tests.servers import PATIENCE_SECONDS, PROJECT, Certificates, Keyfence, RedisServer, ServerBinary

REPLY = b"*1\r\n*6\r\n$3\r\nm.x\r\n:2\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n"
ROWS = [[b"m.x", 2, [b"write"], 1, 1, 1]]


def on_socket(server: RedisServer, **login: Any) -> Upstream:
    return Upstream(UpstreamAddress("unix", path=str(server.socket_path), **login))


def asked(upstream: Upstream) -> Any:
    return asyncio.run(ask_for_commands(upstream))


def test_a_real_server_lists_all_its_commands(redis_server: RedisServer) -> None:
    reply = asked(on_socket(redis_server))
    with redis_server.client() as client:
        assert {row[0].decode() for row in reply} == set(client.command())
    assert learn(reply).unreadable == 0


def test_the_request_uses_the_login_of_keyfence(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["keyfence on >hush +command +select"], password="other")
    assert len(asked(on_socket(server, username="keyfence", password="hush", database=2))) > 200
    with pytest.raises(NotAllowed, match="NOAUTH"):
        asked(on_socket(server))
    with pytest.raises(CannotLearn, match="it refused keyfence's login: WRONGPASS"):
        asked(on_socket(server, username="keyfence", password="guess"))


def test_a_missing_permission_raises_not_allowed(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["keyfence on >hush +ping"])
    with pytest.raises(NotAllowed, match="NOPERM"):
        asked(on_socket(server, username="keyfence", password="hush"))


def test_a_server_behind_tls_lists_its_commands(
    start_redis: Callable[..., RedisServer], certificates: Certificates, redis_binary: ServerBinary
) -> None:
    linked = subprocess.run(["ldd", redis_binary.path], capture_output=True, text=True, check=False).stdout
    if "libssl" not in linked:
        pytest.skip("this redis-server is built without TLS")
    server = start_redis(tls=certificates)
    assert server.port is not None
    context = ssl.create_default_context(cafile=str(certificates.ca))
    upstream = Upstream(UpstreamAddress("tls", "127.0.0.1", server.port), context)
    assert len(asked(upstream)) > 200


# -- faulty servers


class Answering(asyncio.Protocol):
    """A server that answers each chunk that it receives with the next one of these."""

    def __init__(self, chunks: tuple[bytes, ...], closes: bool, ended: list[asyncio.Future[None]]) -> None:
        self.chunks = list(chunks)
        self.closes = closes
        self.ended = asyncio.get_running_loop().create_future()
        ended.append(self.ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, _data: bytes) -> None:
        if self.chunks:
            self.transport.write(self.chunks.pop(0))
            asyncio.get_running_loop().call_soon(self.data_received, b"")
        elif self.closes:
            self.transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.chunks.clear()
        self.ended.set_result(None)


@contextlib.asynccontextmanager
async def answering(*chunks: bytes, closes: bool = False, timeout: float = 30.0) -> AsyncIterator[Upstream]:
    """An upstream that answers with these chunks. It ends when its clients have gone."""
    ended: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(chunks, closes, ended), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Upstream(UpstreamAddress("tcp", "127.0.0.1", port), connect_timeout=timeout)
    await asyncio.gather(*ended)


def answer_of(*chunks: bytes, **options: Any) -> Any:
    async def ask() -> Any:
        async with answering(*chunks, **options) as upstream:
            return await ask_for_commands(upstream)

    return asyncio.run(ask())


def test_an_answer_may_come_in_pieces() -> None:
    assert answer_of(REPLY) == ROWS
    assert answer_of(*(REPLY[i : i + 1] for i in range(len(REPLY)))) == ROWS


def test_data_after_the_answer_is_ignored() -> None:
    assert answer_of(REPLY + b"+more\r\nrubbish") == ROWS
    assert answer_of(REPLY, b"rubbish") == ROWS


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (b"-ERR unknown command\r\n", "ERR unknown command"),
        (b"+PONG\r\n", "its answer is not a list"),
        (b"*-1\r\n", "its answer is not a list"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it does not speak RESP"),
        (b"*1\r\n:x\r\n", "its answer is not RESP"),
    ],
)
def test_an_unusable_answer_has_a_reason(chunk: bytes, reason: str) -> None:
    with pytest.raises(CannotLearn, match=reason):
        answer_of(chunk)


def test_an_incomplete_answer_is_a_failure() -> None:
    with pytest.raises(CannotLearn, match="it closed the connection"):
        answer_of(REPLY[:-4], closes=True)


def test_a_missing_answer_times_out() -> None:
    with pytest.raises(CannotLearn, match="timed out"):
        answer_of(REPLY[:-4], timeout=0.05)


def test_an_answer_that_is_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_REPLY", 20)
    with pytest.raises(CannotLearn, match="longer than 20 bytes"):
        answer_of(REPLY)


def test_an_unreachable_server_has_a_short_reason() -> None:
    with pytest.raises(CannotLearn, match="no such file"):
        asked(Upstream(UpstreamAddress("unix", path=f"{tempfile.gettempdir()}/keyfence-nobody.sock")))


# -- when it is asked


def test_the_commands_are_requested_whenever_the_upstream_comes_back() -> None:
    async def run() -> list[object]:
        adopted: list[object] = []
        came = asyncio.Event()
        async with answering(REPLY) as upstream:

            def adopt(reply: object) -> None:
                adopted.append(reply)
                came.set()

            learner = Learner(upstream, adopt)
            assert await learner.learn()
            job = asyncio.ensure_future(learner.learn_forever())
            for _ in range(2):
                came.clear()
                learner.upstream_changed(False)
                learner.upstream_changed(True)
                await asyncio.wait_for(came.wait(), PATIENCE_SECONDS)
            job.cancel()
            await asyncio.wait([job])
        return adopted

    assert asyncio.run(run()) == [ROWS, ROWS, ROWS]


def test_a_failure_is_counted_each_time_reported_once_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "RETRY_SECONDS", 0.0)

    async def run() -> tuple[int, list[str]]:
        told: list[str] = []
        async with answering(b"-NOPERM no\r\n") as upstream:
            upstream.up = True
            learner = Learner(
                upstream, lambda _reply: pytest.fail("adopted"), lambda exc: told.append(str(exc))
            )
            assert not await learner.learn()
            job = asyncio.ensure_future(learner.learn_forever())
            async with asyncio.timeout(PATIENCE_SECONDS):
                while learner.failures < 3:
                    await asyncio.sleep(0)
            job.cancel()
            await asyncio.wait([job])
            return learner.failures, told

    failures, told = asyncio.run(run())
    assert failures >= 3
    assert told == ["NOPERM no"]


# -- end to end, with a real server that has a command which the table lacks: a Sentinel


@pytest.fixture
def sentinel(redis_binary: ServerBinary) -> Iterator[str]:
    """The URL of a Sentinel that monitors no server."""
    with tempfile.TemporaryDirectory(prefix="keyfence-") as directory:
        path = Path(directory, "s.sock")
        configuration = Path(directory, "sentinel.conf")
        configuration.write_text(f"port 0\nunixsocket {path}\n")
        process = subprocess.Popen(
            [redis_binary.path, configuration, "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not path.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def test_a_learned_command_is_evaluated_by_its_category(
    sentinel: str, start_keyfence: Callable[..., Keyfence]
) -> None:
    policy = PROJECT / "policies" / "cubesandbox.yaml"
    flags = ("--listen", "127.0.0.1:0", "--service", "CubeMaster", "--admin", "none", "--mode", "enforce")
    keyfence = start_keyfence(
        "--policy", policy, "--upstream", sentinel, *flags, expect_stderr="is a Sentinel"
    )
    assert "knows from it alone" in keyfence.wait_for_line("keyfence: the upstream has")
    with keyfence.client() as client:
        assert client.execute_command("PING")
        with pytest.raises(redis.ResponseError, match=r"\[command.forbidden\].*may not use SENTINEL"):
            client.execute_command("SENTINEL", "RESET", "*")
        with pytest.raises(redis.ResponseError, match=r"\[command.unknown\]"):
            client.execute_command("SENTINELS", "RESET", "*")


def test_a_server_that_requires_a_password_causes_one_line(
    start_redis: Callable[..., RedisServer], start_keyfence: Callable[..., Keyfence]
) -> None:
    server = start_redis(password="hush")
    flags = ("--listen", "127.0.0.1:0", "--service", "CubeMaster", "--admin", "none")
    keyfence = start_keyfence(
        "--policy", PROJECT / "policies" / "cubesandbox.yaml", "--upstream", server.url, *flags
    )
    assert "(NOAUTH" in keyfence.wait_for_line("keyfence: the upstream does not list its commands")
    with keyfence.client(password="hush") as client:
        assert client.ping()
