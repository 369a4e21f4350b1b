"""Addresses, TLS and limits of a running keyfence, with real clients and a real Redis."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from keyfence.resp import encode
from tests.clients.running import POLICY, ROUTE, ask, configure, eventually, metric, open_files, settle
from tests.end_to_end.test_identity import may_write_routes, with_tls
from tests.net.test_proxy_protocol import ipv4
from tests.servers import (
    PATIENCE_SECONDS,
    Certificates,
    Keyfence,
    RedisServer,
    issue_certificate,
    running_redis,
)

Start = Callable[..., Keyfence]
ONCE = Retry(NoBackoff(), 0)


@pytest.fixture
def start_one() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of one version, because listeners do not depend on it."""
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(running_redis(**options))


def listening(folder: Path, upstream: str, *listeners: str, more: str = "") -> Path:
    """Write a configuration in enforce with these listeners, each in YAML."""
    path = folder / "keyfence.yaml"
    lines = [f"policy: {POLICY}", "admin: 127.0.0.1:0", f"upstream: {upstream}", "modes: [{mode: enforce}]"]
    path.write_text("\n".join([*lines, "listeners:", *(f"  - {one}" for one in listeners), more, ""]))
    return path


def tls(files: Certificates, more: str = "") -> str:
    return f"{{cert: {files.certificate}, key: {files.key}, client_ca: {files.ca}{more}}}"


def received(connection: socket.socket, lines: int) -> bytes:
    """The next `lines` lines."""
    data = b""
    while data.count(b"\r\n") < lines:
        piece = connection.recv(1)
        assert piece, f"it ended after {data!r}"
        data += piece
    return data


# -- TLS


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_certificate_identifies_the_service_of_a_client(
    protocol: int,
    certificates: Certificates,
    start_one: Callable[..., RedisServer],
    start_keyfence: Start,
    tmp_path: Path,
) -> None:
    master = issue_certificate(certificates.ca, "master", "/CN=x", "URI:spiffe://cube.example/sa/master")
    proxy = issue_certificate(certificates.ca, "proxy", "/CN=CubeProxy")
    listener = f'{{listen: "127.0.0.1:0", service: CubeProxy, tls: {tls(certificates)}}}'
    identify = 'identify: {certificates: {"spiffe://cube.example/sa/master": CubeMaster}}'
    keyfence = start_keyfence(
        "--config",
        listening(tmp_path, start_one().url, listener, more=identify),
        expect_stderr=r"turned a connection away: TLS failed: PEER_DID_NOT_RETURN_A_CERTIFICATE",
    )
    common = {"ssl": True, "ssl_ca_certs": str(certificates.ca), "retry": ONCE, "protocol": protocol}

    def client(mine: Certificates) -> redis.Redis:
        shown = {"ssl_certfile": str(mine.certificate), "ssl_keyfile": str(mine.key)}
        return keyfence.client("CubeProxy", **common, **shown)

    with client(master) as one, client(proxy) as other:
        assert may_write_routes(one)
        assert one.hget(ROUTE, "HostIP") == b"10.0.0.7"
        assert not may_write_routes(other)
        with one.pipeline() as pipe:
            values = [os.urandom(50_000) for _ in range(50)]
            for value in values:
                pipe.hset(ROUTE, "SandboxIP", value).hget(ROUTE, "SandboxIP")
            with contextlib.suppress(redis.exceptions.ResponseError):
                assert pipe.execute()[1::2] == values
    with keyfence.client("CubeProxy", **common) as stranger, pytest.raises(redis.exceptions.ConnectionError):
        stranger.ping()
    assert metric(keyfence, "keyfence_connections_rejected_total", reason="tls") == 1


def test_a_reload_says_which_certificate_has_changed(
    certificates: Certificates, start_one: Callable[..., RedisServer], tmp_path: Path
) -> None:
    mine = issue_certificate(certificates.ca, "rotated", "/CN=before")
    listener = f'{{listen: "127.0.0.1:0", tls: {tls(mine)}}}'
    with Keyfence("--config", listening(tmp_path, start_one().url, listener)) as keyfence:
        assert "by certificate" in keyfence.ready.listeners
        issue_certificate(certificates.ca, "rotated", "/CN=after")
        request = urllib.request.Request(f"{keyfence.ready.admin}/-/reload", method="POST", data=b"{}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            (changed,) = json.load(answer)["changed"]
    assert re.fullmatch(rf"certificate {re.escape(str(mine.certificate))} \(expires .+Z\)", changed)


def test_a_missing_file_is_reported_before_anything_starts(tmp_path: Path) -> None:
    config = listening(tmp_path, "redis://h", '{listen: ":0", tls: {cert: gone.pem, key: gone.key}}')
    command = [sys.executable, "-m", "keyfence", "run", "--config", str(config)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "keyfence.yaml:6:32: error: " in ran.stderr
    assert "gone.pem cannot be read: no such file or directory" in ran.stderr


def test_an_upstream_that_requires_a_certificate_and_has_another_name(
    certificates: Certificates,
    start_one: Callable[..., RedisServer],
    start_keyfence: Start,
    tmp_path: Path,
) -> None:
    mine = issue_certificate(certificates.ca, "keyfence", "/CN=keyfence")
    server = issue_certificate(certificates.ca, "redis", "/CN=redis", "DNS:redis.example")
    real = with_tls(start_one, server, tls_auth_clients=True)
    files = f"ca: {certificates.ca}, cert: {mine.certificate}, key: {mine.key}"
    upstream = f'{{url: "{real.url}", {files}, server_name: redis.example}}'
    listener = '{listen: "127.0.0.1:0", service: CubeMaster}'
    keyfence = start_keyfence("--config", listening(tmp_path, upstream, listener))
    with keyfence.client() as client:
        assert may_write_routes(client)


def test_an_upstream_with_the_wrong_name_is_not_trusted(
    certificates: Certificates,
    start_one: Callable[..., RedisServer],
    start_keyfence: Start,
    tmp_path: Path,
) -> None:
    real = with_tls(start_one, certificates)
    upstream = f'{{url: "{real.url}", ca: {certificates.ca}, server_name: redis.example}}'
    listener = '{listen: "127.0.0.1:0", service: CubeMaster}'
    config = listening(tmp_path, upstream, listener)
    keyfence = start_keyfence("--config", config, expect_stderr="CERTIFICATE_VERIFY_FAILED")
    with keyfence.client(retry=ONCE) as client, pytest.raises(redis.exceptions.ConnectionError):
        client.ping()
    status, body = ask(keyfence, "/readyz")
    assert status == 503
    assert "CERTIFICATE_VERIFY_FAILED" in body


# -- unix sockets, IPv6, balancers


def test_a_unix_socket_serves_one_user_and_its_file_is_removed(
    start_one: Callable[..., RedisServer], tmp_path: Path
) -> None:
    path = tmp_path / "k.sock"
    abandoned = socket.socket(socket.AF_UNIX)
    abandoned.bind(str(path))
    abandoned.close()
    identify = f"identify: {{uids: {{{os.getuid()}: CubeMaster}}}}"
    config = listening(
        tmp_path, start_one().url, "{listen: unix:k.sock, unix_mode: 0600, service: CubeProxy}", more=identify
    )
    with Keyfence("--config", config) as keyfence:
        assert keyfence.address("CubeProxy") == (str(path), 0)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert may_write_routes(client)
        second = [sys.executable, "-m", "keyfence", "run", "--config", str(config)]
        ran = subprocess.run(second, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert ran.returncode != 0
        assert f"cannot listen on unix:{path}: the address is already in use" in ran.stderr
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.ping()
    assert not path.exists()


def test_a_listener_has_the_same_port_in_both_families(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    keyfence = start_keyfence(
        "--config", listening(tmp_path, start_one().url, '{listen: ":0", service: CubeMaster}')
    )
    _, port = keyfence.address()
    hosts = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        hosts.append("::1")
    for host in hosts:
        with redis.Redis(host=host, port=port) as client:
            assert may_write_routes(client)


def test_proxy_headers_distinguish_services_also_in_the_log(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    listener = '{listen: "127.0.0.1:0", service: CubeProxy, proxy_protocol: yes, trusted: [127.0.0.0/8]}'
    more = "identify: {networks: {192.0.2.0/24: CubeMaster}}\ndecision_log: decisions.jsonl"
    config = listening(tmp_path, start_one().url, listener, more=more)
    keyfence = start_keyfence("--config", config, expect_stderr="turned a connection away: no PROXY protocol")
    write = b"*4\r\n$4\r\nHSET\r\n$%d\r\n%b\r\n$6\r\nHostIP\r\n$8\r\n10.0.0.7\r\n" % (
        len(ROUTE),
        ROUTE.encode(),
    )
    with keyfence.connect() as connection:
        connection.sendall(ipv4("192.0.2.7", 40000) + write)
        assert connection.recv(100) == b":1\r\n"
    with keyfence.connect() as connection:
        connection.sendall(ipv4("198.51.100.7", 40001) + write)
        assert connection.recv(1000).startswith(b"-NOPERM [scope.write] CubeProxy")
    eventually(lambda: "198.51.100.7:40001" in (tmp_path / "decisions.jsonl").read_text(), "it is logged")
    with keyfence.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(write)
        assert connection.recv(100) == b""
    assert metric(keyfence, "keyfence_connections_rejected_total", reason="proxy_header") == 1


# -- limits


def test_a_service_that_is_full_gets_an_error(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    server = start_one(acl=["CubeMaster on >m ~* &* +@all"])
    more = "limits: {connections_per_service: {CubeMaster: 1}}"
    listener = '{listen: "127.0.0.1:0", service: CubeProxy}'
    keyfence = start_keyfence("--config", listening(tmp_path, server.url, listener, more=more))
    login = encode.command("AUTH", "CubeMaster", "m")
    write = encode.command("HSET", ROUTE, "HostIP", "10.0.0.7")
    with keyfence.connect() as first, keyfence.connect() as second:
        first.sendall(login + write)
        assert received(first, 2) == b"+OK\r\n:1\r\n"
        second.sendall(login + write)
        told = b""
        with contextlib.suppress(ConnectionError):
            while piece := second.recv(1000):
                told += piece
        assert told == b"+OK\r\n-ERR max number of clients reached for CubeMaster\r\n"
        first.sendall(write)
        assert first.recv(100) == b":0\r\n"
    assert metric(keyfence, "keyfence_closures_total", reason="service_connections") == 1
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "they have gone")
    with keyfence.connect() as third:
        third.sendall(login + write)
        assert received(third, 2) == b"+OK\r\n:0\r\n"


def test_an_idle_client_is_closed_but_not_a_subscriber_or_a_blocked_client(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    config = configure(tmp_path, start_one().url, "limits: {idle: 500ms}", mode="observe")
    keyfence = start_keyfence("--config", config)
    with contextlib.ExitStack() as opened:
        idle, subscribed, blocked = (opened.enter_context(keyfence.connect("CubeMaster")) for _ in range(3))
        subscribed.sendall(b"SUBSCRIBE c\r\n")
        assert received(subscribed, 6).startswith(b"*3\r\n$9\r\nsubscribe")
        blocked.sendall(b"BLPOP cube:v1:shared:x 0\r\n")
        for _ in range(2):
            with keyfence.connect("CubeMaster") as another:
                another.sendall(b"PING\r\n")
                assert another.recv(100) == b"+PONG\r\n"
                assert another.recv(100) == b""
        assert idle.recv(100) == b""
        with keyfence.connect("CubeMaster") as speaker:
            speaker.sendall(b"PUBLISH c hello\r\nRPUSH cube:v1:shared:x v\r\n")
            assert received(speaker, 2) == b":1\r\n:1\r\n"
        assert received(subscribed, 7).endswith(b"hello\r\n")
        assert received(blocked, 5).endswith(b"$1\r\nv\r\n")
    assert metric(keyfence, "keyfence_closures_total", reason="idle") >= 3


def test_two_thousand_clients_at_once(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(2000, soft // 2 - 200)
    keyfence = start_keyfence("--config", configure(tmp_path, start_one().url, mode="observe"))
    settle(keyfence)
    before = open_files(keyfence)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(keyfence.connect("CubeMaster")) for _ in range(number)]
        for client in clients:
            client.sendall(b"PING\r\n")
        for client in clients:
            assert client.recv(100) == b"+PONG\r\n"
        assert metric(keyfence, "keyfence_connections_open") == number
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "all have gone")
    shared = 4  # connections to Redis, which stay
    eventually(lambda: (open_files(keyfence) - before).total() <= shared, "nothing else stays open")


def cpu_seconds(keyfence: Keyfence) -> float:
    fields = Path(f"/proc/{keyfence.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answer(connection: socket.socket) -> bytes:
    connection.sendall(encode.command("EXISTS", ROUTE))
    return received(connection, 1)


def test_without_file_descriptors_keyfence_waits_and_does_not_spin(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    listener = '{listen: "127.0.0.1:0", service: CubeMaster}'
    config = listening(tmp_path, start_one().url, listener)
    keyfence = start_keyfence("--config", config, expect_stderr=r"cannot accept: too many open files; raise")
    settle(keyfence)
    limit = len(list(Path(f"/proc/{keyfence.process.pid}/fd").iterdir())) + 12
    hard = resource.prlimit(keyfence.process.pid, resource.RLIMIT_NOFILE)[1]
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(keyfence.connect())
        first.sendall(encode.command("EXISTS", ROUTE))
        assert first.recv(100) == b":0\r\n"
        resource.prlimit(keyfence.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
        crowd = [opened.enter_context(keyfence.connect()) for _ in range(50)]
        begun = cpu_seconds(keyfence)
        time.sleep(2)  # this measures that nothing happens
        assert cpu_seconds(keyfence) - begun < 1.0
        first.sendall(encode.command("EXISTS", ROUTE))  # connected clients are served
        assert first.recv(100) == b":0\r\n"
        resource.prlimit(keyfence.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        for one in crowd:
            # Without descriptors connecting to Redis failed too, and the next attempt comes after a back-off.
            eventually(lambda one=one: answer(one) == b":0\r\n", "each of them is served")
    assert metric(keyfence, "keyfence_accept_pauses_total") >= 1


def test_garbage_ends_only_its_own_connection(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    keyfence = start_keyfence("--config", configure(tmp_path, start_one().url, mode="enforce"))
    for garbage in (os.urandom(5000), b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        with keyfence.connect("CubeMaster") as connection, contextlib.suppress(ConnectionError):
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
    with keyfence.client("CubeMaster") as client:
        assert may_write_routes(client)
    assert metric(keyfence, "keyfence_internal_errors_total") == 0
