"""The admin and metrics listeners of a running keyfence: access and limits."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.admin.routes import ROUTES
from tests.cli.test_main import keyfence as command_line
from tests.clients.running import ask, configure, eventually, metric, open_files, settle
from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis

TOKEN = "the-token-of-this-test-0123456789"
HALF = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Filler: "
FEW_DESCRIPTORS = 200


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def admin_address(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def half_requests(url: str, number: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that never end their header."""
    sockets = []
    for _ in range(number):
        sock = stack.enter_context(socket.create_connection(admin_address(url), PATIENCE_SECONDS))
        with contextlib.suppress(ConnectionError):
            sock.sendall(HALF)
        sockets.append(sock)
    return sockets


def request(
    url: str, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(*admin_address(url), timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        connection.request(method, path, None if body is None else json.dumps(body), named)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def ping(keyfence: Keyfence) -> bytes:
    with keyfence.connect("CubeProxy") as sock:
        sock.sendall(b"PING\r\n")
        return sock.recv(100)


# -- what they may cost


@pytest.mark.parametrize("workers", ["", "workers: 1"])
def test_half_requests_by_hundreds_keep_neither_clients_nor_operators_from_being_served(
    workers: str, tmp_path: Path, redis_behind: RedisServer
) -> None:
    config = configure(tmp_path, redis_behind.url, "metrics: 127.0.0.1:0", *([workers] if workers else []))
    with (
        Keyfence(
            "--config",
            config,
            descriptors=FEW_DESCRIPTORS,
            expect_stderr="admin: more than 12 connections; the oldest are closed",
        ) as keyfence,
        contextlib.ExitStack() as stack,
    ):
        half_requests(keyfence.ready.admin, 260, stack)
        half_requests(keyfence.ready.metrics, 260, stack)
        assert ping(keyfence) == b"+PONG\r\n"
        assert ask(keyfence, "/healthz")[0] == 200
        assert request(keyfence.ready.metrics, "GET", "/readyz")[0] == 200
        for listener in ("admin", "metrics"):
            name = "keyfence_admin_refused_total"
            assert metric(keyfence, name, listener=listener, reason="connections") >= 248


def test_clients_at_their_limit_do_not_lock_the_operator_out(
    tmp_path: Path, redis_behind: RedisServer
) -> None:
    config = configure(
        tmp_path, redis_behind.url, f"upstream: {{url: '{redis_behind.url}', mode: dedicated}}"
    )
    with (
        Keyfence(
            "--config", config, descriptors=FEW_DESCRIPTORS, expect_stderr="turned a connection away"
        ) as keyfence,
        contextlib.ExitStack() as stack,
    ):
        answers = []
        for _ in range(FEW_DESCRIPTORS):
            sock = stack.enter_context(keyfence.connect("CubeProxy"))
            sock.sendall(b"PING\r\n")
            answers.append(sock.recv(100))
        served = answers.count(b"+PONG\r\n")
        assert 40 <= served < FEW_DESCRIPTORS
        half_requests(keyfence.ready.admin, 50, stack)
        for path in ("/healthz", "/metrics", "/report"):
            assert ask(keyfence, path)[0] == 200
        assert request(keyfence.ready.admin, "POST", "/-/reload", {})[0] == 200
        assert metric(keyfence, "keyfence_accept_pauses_total") == 0


def test_descriptors_return_to_what_they_were(tmp_path: Path, redis_behind: RedisServer) -> None:
    config = configure(tmp_path, redis_behind.url)
    with Keyfence("--config", config, expect_stderr="more than 64 connections") as keyfence:
        settle(keyfence)
        before = open_files(keyfence)
        with contextlib.ExitStack() as stack:
            half_requests(keyfence.ready.admin, 300, stack)
            eventually(lambda: open_files(keyfence)["socket"] > before["socket"] + 50, "they are accepted")
        eventually(lambda: open_files(keyfence) <= before, "their descriptors are closed")


# -- who may change something


def test_requests_that_change_something_need_the_token(
    tmp_path: Path, token_file: Path, redis_behind: RedisServer
) -> None:
    admin = f"admin: {{listen: '127.0.0.1:0', token_file: {token_file.name}}}"
    config = configure(tmp_path, redis_behind.url)
    config.write_text(config.read_text().replace("admin: 127.0.0.1:0", admin))
    told = "(?s)wrong admin token came from 127.0.0.1.*break-glass was ended.*break-glass: "
    with Keyfence("--config", config, expect_stderr=told) as keyfence:
        url = keyfence.ready.admin
        status, headers, body = request(url, "POST", "/-/observe", {"for": 60})
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="keyfence"')
        assert "Bearer TOKEN" in body
        assert request(url, "DELETE", "/-/observe", Authorization="Bearer x" + TOKEN)[0] == 401
        assert json.loads(ask(keyfence, "/modes")[1])["break_glass"] == []
        assert request(url, "DELETE", "/-/observe", Authorization=f"bearer {TOKEN}")[0] == 200
        for reason in ("no_token", "wrong_token"):
            assert metric(keyfence, "keyfence_admin_refused_total", listener="admin", reason=reason) == 1

        observe = ("observe", "--for", "1h", "--admin", url)
        code, _, err = command_line(*observe)
        assert (code, "Name its file with --token-file or KEYFENCE_ADMIN_TOKEN_FILE." in err) == (1, True)
        assert command_line(*observe, "--token-file", token_file)[0] == 0
        assert command_line("reload", "--admin", url, "--token-file", token_file)[0] == 0


def test_a_reload_reads_the_token_again_and_keeps_the_old_one_if_the_file_is_broken(
    tmp_path: Path, token_file: Path, redis_behind: RedisServer
) -> None:
    admin = f"admin: {{listen: '127.0.0.1:0', token_file: {token_file.name}}}"
    config = configure(tmp_path, redis_behind.url)
    config.write_text(config.read_text().replace("admin: 127.0.0.1:0", admin))
    with Keyfence("--config", config, expect_stderr="token is empty") as keyfence:
        url, renewed = keyfence.ready.admin, "another-token-0123456789"
        token_file.write_text("")
        status, _, body = request(url, "POST", "/-/reload", {}, Authorization=f"Bearer {TOKEN}")
        assert status == 422
        assert "the token file" in body
        token_file.write_text(renewed)
        assert request(url, "POST", "/-/reload", {}, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert request(url, "POST", "/-/reload", {}, Authorization=f"Bearer {renewed}")[0] == 200


def test_a_token_file_that_others_may_read_causes_a_warning(
    tmp_path: Path, token_file: Path, redis_behind: RedisServer
) -> None:
    token_file.chmod(0o644)
    admin = f"admin: {{listen: '127.0.0.1:0', token_file: {token_file.name}}}"
    config = configure(tmp_path, redis_behind.url)
    config.write_text(config.read_text().replace("admin: 127.0.0.1:0", admin))
    with Keyfence("--config", config, expect_stderr="any user of this machine may read or change"):
        pass


@pytest.mark.parametrize("workers", ["", "workers: 1"])
def test_the_metrics_address_serves_scrapers_and_probes_and_nothing_else(
    workers: str, tmp_path: Path, redis_behind: RedisServer
) -> None:
    config = configure(tmp_path, redis_behind.url, "metrics: 127.0.0.1:0", *([workers] if workers else []))
    with Keyfence("--config", config) as keyfence:
        url = keyfence.ready.metrics
        assert request(url, "GET", "/")[0] == 200
        for route in ROUTES:
            body = None if route.method == "GET" else {"for": 60}
            status = request(url, route.method, route.path, body)[0]
            assert status == (200 if route.on_metrics else 404), route.path
        assert "-/observe" not in request(url, "GET", "/")[2]
        assert json.loads(ask(keyfence, "/modes")[1])["break_glass"] == []


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(sock.getsockname()[0])


def test_without_a_token_other_machines_can_read_and_change_nothing(
    tmp_path: Path, redis_behind: RedisServer
) -> None:
    address = own_address()
    config = configure(tmp_path, redis_behind.url)
    config.write_text(config.read_text().replace("admin: 127.0.0.1:0", "admin: 0.0.0.0:0"))
    told = "(?s)other machines reach the admin address 0.0.0.0:0, and it has no token.*break-glass: "
    with Keyfence("--config", config, expect_stderr=told) as keyfence:
        port = admin_address(keyfence.ready.admin)[1]
        far, near = f"http://{address}:{port}", f"http://127.0.0.1:{port}"
        assert request(far, "GET", "/metrics")[0] == 200
        status, _, body = request(far, "POST", "/-/observe", {"for": 60})
        assert (status, "token_file" in body) == (403, True)
        assert request(near, "POST", "/-/observe", {"for": 60})[0] == 200
