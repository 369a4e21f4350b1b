"""A failing Redis: each request gets its reply, or a clear error, or the connection ends."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.upstream.health import ATTEMPTS_AT_ONCE
from tests.adversity.fault_proxy import NONE, Direction, unanswered_port
from tests.adversity.stage import Stage, Wire, is_clear_error, request
from tests.clients.running import ask, eventually
from tests.servers import RedisServer, free_port, running_redis, server_binaries
from tests.session.sessions import replies

StartStage = Callable[..., Stage]
REFUSED = request("GET", "elsewhere")  # by the policy, whatever Redis does


def test_an_upstream_that_refuses_connections_closes_the_clients_that_send(stage: Stage) -> None:
    stage.faults.go_away()
    with stage.client() as client:
        client.socket.sendall(request("GET", "app:a") + REFUSED + request("GET", "app:a"))
        assert client.rest() == b""  # the replies would come in this order, and Redis sends none
    stage.faults.come_back()
    eventually(lambda: stage.asked("GET", "app:a") == b"$-1\r\n", "a later client is served")


def test_an_upstream_that_ignores_the_connect_times_out(start_stage: StartStage) -> None:
    with unanswered_port() as port:
        stage = start_stage(upstream=f"redis://127.0.0.1:{port}", expect_stderr="unreachable: timed out")
        with stage.client() as client:
            client.socket.sendall(request("GET", "app:a") + REFUSED)
            assert client.rest() == b""


def test_a_silent_upstream_delays_only_the_clients_that_wait_for_it(stage: Stage) -> None:
    """keyfence waits as a client of Redis would, because a command may take long.

    It forgets clients that leave.
    """
    stage.faults.cut(reset=True)
    with stage.faults.doing(accept="silent"):
        with stage.client() as waiting, stage.client() as refused:
            waiting.send("GET", "app:a")
            refused.socket.sendall(REFUSED)
            assert refused.reply().startswith(b"-NOPERM")
            assert ask(stage.keyfence, "/healthz")[0] == 200
            waiting.vanish()
        eventually(lambda: stage.metric("connections_open") == 0, "all connections are closed")
    stage.faults.cut(reset=True)


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
@pytest.mark.parametrize("after", [0, 1, 5, 40])
def test_an_upstream_that_dies_in_the_middle_of_a_reply(stage: Stage, after: int, reset: bool) -> None:
    """The beginning of a reply reaches the client, and no bytes that it could take for the rest."""
    with stage.redis.client() as direct:
        direct.set("app:a", "x" * 100)
    whole = b"$100\r\n" + b"x" * 100 + b"\r\n"
    stage.faults.cut()
    with stage.faults.doing(to_client=Direction(cut_after=after, reset=reset)), stage.client() as client:
        client.socket.sendall(request("GET", "app:a") * 3)
        data = client.rest()
    stage.faults.cut()
    if after and data.startswith(b"$"):
        assert whole.startswith(data)
    else:
        assert all(is_clear_error(reply) for reply in replies(data))
        assert len(replies(data)) <= 3


def test_an_upstream_that_dies_between_replies_loses_only_later_replies(stage: Stage) -> None:
    with stage.redis.client() as direct:
        direct.set("app:a", "x" * 100)
    whole = b"$100\r\n" + b"x" * 100 + b"\r\n"
    stage.faults.cut()
    with stage.faults.doing(to_client=Direction(cut_after=len(whole))), stage.client() as client:
        client.socket.sendall(request("GET", "app:a") + REFUSED + request("GET", "app:a"))
        answers = replies(client.rest())
    stage.faults.cut()
    kept = [answer for answer in answers if not is_clear_error(answer)]
    assert kept[:1] in ([whole], [answers[1]] if len(answers) > 1 else [])
    assert sum(answer.startswith(b"-NOPERM") for answer in answers) <= 1
    assert is_clear_error(answers[-1]) or answers[-1].startswith(b"-NOPERM")


def test_a_hanging_upstream_delays_only_its_replies(stage: Stage) -> None:
    with stage.redis.client() as direct:
        direct.mset({"app:a": "1", "app:b": "2"})
    with stage.client() as one, stage.client() as other:
        assert one.says("PING") == other.says("PING") == b"+PONG\r\n"
        with stage.faults.doing(to_client=Direction(hang=True)):
            one.socket.sendall(request("GET", "app:a") + REFUSED + request("GET", "app:a"))
            other.socket.sendall(request("GET", "app:b"))
            assert ask(stage.keyfence, "/healthz")[0] == 200
        assert [one.reply(), one.reply()[:7], one.reply()] == [b"$1\r\n1\r\n", b"-NOPERM", b"$1\r\n1\r\n"]
        assert other.reply() == b"$1\r\n2\r\n"


def test_an_upstream_that_hangs_and_then_dies_fails_the_open_requests(stage: Stage) -> None:
    def sent() -> float:
        return stage.metric("traffic_bytes_total", direction="upstream_out")

    with stage.client() as client:
        assert client.says("PING") == b"+PONG\r\n"
        before = sent()
        with stage.faults.doing(to_client=Direction(hang=True)):
            client.socket.sendall(request("GET", "app:a") * 5)
            eventually(lambda: sent() > before, "it is sent")
            stage.faults.cut(reset=True)
            data = [client.reply() for _ in range(5)]
        assert all(is_clear_error(reply) for reply in data)


def test_an_upstream_that_returns_serves_waiting_and_new_clients(stage: Stage) -> None:
    with stage.client() as before:
        assert before.says("SET", "app:a", "1") == b"+OK\r\n"
        stage.faults.go_away()
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
        stage.faults.come_back()
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 200, "keyfence is ready again")
        # A client that loses its dedicated connection is closed; one on a shared connection may stay.
        assert before.says("GET", "app:a") in (b"", b"$1\r\n1\r\n")
        with stage.client() as after:
            eventually(lambda: after.says("GET", "app:a") == b"$1\r\n1\r\n", "it is served")


@contextlib.contextmanager
def loading_redis(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A Redis that loads its data for some seconds, and answers LOADING meanwhile."""
    binary = server_binaries()[0]
    if binary.version < "7":
        pytest.skip("before Redis 7 the server cannot be made to answer while it loads so little")
    arguments = ["--dir", str(folder), "--dbfilename", "dump.rdb"]
    with running_redis(binary, arguments=arguments) as maker, maker.client() as direct:
        direct.mset({f"app:{number}": "x" * 100 for number in range(3000)})
        direct.save()
    slow = ["--key-load-delay", "1500", "--loading-process-events-interval-bytes", "1024"]
    where = ["--dir", str(folder), "--dbfilename", "dump.rdb", "--port", str(port), "--bind", "127.0.0.1"]
    process = subprocess.Popen([binary.path, *where, *slow, "--save", ""], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_loading_upstream_answers_loading_itself(start_stage: StartStage, tmp_path: Path) -> None:
    port = free_port()
    stage = start_stage(upstream=f"redis://127.0.0.1:{port}", expect_stderr="is unreachable")
    seen: list[bytes] = []

    def asked() -> bytes:
        seen.append(stage.asked("GET", "app:1"))
        return seen[-1]

    assert is_clear_error(asked())
    with loading_redis(tmp_path, port):
        eventually(lambda: asked().startswith(b"$100\r\n"), "the value is there")
    assert any(reply.startswith(b"-LOADING ") for reply in seen), seen[:3]
    assert all(reply.startswith((b"-LOADING", b"$100")) for reply in seen if reply)


def test_an_upstream_that_becomes_a_replica_answers_readonly_and_serves_reads(
    stage: Stage, start_redis: Callable[..., RedisServer]
) -> None:
    other = start_redis(tcp=True)
    with stage.client() as client, stage.redis.client() as direct:
        assert client.says("SET", "app:a", "1") == b"+OK\r\n"
        with other.client() as master:
            master.set("app:a", "1")
        direct.replicaof("127.0.0.1", str(other.port))
        try:
            assert client.says("SET", "app:a", "2").startswith(b"-READONLY ")
            eventually(lambda: client.says("GET", "app:a") == b"$1\r\n1\r\n", "it reads")
            assert client.says("MULTI") == b"+OK\r\n"
            assert client.says("SET", "app:a", "2").startswith(b"-READONLY ")
            assert client.says("EXEC").startswith(b"-EXECABORT")
        finally:
            direct.replicaof("NO", "ONE")
        assert client.says("SET", "app:a", "3") == b"+OK\r\n"


def test_an_upstream_out_of_memory_answers_oom_and_serves_reads(stage: Stage) -> None:
    with stage.client() as client, stage.redis.client() as direct:
        assert client.says("SET", "app:a", "1") == b"+OK\r\n"
        direct.config_set("maxmemory", 1)
        try:
            assert client.says("SET", "app:a", "2").startswith(b"-OOM command not allowed")
            assert client.says("GET", "app:a") == b"$1\r\n1\r\n"
        finally:
            direct.config_set("maxmemory", 0)
        assert client.says("SET", "app:a", "3") == b"+OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        b"-BUSY Redis is busy running a script.\r\n",
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    ],
    ids=lambda answer: answer[1:].split()[0].decode(),
)
def test_an_upstream_error_reaches_the_client_unchanged(stage: Stage, answer: bytes) -> None:
    stage.faults.cut(reset=True)
    with stage.faults.doing(accept="answer", answer=answer), stage.client() as client:
        eventually(lambda: client.says("SET", "app:a", "1") == answer, "the error comes")
    stage.faults.cut(reset=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"$-2\r\n",
        b"*3\r\n$999999999999999999999\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 100,
    ],
    ids=["http", "tls", "length", "number", "ssh", "zeros"],
)
def test_garbage_from_the_upstream_ends_the_connection_and_reaches_no_client(
    stage: Stage, answer: bytes
) -> None:
    stage.faults.cut(reset=True)
    with stage.faults.doing(accept="answer", answer=answer), stage.client() as client:
        client.send("GET", "app:a")
        data = client.rest()
    stage.faults.cut(reset=True)
    assert not data or is_clear_error(data)


def test_a_damaged_reply_never_reaches_another_client(stage: Stage) -> None:
    """A damaged reply may end connections, but shifts no other reply."""
    with stage.redis.client() as direct:
        for name in "abcd":
            direct.set(f"app:{name}", name * 50)
    flips = iter(range(10_000))

    def garble(data: bytes) -> bytes:
        at = next(flips) * 7 % len(data)
        return data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :]

    for _ in range(15):
        stage.faults.cut()
        with contextlib.ExitStack() as stack:
            clients = {name: stack.enter_context(stage.client()) for name in "abcd"}
            with stage.faults.doing(to_client=Direction(garble=garble)):
                for name, client in clients.items():
                    client.socket.sendall(request("GET", f"app:{name}"))
                for name, client in clients.items():
                    client.socket.settimeout(0.05)  # a length that grew is waited for
                    with contextlib.suppress(TimeoutError):
                        reply = client.reply()
                        letters = {letter for letter in "abcd" if reply.count(letter.encode()) > 20}
                        assert letters <= {name}
            stage.faults.cut(reset=True)


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_request_that_may_have_run_is_not_retried(stage: Stage, reset: bool) -> None:
    """Redis runs each INCR and its reply is lost. The counter equals the number of INCRs sent."""
    rounds = 12
    for _ in range(rounds):
        stage.faults.cut()
        with stage.faults.doing(to_client=Direction(cut_after=0, reset=reset)), stage.client() as client:
            client.socket.sendall(request("INCR", "app:n") * 5)
            assert all(is_clear_error(client.reply()) for _ in range(5))
    stage.faults.cut()
    eventually(lambda: stage.asked("PING") == b"+PONG\r\n", "keyfence serves again")
    assert 1 <= int(stage.value("app:n") or 0) <= rounds * 5  # a back-off may keep some from Redis


def test_an_unsent_request_waits_for_the_end_of_an_outage_or_is_never_sent(stage: Stage) -> None:
    with stage.client() as client:
        assert client.says("GET", "app:n") == b"$-1\r\n"
        stage.faults.go_away()
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
    with stage.client() as client:
        client.send("INCR", "app:n")
        stage.faults.come_back()
        reply = client.reply()
        assert reply in (b":1\r\n", b"")  # it was closed, if the outage took longer than the wait
    with stage.client() as client:
        expected = b":2\r\n" if reply else b":1\r\n"
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 200, "keyfence is ready again")
        assert client.says("INCR", "app:n") == expected


def test_a_doubtful_connection_is_never_reused(stage: Stage) -> None:
    """Clients vanish while their replies are delayed. Later clients get their own replies."""
    with stage.redis.client() as direct:
        for number in range(20):
            direct.set(f"app:{number}", f"value-{number}")
    for _ in range(5):
        with stage.faults.doing(to_client=Direction(hang=True)):
            for number in range(0, 20, 2):
                with stage.client() as client:
                    client.socket.sendall(request("GET", f"app:{number}") * 3)
                    client.vanish()
            with contextlib.ExitStack() as stack:
                staying = {n: stack.enter_context(stage.client()) for n in range(1, 20, 2)}
                for number, client in staying.items():
                    client.socket.sendall(request("GET", f"app:{number}") * 3)
                stage.faults.faults = NONE
                for number, client in staying.items():
                    value = f"value-{number}".encode()
                    expected = b"$%d\r\n%b\r\n" % (len(value), value)
                    assert [client.reply() for _ in range(3)] == [expected] * 3


def test_replies_that_arrive_byte_by_byte_are_unchanged(stage: Stage) -> None:
    with stage.redis.client() as direct:
        direct.hset("app:h", mapping={str(n): "x" * n for n in range(20)})
    everything = request("HGETALL", "app:h") + REFUSED + request("MULTI") + request("GET", "app:a")
    everything += request("GET", "elsewhere") + request("EXEC") + request("ECHO", "done")
    with stage.client() as client:
        client.socket.sendall(everything)
        expected = [client.reply() for _ in range(7)]
    bytewise = stage.faults.doing(to_client=Direction(one_byte=True), to_target=Direction(one_byte=True))
    with bytewise, stage.client() as client:
        client.socket.sendall(everything)
        again = [client.reply() for _ in range(7)]
    assert [r.split(b" (d-")[0] for r in again] == [r.split(b" (d-")[0] for r in expected]
    assert expected[5].startswith(b"-EXECABORT")
    assert expected[6] == b"$4\r\ndone\r\n"


def test_late_replies_arrive(stage: Stage) -> None:
    with stage.client() as client, stage.faults.doing(to_client=Direction(delay=0.02)):
        client.socket.sendall(b"".join(request("ECHO", number) for number in range(50)))
        assert [client.reply() for _ in range(50)] == [b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(50)]


HERD = 500
SECONDS_DOWN = 3.0


@contextlib.contextmanager
def herd_of(stage: Stage) -> Iterator[list[Wire]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(stage.client()) for _ in range(HERD)]


def ask_for_a_while(herd: list[Wire]) -> float:
    """All clients ask repeatedly and get errors, because the upstream is down.

    Returns the seconds that passed.
    """
    began = time.monotonic()
    while (passed := time.monotonic() - began) < SECONDS_DOWN:
        for client in herd:
            with contextlib.suppress(ConnectionError):
                client.send("GET", "app:a")
        for client in herd:
            assert is_clear_error(client.reply())
    return passed


def paced(seconds: float) -> float:
    """Returns the maximum number of connection attempts in this time.

    The prober makes one a second. The back-off begins with some quick attempts and ends with at most two a
    second.
    """
    return 12 + 4 * seconds


def all_are_served(stage: Stage, herd: list[Wire]) -> None:
    """Each client asks once more; closed clients reconnect first."""
    with contextlib.ExitStack() as stack:
        living = [stack.enter_context(stage.client()) if one.is_closed() else one for one in herd]
        for client in living:
            client.send("GET", "app:a")
        assert {client.reply() for client in living} == {b"$-1\r\n"}


def test_five_hundred_clients_do_not_flood_an_upstream_that_is_down(stage: Stage) -> None:
    with herd_of(stage) as herd:
        stage.faults.go_away()
        failures = stage.metric("upstream_connect_failures_total")
        seconds = ask_for_a_while(herd)
        failures = stage.metric("upstream_connect_failures_total") - failures
        # Some attempts may begin before the first one fails.
        assert 2 <= failures <= paced(seconds) + ATTEMPTS_AT_ONCE


def test_five_hundred_clients_do_not_flood_an_upstream_that_returns(stage: Stage) -> None:
    """Only clients that ask open connections; clients that wait open none."""
    with herd_of(stage) as herd:
        stage.faults.go_away()
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
        del stage.faults.accepted[:]
        stage.faults.come_back()
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 200, "keyfence is ready again")
        assert len(stage.faults.accepted) <= 12
        all_are_served(stage, herd)
        assert len(stage.faults.accepted) <= HERD + 12


def test_five_hundred_clients_do_not_flood_an_upstream_that_closes_at_once(stage: Stage) -> None:
    """A load balancer without servers does so, or a Redis at its client limit."""
    with herd_of(stage) as herd:
        stage.faults.cut(reset=True)
        with stage.faults.doing(accept="reset"):
            del stage.faults.accepted[:]
            seconds = ask_for_a_while(herd)
            attempts = len(stage.faults.accepted)
        # Until keyfence notices, each asking client may try once.
        assert 2 <= attempts <= paced(seconds) + HERD, f"{attempts} attempts in {seconds:.1f} s"
        eventually(lambda: ask(stage.keyfence, "/readyz")[0] == 200, "keyfence is ready again")
        all_are_served(stage, herd)


def test_a_client_that_takes_notices_is_told_of_an_outage_and_of_its_end(stage: Stage) -> None:
    with stage.client() as client:
        assert client.says("HELLO", 3).startswith(b"%")
        assert client.says("CLIENT", "MAINT_NOTIFICATIONS", "ON") == b"+OK\r\n"
        stage.faults.refuse()
        eventually(lambda: stage.metric("upstream_up") == 0, "Redis is away")
        stage.faults.come_back()
        eventually(lambda: stage.metric("upstream_up") == 1, "Redis is back")
        told = client.says("PING")  # the notices come before the reply
    begin = rb">4\r\n\$12\r\nFAILING_OVER\r\n:(\d+)\r\n:2\r\n.*"
    end = rb">3\r\n\$11\r\nFAILED_OVER\r\n:\1\r\n.*\+PONG\r\n"
    assert re.fullmatch(begin + end, told, re.DOTALL)
