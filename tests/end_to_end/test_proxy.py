"""keyfence as a process between real clients and a real Redis, in observe and enforce."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from keyfence.resp import encode
from tests.clients.running import POLICY, ROUTE, ask, calls, configure, decisions, eventually, metric
from tests.servers import PROJECT, Keyfence, RedisServer
from tests.session.sessions import replies

STATE = "cube:v1:shared:sandbox:lifecycle:state:7c8f"
EVENTS = "cube:v1:shared:sandbox:lifecycle:events"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {mode: tmp_path_factory.mktemp(mode) for mode in ("observe", "enforce")}


@pytest.fixture(scope="module")
def _observing(_shared_redis: RedisServer, folders: dict[str, Path]) -> Iterator[Keyfence]:
    with Keyfence("--config", configure(folders["observe"], _shared_redis.url, mode="observe")) as keyfence:
        yield keyfence


@pytest.fixture(scope="module")
def _enforcing(_shared_redis: RedisServer, folders: dict[str, Path]) -> Iterator[Keyfence]:
    path = configure(folders["enforce"], _shared_redis.url, mode="enforce")
    with Keyfence("--config", path, expect_stderr=r"\A(keyfence: break-glass.*\n)*\Z") as keyfence:
        yield keyfence


@pytest.fixture
def observing(redis_server: RedisServer, _observing: Keyfence) -> Keyfence:
    assert redis_server
    return _observing


@pytest.fixture
def enforcing(redis_server: RedisServer, _enforcing: Keyfence) -> Keyfence:
    assert redis_server
    return _enforcing


def read_replies(connection: socket.socket, number: int) -> list[bytes]:
    data = b""
    while True:
        chunk = connection.recv(1 << 20)
        assert chunk, f"closed after {data[-200:]!r}"
        data += chunk
        try:
            frames = replies(data)
        except AssertionError:
            continue
        if len(frames) >= number:
            return frames


# -- observe


def test_an_observed_violation_passes_and_is_counted_and_logged(
    observing: Keyfence, redis_server: RedisServer, folders: dict[str, Path]
) -> None:
    with observing.client("CubeProxy") as client:
        assert client.hset(ROUTE, "HostIP", "10.0.0.7") == 1
    with redis_server.client() as direct:
        assert direct.hgetall(ROUTE) == {b"HostIP": b"10.0.0.7"}
    labels = {"service": "CubeProxy", "rule": "scope.write", "command": "HSET", "action": "observed"}
    assert metric(observing, "keyfence_violations_total", entry="sandbox-route", **labels) >= 1
    eventually(lambda: decisions(folders["observe"]), "the log has a line")
    line = next(d for d in decisions(folders["observe"]) if d["rule"] == "scope.write")
    assert (line["service"], line["command"], line["action"]) == ("CubeProxy", "HSET", "observed")
    assert line["key"] == ROUTE
    assert "10.0.0.7" not in json.dumps(line)


@pytest.mark.parametrize("protocol", [2, 3])
def test_subscriptions_are_followed_and_reported(observing: Keyfence, protocol: int) -> None:
    options = {"protocol": protocol}
    with observing.client("CubeProxy", **options) as client, client.pubsub() as subscriber:
        subscriber.subscribe("news", "more")
        subscriber.psubscribe("n*")
        text = [subscriber.get_message(timeout=30) for _ in range(3)]
        assert [one and one["type"] for one in text] == ["subscribe", "subscribe", "psubscribe"]
        assert client.publish("news", "hello") == 2
        got = [subscriber.get_message(timeout=30) for _ in range(2)]
        assert sorted(one["type"] for one in got if one) == ["message", "pmessage"]
        subscriber.unsubscribe()
        ended = [subscriber.get_message(timeout=30) for _ in range(2)]
        assert [one and one["type"] for one in ended] == ["unsubscribe", "unsubscribe"]
    assert metric(observing, "keyfence_violations_total", rule="channel.read", action="observed") >= 1


CHANNELS = """
policy: channels
services: [speaker, listener]
placeholders: {id: "[a-z]+"}
scopes:
  news: {prefix: "news:", writers: [speaker], readers: [listener], unregistered: allow}
channels:
  news: {channel: "news:<id>", publishers: [speaker], subscribers: [listener]}
"""


@pytest.mark.parametrize("protocol", [2, 3])
def test_an_enforced_policy_admits_only_its_channels(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path, protocol: int
) -> None:
    (tmp_path / "p.yaml").write_text(CHANNELS)
    flags = ("--policy", tmp_path / "p.yaml", "--upstream", redis_server.url, "--mode", "enforce")
    flags = (*flags, "--listen", "127.0.0.1:0", "--admin", "none")
    speaker = start_keyfence(*flags, "--service", "speaker")
    listener = start_keyfence(*flags, "--service", "listener")
    options = {"protocol": protocol}
    with speaker.client(**options) as speaking, listener.client(**options) as listening:
        with listening.pubsub() as subscriber:
            subscriber.subscribe("news:a")
            subscriber.psubscribe("news:b*")
            assert [subscriber.get_message(timeout=30)["type"] for _ in range(2)] == [
                "subscribe",
                "psubscribe",
            ]
            assert speaking.publish("news:a", "x") == 1
            assert speaking.publish("news:bb", "y") == 1
            assert [subscriber.get_message(timeout=30)["data"] for _ in range(2)] == [b"x", b"y"]
        with listening.pubsub() as subscriber:
            subscriber.subscribe("other")
            with pytest.raises(redis.exceptions.NoPermissionError, match=r"\[channel.read\]"):
                subscriber.get_message(timeout=30)
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"\[channel.write\]"):
            listening.publish("news:a", "x")


def test_keyspace_notifications_reach_services_that_may_read_the_key(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(CHANNELS)
    flags = ("--policy", tmp_path / "p.yaml", "--upstream", redis_server.url, "--mode", "enforce")
    listener = start_keyfence(*flags, "--listen", "127.0.0.1:0", "--admin", "none", "--service", "listener")
    with redis_server.client() as direct, listener.client() as client:
        direct.config_set("notify-keyspace-events", "KEA")
        try:
            with client.pubsub() as subscriber:
                subscriber.psubscribe("__keyspace@0__:news:*")
                assert subscriber.get_message(timeout=30)["type"] == "psubscribe"
                direct.set("private", 1)
                direct.set("news:a", 1)
                message = subscriber.get_message(timeout=30)
                assert message["channel"] == b"__keyspace@0__:news:a"
            with client.pubsub() as subscriber:
                subscriber.psubscribe("__keyspace@0__:*")
                with pytest.raises(redis.exceptions.NoPermissionError, match=r"\[channel.read\]"):
                    subscriber.get_message(timeout=30)
        finally:
            direct.config_set("notify-keyspace-events", "")


def test_monitor_passes_unread_in_observe(observing: Keyfence) -> None:
    with observing.connect("CubeProxy") as connection:
        connection.sendall(b"PING\r\nMONITOR\r\n")
        assert read_replies(connection, 2) == [b"+PONG\r\n", b"+OK\r\n"]


def test_a_blocked_client_gets_its_data(observing: Keyfence) -> None:
    popped: list[object] = []

    def wait() -> None:
        with observing.client("CubeMaster") as client:
            popped.append(client.blpop(["queue", "other"], timeout=30))

    waiter = threading.Thread(target=wait)
    waiter.start()
    with observing.client("CubeMaster") as client:
        eventually(lambda: client.info("clients")["blocked_clients"], "a client is blocked")
        client.rpush("queue", "work")
    waiter.join()
    assert popped == [(b"queue", b"work")]


def test_scripts_scans_and_transactions_work_in_observe(observing: Keyfence) -> None:
    with observing.client("CubeMaster", decode_responses=True) as client:
        assert client.eval("return {KEYS[1], ARGV[1], 1, {2, false}}", 1, "k", "a") == [
            "k",
            "a",
            1,
            [2, None],
        ]
        script = client.register_script("redis.call('SET', KEYS[1], ARGV[1]) return 'done'")
        assert script(keys=["s"], args=["v"]) == "done"
        client.mset({f"many:{n}": n for n in range(500)})
        assert len(set(client.scan_iter("many:*", count=20))) == 500
        with client.pipeline() as pipe:
            pipe.watch("s")
            pipe.multi()
            pipe.set("s", "mine")
            client.set("s", "theirs")
            with pytest.raises(redis.WatchError):
                pipe.execute()
        assert client.get("s") == "theirs"


def test_big_values_pass_both_ways(observing: Keyfence) -> None:
    value = bytes(range(256)) * 80_000  # 20 MB
    with observing.client("CubeMaster") as client:
        client.set("big", value)
        assert client.get("big") == value
        assert client.ping()


def test_a_request_over_the_size_limit_passes_in_observe(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path
) -> None:
    path = configure(tmp_path, redis_server.url, "limits: {request: 1MB}", mode="observe")
    keyfence = start_keyfence("--config", path)
    key, value = b"big", b"x" * 1_800_000
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(encode.command("PING") + encode.command("SET", key, value))
        assert read_replies(connection, 2) == [b"+PONG\r\n", b"+OK\r\n"]
        connection.sendall(encode.command("STRLEN", key))
        assert read_replies(connection, 1) == [b":1800000\r\n"]
    assert metric(keyfence, "keyfence_sessions_opaque_total", reason="request too large") == 1


def test_ten_thousand_commands_in_one_pipeline(observing: Keyfence) -> None:
    with observing.client("CubeMaster") as client, client.pipeline(transaction=False) as pipe:
        for number in range(10_000):
            pipe.incr("n") if number % 2 else pipe.echo(str(number))
        answers = pipe.execute()
    assert answers[::2] == [str(number).encode() for number in range(0, 10_000, 2)]
    assert answers[1::2] == list(range(1, 5_001))


def test_a_client_that_half_closes_still_gets_its_replies(observing: Keyfence) -> None:
    with observing.connect("CubeMaster") as connection:
        connection.sendall(b"".join(encode.command("ECHO", number) for number in range(5_000)))
        connection.shutdown(socket.SHUT_WR)
        data = b""
        while chunk := connection.recv(1 << 20):
            data += chunk
    assert replies(data) == [b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(5_000)]


@pytest.mark.parametrize("service", ["CubeMaster", "CubeProxy"])
def test_inline_commands_with_quoting(observing: Keyfence, service: str) -> None:
    with observing.connect(service) as connection:
        connection.sendall(b"\r\nSET inline \"a \\x62 'c'\"\r\n  get   inline \nPING\n")
        assert read_replies(connection, 3) == [b"+OK\r\n", b"$7\r\na b 'c'\r\n", b"+PONG\r\n"]


# -- enforce


def test_a_refusal_is_traceable_and_redis_never_gets_the_command(
    enforcing: Keyfence, redis_server: RedisServer, folders: dict[str, Path]
) -> None:
    with (
        enforcing.client("CubeProxy") as client,
        pytest.raises(redis.exceptions.NoPermissionError) as refused,
    ):
        client.hset(ROUTE, "HostIP", "10.0.0.7")
    text = str(refused.value)
    assert "[scope.write] CubeProxy may not HSET" in text
    assert "its writers: CubeMaster" in text
    assert "Ask #cube-redis." in text
    decision = text.rpartition("(")[2].removesuffix(")")
    log = folders["enforce"]
    eventually(lambda: decision in [line["decision"] for line in decisions(log)], "the id is in the log")
    assert calls(redis_server, ["hset"]) == {"hset": 0}
    with redis_server.client() as direct:
        assert direct.dbsize() == 0
    labels = {"service": "CubeProxy", "rule": "scope.write", "action": "refused"}
    assert metric(enforcing, "keyfence_violations_total", **labels) >= 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_refusals_keep_their_place_in_a_pipeline(
    enforcing: Keyfence, redis_server: RedisServer, protocol: int
) -> None:
    with redis_server.client() as direct:
        direct.hset(ROUTE, "HostIP", "10.0.0.7")
    with (
        enforcing.client("CubeProxy", protocol=protocol) as client,
        client.pipeline(transaction=False) as pipe,
    ):
        for _ in range(500):
            pipe.hget(ROUTE, "HostIP").hset(ROUTE, "HostIP", "10.0.0.8").hgetall(ROUTE).get("nobody")
        answers = pipe.execute(raise_on_error=False)
    assert answers[::4] == [b"10.0.0.7"] * 500
    assert answers[2::4] == [{b"HostIP": b"10.0.0.7"}] * 500
    assert all("[scope.write]" in str(answer) for answer in answers[1::4])
    assert all("[key." in str(answer) for answer in answers[3::4])


def test_a_transaction_with_a_refusal_runs_nothing(enforcing: Keyfence, redis_server: RedisServer) -> None:
    with enforcing.connect("CubeMaster") as connection:
        words = [["MULTI"], ["HSET", ROUTE, "HostIP", "10.0.0.7"], ["SET", STATE, "paused", "EX", "60"]]
        words += [["HSET", ROUTE, "SandboxIP", "10.0.0.8"], ["EXEC"], ["HGETALL", ROUTE]]
        connection.sendall(b"".join(encode.command(*one) for one in words))
        ok, first, refusal, second, abort, after = read_replies(connection, 6)
    assert (ok, first, second) == (b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n")
    assert refusal.startswith(b"-NOPERM [scope.write] ")
    assert abort.startswith(b"-EXECABORT ")
    assert after == b"*0\r\n"
    assert calls(redis_server, ["hset", "set"]) == {"hset": 0, "set": 0}


def test_a_transaction_after_an_aborted_one_runs(enforcing: Keyfence) -> None:
    with enforcing.client("CubeProxy") as client:
        with client.pipeline() as pipe, pytest.raises(redis.exceptions.NoPermissionError):
            pipe.hgetall(ROUTE).hset(ROUTE, "HostIP", "10.0.0.7").execute()
        with client.pipeline() as pipe:
            assert pipe.hgetall(ROUTE).exists(ROUTE).execute() == [{}, 0]


def test_a_should_is_never_refused(enforcing: Keyfence) -> None:
    with enforcing.client("CubeMaster") as client:
        assert client.hset(ROUTE, "AllowPublicTraffic", "1") == 1
    assert metric(enforcing, "keyfence_violations_total", rule="field.unknown", action="refused") == 0
    assert metric(enforcing, "keyfence_violations_total", rule="field.unknown", action="observed") >= 1


@pytest.mark.parametrize("words", ["SUBSCRIBE news", "MONITOR", "SYNC", "KEYS *", "NOSUCH x"])
def test_a_session_continues_after_a_refusal(enforcing: Keyfence, words: str) -> None:
    with enforcing.connect("CubeProxy") as connection:
        connection.sendall(encode.command(*words.split()) + encode.command("HGETALL", ROUTE))
        refusal, after = read_replies(connection, 2)
    assert refusal.startswith(b"-NOPERM [")
    assert after == b"*0\r\n"


def test_invalidations_and_refusals_do_not_mix(enforcing: Keyfence, redis_server: RedisServer) -> None:
    """RESP3 pushes come at any time, also without a request."""
    with enforcing.connect("CubeMaster") as connection, redis_server.client() as direct:
        connection.sendall(encode.command("HELLO", 3) + encode.command("CLIENT", "TRACKING", "ON"))
        hello, tracking = read_replies(connection, 2)
        assert hello.startswith(b"%")
        assert tracking == b"+OK\r\n"
        for _ in range(20):
            connection.sendall(encode.command("HGETALL", ROUTE))
            assert read_replies(connection, 1)[0].startswith(b"%")
            direct.hincrby(ROUTE, "CreatedAt")
            connection.sendall(encode.command("GET", "x:y:z"))
            push, refusal = sorted(read_replies(connection, 2), reverse=True)
            assert push.startswith(b">2\r\n$10\r\ninvalidate")
            assert refusal.startswith(b"-NOPERM")


def test_a_protocol_error_is_answered_and_closes(enforcing: Keyfence) -> None:
    with enforcing.connect("CubeMaster") as connection:
        connection.sendall(encode.command("HGETALL", ROUTE) + b"*1\r\n+PING\r\n" + encode.command("PING"))
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    assert data == b"*0\r\n-ERR Protocol error: expected '$', got '+'\r\n"


def test_http_gets_no_answer(enforcing: Keyfence) -> None:
    with enforcing.connect("CubeMaster") as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nPING\r\n")
        assert connection.recv(100) == b""


def test_quit_is_answered_and_closes(enforcing: Keyfence) -> None:
    with enforcing.connect("CubeMaster") as connection:
        connection.sendall(b"QUIT\r\nPING\r\n")
        assert connection.recv(100) == b"+OK\r\n"
        assert connection.recv(100) == b""


def test_break_glass_stops_refusing_and_ends(enforcing: Keyfence) -> None:
    def refused() -> bool:
        with enforcing.client("CubeProxy") as client:
            try:
                client.hset(ROUTE, "HostIP", "10.0.0.7")
            except redis.exceptions.NoPermissionError:
                return True
            return False

    assert refused()
    command = [sys.executable, "-m", "keyfence", "observe", "--for", "1h", "--rule", "scope.write"]
    command += ["--service", "CubeProxy", "--admin", enforcing.ready.admin]
    message = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "scope.write by CubeProxy" in message.stdout
    assert metric(enforcing, "keyfence_break_glass_active") == 1
    assert not refused()
    with enforcing.client("CubeProxy") as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.get("cube:v1:master:node:metric:n1")  # another rule
    assert ask(enforcing, "/-/observe", method="DELETE")[0] == 200
    assert refused()
    assert metric(enforcing, "keyfence_break_glass_active") == 0


# -- modes


def test_modes_are_per_rule_and_service(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path
) -> None:
    modes = [
        "modes:",
        "  - {rule: scope.write, service: CubeProxy, mode: enforce}",
        "  - {rule: key.legacy, mode: disabled}",
        "  - {mode: observe}",
    ]
    keyfence = start_keyfence("--config", configure(tmp_path, redis_server.url, *modes))
    with keyfence.client("CubeProxy") as proxy, keyfence.client("cube-proxy-sidecar") as sidecar:
        with pytest.raises(redis.exceptions.NoPermissionError):
            proxy.hset(ROUTE, "HostIP", "10.0.0.7")
        assert proxy.get("cube:v1:master:node:metric:n1") is None  # scope.read is observed
        assert sidecar.hset(ROUTE, "HostIP", "10.0.0.7") == 1  # another service
        sidecar.set("describetask:1", "x")
    assert metric(keyfence, "keyfence_violations_total", rule="key.legacy") == 0
    assert metric(keyfence, "keyfence_violations_total", rule="scope.write", action="observed") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_keyfence_and_the_redis_it_started(number: signal.Signals) -> None:
    keyfence = Keyfence("--policy", POLICY, "--listen", "127.0.0.1:0", "--admin", "none")
    with keyfence, keyfence.connect() as connection:
        path = Path(keyfence.ready.upstream.removeprefix("unix://"))
        connection.sendall(b"INFO server\r\n")
        found = re.search(rb"process_id:(\d+)", read_replies(connection, 1)[0])
        assert found
        assert path.exists()
        assert keyfence.signal(number) == 0
        assert connection.recv(100) == b""
    assert not Path(f"/proc/{int(found[1])}").exists()
    assert not path.exists()


def test_a_script_debugger_works_in_observe_as_one_opaque_session(
    fresh_redis: RedisServer, start_keyfence: Callable[..., Keyfence], tmp_path: Path
) -> None:
    """The debugger's input (`s`, `c`) was evaluated as commands, and those were unknown."""
    log = tmp_path / "decisions.log"
    policy = tmp_path / "p.yaml"
    policy.write_text("policy: p\nservices: [one]\ncommands: {allow: [SCRIPT]}\n")
    keyfence = start_keyfence(
        "--policy", policy, "--upstream", fresh_redis.url, "--listen", "127.0.0.1:0", "--service", "one",
        "--mode", "observe", "--decision-log", log, "--admin", "127.0.0.1:0",
    )  # fmt: skip
    with keyfence.connect() as client:
        stopped = b"*2\r\n+* Stopped at %d, stop reason = step over\r\n+-> %d   %s\r\n"
        for words, reply in [
            (["SCRIPT", "DEBUG", "YES"], b"+OK\r\n"),
            (["EVAL", "local a=1\nreturn a", "0"], stopped % (1, 1, b"local a=1")),
            (["s"], stopped % (2, 2, b"return a")),
            (["c"], b"*1\r\n+<endsession>\r\n:1\r\n"),
        ]:
            client.sendall(encode.command(*[word.encode() for word in words]))
            got = b""
            while len(got) < len(reply):
                got += client.recv(len(reply) - len(got))
            assert got == reply
        assert client.recv(1) == b""
    eventually(lambda: log.exists() and log.read_text().endswith("\n"), "a decision is logged")
    assert [(one["rule"], one["command"]) for one in map(json.loads, log.read_text().splitlines())] == [
        ("session.opaque", "SCRIPT DEBUG")
    ]
