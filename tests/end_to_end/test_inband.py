"""KEYFENCE over redis-cli and redis-py, in one process and with workers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from keyfence.policy.rules import RULES
from keyfence.resp import encode
from tests.clients.running import eventually, metric, normal_clients, open_files, settle
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis

POLICY = """
policy: shop
services: [web, ops, look]
owner: {team: shop, contact: "#shop"}
claims: ["shop:"]
placeholders: {id: "[a-z0-9]+"}
scopes: {web: {prefix: "shop:", writers: web, readers: [ops]}}
keys: {cart: {key: "shop:cart:<id>", type: hash}}
grants:
  web: {commands: [KEYFENCE]}
  ops: {commands: [KEYFENCE]}
  look: {commands: ["KEYFENCE WHOAMI"]}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


def configured(folder: Path, server: RedisServer, *lines: str) -> Path:
    (folder / "shop.yaml").write_text(POLICY)
    config = folder / "keyfence.yaml"
    services = "".join(f'  - {{listen: "127.0.0.1:0", service: {name}}}\n' for name in ("web", "ops", "look"))
    modes = "modes: [{rule: scope.write, mode: enforce}]\n"
    config.write_text(
        f"policy: shop.yaml\nupstream: {server.url}\nadmin: 127.0.0.1:0\n{modes}listeners:\n{services}"
        + "\n".join(lines)
    )
    return config


@pytest.fixture(params=["", "workers: 2"])
def keyfence(request: pytest.FixtureRequest, tmp_path: Path, server: RedisServer) -> Iterator[Keyfence]:
    server.clear()
    with Keyfence("--config", configured(tmp_path, server, request.param)) as one:
        settle(one)
        yield one


def fields(reply: Any) -> dict[str, Any]:
    """A map, which RESP2 has as a flat array."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def call(client: redis.Redis, *words: str) -> dict[str, Any]:
    return fields(client.execute_command("KEYFENCE", *words))


def error_of(client: redis.Redis, *words: str) -> str:
    with pytest.raises(redis.ResponseError) as error:
        client.execute_command(*words)
    return str(error.value)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_service_learns_who_it_is_and_what_it_has_broken(keyfence: Keyfence, protocol: int) -> None:
    known = {"protocol": protocol, "decode_responses": True, "client_name": "cron@a"}
    with keyfence.client("ops", **known) as client:
        assert "[scope.write]" in error_of(client, "HSET", "shop:cart:a", "f", "1")
        client.hget("shop:cart:a", "f")
        who = call(client, "WHOAMI")
        assert (who["service"], who["identified_by"], who["policy"]) == ("ops", "listener", "shop")
        assert (who["user"], who["contact"]) == (None, "#shop")
        found = call(client, "FINDINGS")
        (finding,) = map(fields, found["findings"])
        assert (finding["rule"], finding["command"], finding["entry"]) == ("scope.write", "HSET", "cart")
        assert (finding["refused"], finding["example"]) == (1, "shop:cart:a")
        assert (finding["state"], finding["owner"]) == ("new", "#shop")
        assert found["left_out"] == 0
        modes = call(client, "MODES")
        assert modes.keys() == RULES.keys()
        assert (modes["scope.write"], modes["scope.read"]) == ("enforce", "observe")
        stats = call(client, "STATS")
        assert (stats["refused"], stats["violations"]) == (1, 1)
        asked_for_notices = protocol == 3  # by redis-py itself
        assert stats["answered_here"] == 4 + asked_for_notices
        (upstream,) = map(fields, call(client, "UPSTREAMS")["upstreams"])
        assert (upstream["state"], upstream["reason"]) == ("up", "")
        (own,) = map(fields, call(client, "SHOW", "CLIENTS")["clients"])
        assert (own["address"], own["service"], own["name"]) == (who["address"], "ops", "cron@a")
        assert (own["idle"], own["age"] < PATIENCE_SECONDS) == (0, True)


def test_the_clients_of_all_processes_are_shown(keyfence: Keyfence) -> None:
    clients = [keyfence.client("web", single_connection_client=True) for _ in range(8)]
    for client in clients:
        client.ping()
    with keyfence.client("ops", decode_responses=True) as client:
        found = list(map(fields, call(client, "SHOW", "CLIENTS")["clients"]))
    assert [one["service"] for one in found] == ["ops"] + ["web"] * 8
    assert len({one["address"] for one in found}) == 9
    for client in clients:
        client.close()


def test_explain_says_what_would_happen_and_runs_nothing(keyfence: Keyfence, server: RedisServer) -> None:
    with keyfence.client("ops", decode_responses=True) as client:
        found = call(client, "EXPLAIN", "HSET", "shop:cart:a", "f", "1")
        assert (found["verdict"], found["rule"], found["refused"]) == ("violation", "scope.write", 1)
        assert found["message"] == "ops may not HSET shop:cart:a"
        assert fields(found["remedies"][0])["rule"] == "scope.write"
        assert call(client, "EXPLAIN", "HGET", "shop:cart:a", "f")["verdict"] == "allow"
        assert call(client, "EXPLAIN", "KEYFENCE", "WHOAMI")["command"] == "KEYFENCE WHOAMI"
    with keyfence.client("web", decode_responses=True) as client:
        assert call(client, "EXPLAIN", "HSET", "shop:cart:a", "f", "1")["verdict"] == "allow"
    with server.client() as direct:
        assert direct.dbsize() == 0
    assert metric(keyfence, "keyfence_violations_total") == 0


def everything(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_a_pipeline_keeps_its_order_and_a_client_that_sends_no_more_gets_every_reply(
    keyfence: Keyfence,
) -> None:
    pieces, expected = [], []
    for number in range(200):
        text = f"n{number}".encode()
        pieces += [encode.command("ECHO", text), encode.command("KEYFENCE", "NOSUCH"), b"KEYFENCE STATS\r\n"]
        expected += [
            b"$%d\r\n%b\r\n" % (len(text), text),
            b"-ERR unknown subcommand",
            b"*14\r\n$7\r\nservice",
        ]
    with keyfence.connect("web") as connection:
        connection.sendall(b"".join(pieces))
        connection.shutdown(socket.SHUT_WR)
        got = everything(connection)
    at = 0
    for reply in expected:
        at = got.index(reply, at) + len(reply)
    assert got.count(b"$13\r\nanswered_here\r\n") == 200


def test_a_client_without_any_command_for_redis_gets_its_reply_before_its_end(keyfence: Keyfence) -> None:
    with keyfence.connect("web") as connection:
        connection.sendall(b"KEYFENCE SHOW CLIENTS\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection).startswith(b"*4\r\n$7\r\nclients\r\n*1\r\n")


def test_without_a_grant_it_gets_what_redis_answers(keyfence: Keyfence, server: RedisServer) -> None:
    calls = [("KEYFENCE", "STATS"), ("keyfence",), ("KEYFENCE", "SHOW", "CLIENTS")]
    with keyfence.client("look") as client, server.client() as direct:
        for words in calls:
            assert error_of(client, *words) == error_of(direct, *words)
        assert call(client, "WHOAMI")[b"service"] == b"look"
        assert metric(keyfence, "keyfence_violations_total", rule="command.unknown") == len(calls)


def test_inside_multi_it_aborts_the_transaction(keyfence: Keyfence, server: RedisServer) -> None:
    with keyfence.client("web") as client:
        pipe = client.pipeline()
        pipe.hset("shop:cart:a", "f", "1")
        pipe.execute_command("KEYFENCE", "WHOAMI")
        with pytest.raises(redis.ResponseError, match="not allowed inside a transaction"):
            pipe.execute()
    with server.client() as direct:
        assert direct.dbsize() == 0


def test_many_clients_that_ask_at_once_all_get_the_newest_counts(keyfence: Keyfence) -> None:
    clients = [keyfence.connect("web") for _ in range(40)]
    for connection in clients:
        connection.sendall(b"ECHO x\r\nKEYFENCE STATS\r\n")
        connection.shutdown(socket.SHUT_WR)
    counted = []
    for connection in clients:
        with connection:
            counted.append(int(everything(connection).split(b"$9\r\nforwarded\r\n:")[1].split(b"\r\n")[0]))
    assert all(1 <= number <= 40 for number in counted)
    with keyfence.client("web") as client:
        assert call(client, "STATS")[b"forwarded"] >= 40


def test_a_parent_that_does_not_answer_gives_an_error_and_the_session_goes_on(
    tmp_path: Path, server: RedisServer
) -> None:
    with (
        Keyfence("--config", configured(tmp_path, server, "workers: 2")) as keyfence,
        keyfence.client("web", single_connection_client=True) as client,
    ):
        call(client, "STATS")
        os.kill(keyfence.process.pid, signal.SIGSTOP)
        try:
            with client.pipeline(transaction=False) as pipe:
                pipe.ping()
                for words in (("STATS",), ("WHOAMI",)):
                    pipe.execute_command("KEYFENCE", *words)
                pong, late, who = pipe.ping().execute(raise_on_error=False)[:3]
        finally:
            os.kill(keyfence.process.pid, signal.SIGCONT)
        assert pong is True
        assert str(late).startswith("keyfence: no answer in time")
        assert fields(who)[b"service"] == b"web"
        assert call(client, "STATS")[b"service"] == b"web"


def test_clients_that_go_before_their_answer_leave_nothing_behind(
    keyfence: Keyfence, server: RedisServer
) -> None:
    with keyfence.client("web") as client:
        call(client, "FINDINGS")  # the first answer may open a file
        files, clients = open_files(keyfence), normal_clients(server)
        for _ in range(50):
            with keyfence.connect("web") as connection:
                connection.sendall(b"KEYFENCE STATS\r\nKEYFENCE FINDINGS\r\n")
        eventually(lambda: len(call(client, "SHOW", "CLIENTS")[b"clients"]) == 1, "all have gone")
        # Fewer may be open than before, because something else ended since.
        eventually(lambda: normal_clients(server) <= clients, "the upstream connections are closed")
        eventually(lambda: open_files(keyfence) <= files, "all files are closed")


def test_readiness_says_what_is_left_to_do(keyfence: Keyfence) -> None:
    with keyfence.client("ops", decode_responses=True) as client:
        error_of(client, "HSET", "shop:cart:a", "f", "1")
        client.hget("elsewhere", "f")
        client.hget("shop:cart:a", "f")
        findings = map(fields, call(client, "FINDINGS")["findings"])
        (finding,) = (one for one in findings if one["rule"] == "key.unregistered")
        found = call(client, "READINESS")
    assert (found["service"], found["ready"], found["left_out"]) == ("ops", 0, 0)
    rules = {one["rule"]: one for one in map(fields, found["rules"])}
    assert rules.keys() == RULES.keys()
    assert rules["scope.write"]["readiness"] == "enforced"
    assert rules["key.unregistered"]["readiness"] == "not ready"
    assert rules["key.unregistered"]["findings"] == [finding["id"]]
    assert rules["scope.read"]["readiness"] == "gap"
    assert rules["scope.read"]["why"].startswith("observe for another ")
    assert rules["stream.maxlen"]["readiness"] == "no traffic"


@pytest.mark.parametrize("workers", ["", "workers: 1"])
def test_without_a_store_findings_are_those_since_the_start(
    tmp_path: Path, server: RedisServer, workers: str
) -> None:
    config = configured(tmp_path, server, "findings: none", workers)
    with Keyfence("--config", config) as keyfence, keyfence.client("web", decode_responses=True) as client:
        client.get("elsewhere")
        found = call(client, "FINDINGS")
        (finding,) = map(fields, found["findings"])
        assert (finding["rule"], finding["shape"]) == ("key.unregistered", "elsewhere")
        assert finding["observed"] == 1
        assert error_of(client, "KEYFENCE", "READINESS").startswith("keyfence: there is no findings store")


def test_a_reload_takes_the_grant_away(tmp_path: Path, server: RedisServer) -> None:
    config = configured(tmp_path, server)
    with Keyfence("--config", config) as keyfence, keyfence.client("ops") as client:
        revision = call(client, "WHOAMI")[b"revision"]
        policy = tmp_path / "shop.yaml"
        policy.write_text(policy.read_text().replace("  ops: {commands: [KEYFENCE]}\n", ""))
        os.kill(keyfence.process.pid, signal.SIGHUP)
        keyfence.wait_for_line("keyfence: reloaded")
        assert "unknown command" in error_of(client, "KEYFENCE", "WHOAMI")
        with keyfence.client("web") as other:
            assert call(other, "WHOAMI")[b"revision"] != revision


def test_in_passthrough_nothing_is_read(tmp_path: Path, server: RedisServer) -> None:
    with (
        Keyfence("--config", configured(tmp_path, server), "--splice") as keyfence,
        keyfence.client("web") as client,
        server.client() as direct,
    ):
        assert error_of(client, "KEYFENCE", "WHOAMI") == error_of(direct, "KEYFENCE", "WHOAMI")


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not on PATH")
@pytest.mark.parametrize("protocol", [[], ["-3"]])
def test_redis_cli_shows_the_answers(keyfence: Keyfence, protocol: list[str]) -> None:
    host, port = keyfence.address("web")

    def cli(*words: str) -> str:
        run = subprocess.run(
            ["redis-cli", "-h", host, "-p", str(port), *protocol, "--no-raw", "KEYFENCE", *words],
            capture_output=True, timeout=PATIENCE_SECONDS, check=True,
        )  # fmt: skip
        return run.stdout.decode()

    whoami = cli("WHOAMI")
    assert '"service" => "web"' in whoami if protocol else '1) "service"' in whoami
    assert "WHOAMI" in cli("HELP")
    assert '"listener"' in whoami
    assert '"clients"' in cli("SHOW", "CLIENTS")
    assert cli("NOSUCH").startswith("(error) ERR unknown subcommand 'NOSUCH'")
