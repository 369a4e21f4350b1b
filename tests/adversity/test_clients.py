"""Misbehaving clients: at worst they lose their own connection, and no other client notices."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.adversity.fault_proxy import Direction, FaultProxy
from tests.adversity.stage import MIB, Stage, Wire, request
from tests.clients.running import ask, eventually
from tests.servers import PATIENCE_SECONDS
from tests.session.sessions import replies

StartStage = Callable[..., Stage]
REFUSED = request("GET", "elsewhere")


@pytest.fixture
def in_front(stage: Stage) -> Iterator[FaultProxy]:
    """A fault proxy between the clients and keyfence."""
    with FaultProxy(stage.keyfence.address("writer")[1]) as faults:
        yield faults


@contextlib.contextmanager
def through(faults: FaultProxy) -> Iterator[Wire]:
    with socket.create_connection(faults.address, PATIENCE_SECONDS) as connection:
        yield Wire(connection)


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_request_cut_by_a_vanishing_client_never_runs(
    stage: Stage, in_front: FaultProxy, reset: bool
) -> None:
    """A complete request may have run once; a cut one never runs."""
    size = sum(map(len, _whole("app:0000")))
    most = {}
    for at in range(1, size, 5):
        key = f"app:{at:04}"  # each client has its own: Redis may run received requests after the end
        whole = _whole(key)
        ends = [sum(map(len, whole[: n + 1])) for n in range(len(whole))]
        arrived = [r for r, end in zip(whole, ends, strict=True) if end <= at]
        unfinished = request("EXEC") not in arrived and at >= ends[4]
        most[key] = arrived.count(request("INCR", key)) - unfinished
        with in_front.doing(to_target=Direction(cut_after=at, reset=reset)), through(in_front) as client:
            client.socket.sendall(b"".join(whole))
            client.rest()
        eventually(lambda: stage.metric("connections_open") == 0, "it is forgotten")
        assert int(stage.value(key) or 0) <= most[key]
    ran = {key: int(stage.value(key) or 0) for key in most}
    assert not [key for key in most if ran[key] > most[key]]
    assert reset or any(ran.values()), "a client that ended in order has had its commands run"


def _whole(key: str) -> list[bytes]:
    """Returns the requests of one attempt."""
    one = request("INCR", key)
    return [one, REFUSED, one, request("MULTI"), one, request("EXEC"), one]


def test_a_client_that_sends_byte_by_byte_is_served(stage: Stage, in_front: FaultProxy) -> None:
    everything = request("SET", "app:a", "slow") + REFUSED + b"PING\r\n" + request("GET", "app:a")
    bytewise = in_front.doing(to_target=Direction(one_byte=True), to_client=Direction(one_byte=True))
    with bytewise, through(in_front) as slow, stage.client() as quick:
        slow.socket.sendall(everything)
        assert quick.says("PING") == b"+PONG\r\n"
        answers = [slow.reply() for _ in range(4)]
    assert [answers[0], answers[2], answers[3]] == [b"+OK\r\n", b"+PONG\r\n", b"$4\r\nslow\r\n"]
    assert answers[1].startswith(b"-NOPERM")


def test_a_client_too_slow_with_one_request_is_closed_and_counted(start_stage: StartStage) -> None:
    stage = start_stage("limits: {request_time: 200ms}")
    with stage.client() as slow, stage.client() as quick:
        slow.socket.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nap")
        assert b"$5" not in slow.rest()
        assert quick.says("PING") == b"+PONG\r\n"
    eventually(lambda: stage.closed_for("request_time") >= 1, "it is counted")


def test_a_client_idle_for_too_long_is_closed_and_counted(start_stage: StartStage) -> None:
    stage = start_stage("limits: {idle: 300ms}")
    with stage.client() as idle, stage.client() as blocked:
        blocked.send("BLPOP", "app:empty", 0)  # a client that waits for a reply is not idle
        assert idle.says("PING") == b"+PONG\r\n"
        assert idle.rest() == b""
        eventually(lambda: stage.closed_for("idle") >= 1, "it is counted")
        with stage.redis.client() as direct:
            direct.rpush("app:empty", "x")
        assert blocked.reply() == b"*2\r\n$9\r\napp:empty\r\n$1\r\nx\r\n"


BIG = 100_000_000


def test_a_client_that_leaves_100_mb_unread_costs_little_and_delays_no_other(stage: Stage) -> None:
    with stage.redis.client() as direct:
        direct.setrange("app:big", BIG - 1, b"!")
    before = stage.memory()
    with stage.client() as slow, stage.client() as quick:
        assert slow.says("PING") == quick.says("PING") == b"+PONG\r\n"
        slow.send("GET", "app:big")
        assert slow.socket.recv(1) == b"$"
        for _ in range(200):
            assert quick.says("PING") == b"+PONG\r\n"
        assert stage.memory() - before < 72 * MIB  # the limit of an output, and some
        if stage.mode != "shared":
            received = 1
            while received < BIG + len(f"${BIG}\r\n\r\n"):
                received += len(slow.socket.recv(1 << 20))
            assert slow.says("PING") == b"+PONG\r\n"


# The operator's log line: time, client, reason.
TOLD_WHY = r"^keyfence: 127\.0\.0\.1:\d+ \(writer\) is closed: it does not read its replies\n$"


def fill_output(client: Wire, stage: Stage) -> None:
    """Causes replies and reads none, until keyfence closes the connection.

    On a connection of its own Redis' replies wait there, so only keyfence's own add up; on a shared one
    Redis' do, since nobody else may be held up.
    """
    pipeline = REFUSED * 2000
    if stage.mode == "shared":
        with stage.redis.client() as direct:
            direct.setrange("app:big", 32 * MIB, b"!")
        pipeline = request("GET", "app:big")
    client.socket.settimeout(0.05)
    before = stage.closed_for("output")
    with contextlib.suppress(ConnectionError):
        for _ in range(3000):
            with contextlib.suppress(TimeoutError):
                client.socket.sendall(pipeline)
            if stage.closed_for("output") > before:
                return


def test_a_client_that_never_reads_is_closed_at_its_limit_with_a_log_line(
    start_stage: StartStage,
) -> None:
    stage = start_stage("limits: {client_output: 1mb}", expect_stderr=TOLD_WHY)
    before = stage.memory()
    with stage.client() as deaf, stage.client() as other:
        fill_output(deaf, stage)
        assert stage.closed_for("output") == 1
        assert other.says("PING") == b"+PONG\r\n"
        assert stage.memory() - before < 48 * MIB
    eventually(lambda: stage.metric("connections_open") == 0, "all connections are closed")


MANY = 3000


def test_thousands_of_connections_are_served_or_refused_with_an_error(start_stage: StartStage) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = min(MANY, limit // 3)
    places = many * 2 // 3
    message = f"turned a connection away: there are {places} connections already"
    stage = start_stage(f"limits: {{connections: {places}}}", expect_stderr=message)
    before = stage.footprint()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(stage.client()) for _ in range(many)]
        answers = []
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.socket.sendall(REFUSED)
            answers.append(client.reply())
        served = sum(answer.startswith(b"-NOPERM") for answer in answers)
        assert served == places
        turned_away = [answer for answer in answers if not answer.startswith(b"-NOPERM")]
        assert set(turned_away) <= {b"-ERR max number of clients reached\r\n", b""}
        assert b"-ERR max number of clients reached\r\n" in turned_away
        assert stage.metric("connections_rejected_total") == many - places
        assert stage.metric("connections_open") == places
        assert ask(stage.keyfence, "/healthz")[0] == 200
    stage.check_for_leaks(before)


TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(100))


@pytest.mark.parametrize(
    "garbage",
    [
        TLS_HELLO,
        b"\x00" * 1000,
        b"*1\r\n+PING\r\n",
        b"*99999999\r\n",
        b"*2\r\n$-5\r\nGET\r\n",
        b"*1\r\n$99999999999\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"\xff" * 70_000 + b"\r\n",
        b'SET "unbalanced\r\n',
        b"SSH-2.0-OpenSSH_9.2\r\n\x00\x00",
    ],
    ids=["tls", "zeros", "types", "count", "negative", "length", "crlf", "line", "quotes", "ssh"],
)
def test_a_client_that_sends_garbage_gets_an_error_and_harms_no_other(stage: Stage, garbage: bytes) -> None:
    with stage.client() as other, stage.client() as bad:
        assert other.says("PING") == b"+PONG\r\n"
        with contextlib.suppress(ConnectionError):
            bad.socket.sendall(garbage)
            bad.socket.shutdown(socket.SHUT_WR)
        for reply in replies(bad.rest()):
            assert reply.startswith((b"-ERR Protocol error: ", b"-ERR unknown command", b"-NOPERM")), reply
        assert other.says("PING") == b"+PONG\r\n"


def test_clients_that_send_random_bytes_harm_no_other(stage: Stage) -> None:
    dice = random.Random(4)
    words = [
        b"*3\r\n",
        b"$3\r\nSET\r\n",
        b"$5\r\napp:a\r\n",
        b"$1\r\nx\r\n",
        b"\r\n",
        b"PING\r\n",
        b"*-1\r\n",
    ]
    with stage.client() as other:
        for _ in range(150):
            with stage.client() as bad, contextlib.suppress(ConnectionError):
                for _ in range(dice.randint(1, 12)):
                    bad.socket.sendall(dice.choice([dice.choice(words), dice.randbytes(dice.randint(1, 60))]))
        assert other.says("ECHO", "still here") == b"$10\r\nstill here\r\n"


@pytest.mark.parametrize(
    "head",
    [b"POST / HTTP/1.1\r\nHost: localhost:6379\r\n", b"GET / HTTP/1.1\r\nHost: localhost:6379\r\n"],
    ids=["post", "get"],
)
def test_commands_in_a_browser_s_request_never_run(stage: Stage, head: bytes) -> None:
    """Redis treats POST and Host: as an attack. Commands in the body never run."""
    with stage.client() as browser:
        browser.socket.sendall(head + b"Content-Length: 100\r\n\r\n" + request("SET", "app:a", "evil") * 3)
        answer = browser.rest()
    assert b"+OK" not in answer
    assert stage.value("app:a") is None


def test_vanished_subscribers_are_forgotten(stage: Stage) -> None:
    for leave in (Wire.vanish, lambda one: one.socket.close()):
        with stage.client() as one:
            one.send("BLPOP", "app:list", 0)
            with stage.redis.client() as direct:
                eventually(lambda: direct.info("clients")["blocked_clients"] == 1, "it waits")
                leave(one)
                eventually(lambda: direct.info("clients")["blocked_clients"] == 0, "no client is blocked")
                assert direct.rpush("app:list", "x") == 1
                assert direct.delete("app:list") == 1


def test_a_hundred_short_clients_leave_nothing_behind(stage: Stage) -> None:
    stop = threading.Event()
    served: list[int] = []

    def play(seed: int) -> None:
        dice = random.Random(seed)
        count = 0
        while not stop.is_set() and count < 12:
            with stage.client() as one, contextlib.suppress(ConnectionError, TimeoutError):
                for _ in range(dice.randint(1, 4)):
                    assert one.says("ECHO", f"{seed}-{count}") == b"$%d\r\n%d-%d\r\n" % (
                        len(f"{seed}-{count}"),
                        seed,
                        count,
                    )
                one.socket.sendall(request("GET", "app:a") * dice.randint(0, 20))
                if dice.random() < 0.5:
                    one.vanish()
            count += 1
        served.append(count)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS * 2)
    stop.set()
    assert len(served) == 100
    assert sum(served) == 1200
