"""Identity with a real Redis that checks passwords, and the kinds of upstreams."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from keyfence.resp import encode
from keyfence.upstream.embedded import EmbeddedRedisError
from tests.clients.running import POLICY, ROUTE, ask, configure, eventually, metric
from tests.servers import Certificates, Keyfence, RedisServer, ServerBinary, running_redis

ACL = ["CubeMaster on >m ~* &* +@all", "sidecar on >s ~* &* +@all", "nobody on >n ~* &* +@all"]
IDENTIFY = "identify: {users: {sidecar: cube-proxy-sidecar}}"
Start = Callable[..., Keyfence]


# redis-py would retry a wrong password.
ONCE = Retry(NoBackoff(), 0)


@pytest.fixture(scope="module")
def _acl_redis(redis_binary: ServerBinary) -> Iterator[RedisServer]:
    with running_redis(redis_binary, acl=ACL) as server:
        yield server


@pytest.fixture(scope="module")
def _acl_keyfence(
    _acl_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Keyfence, RedisServer]]:
    folder = tmp_path_factory.mktemp("acl")
    config = configure(folder, _acl_redis.url, IDENTIFY, mode="enforce")
    with Keyfence("--config", config) as keyfence:
        yield keyfence, _acl_redis


@pytest.fixture
def with_users(_acl_keyfence: tuple[Keyfence, RedisServer]) -> tuple[Keyfence, RedisServer]:
    """keyfence in enforce in front of a Redis with ACL users. Tests share both; Redis is empty."""
    _acl_keyfence[1].clear()
    return _acl_keyfence


@pytest.fixture
def start_one() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of one version, for tests that do not depend on the version."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(running_redis(**options))


def may_write_routes(client: redis.Redis) -> bool:
    try:
        client.hset(ROUTE, "HostIP", "10.0.0.7")
    except redis.exceptions.NoPermissionError:
        return False
    return True


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_redis_user_identifies_a_service(with_users: tuple[Keyfence, RedisServer], protocol: int) -> None:
    keyfence, _ = with_users

    def allowed(user: str, password: str, listener: str = "CubeProxy") -> bool:
        login = {"username": user, "password": password, "protocol": protocol, "retry": ONCE}
        with keyfence.client(listener, **login) as client:
            return may_write_routes(client)

    assert allowed("CubeMaster", "m")
    assert not allowed("sidecar", "s", "CubeMaster")  # its listener alone would permit this
    assert allowed("nobody", "n", "CubeMaster")  # not a service's user, so the listener decides
    assert not allowed("nobody", "n", "unknown")
    with pytest.raises(redis.exceptions.AuthenticationError):
        allowed("CubeMaster", "wrong")
    with keyfence.client("CubeProxy") as client:
        assert not may_write_routes(client)
    assert metric(keyfence, "keyfence_violations_total", service="cube-proxy-sidecar") >= 1
    eventually(lambda: metric(keyfence, "keyfence_connections_open") == 0, "all connections are closed")


def test_a_command_pipelined_after_auth_is_evaluated_for_the_new_user(
    with_users: tuple[Keyfence, RedisServer],
) -> None:
    keyfence, _ = with_users
    write = encode.command("HSET", ROUTE, "HostIP", "10.0.0.7")
    with keyfence.connect("CubeProxy") as connection:
        parts = [write, encode.command("AUTH", "CubeMaster", "m"), write, encode.command("RESET"), write]
        connection.sendall(b"".join([*parts, encode.command("QUIT")]))
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    first, ok, second, reset, third, bye, _ = data.split(b"\r\n")
    assert first.startswith(b"-NOPERM [scope.write] CubeProxy")
    assert (ok, second, reset, bye) == (b"+OK", b":1", b"+RESET", b"+OK")
    assert third.startswith(b"-NOPERM [scope.write] CubeProxy")


def _makes_a_user_by(server: RedisServer, hello: bytes) -> bool:
    with socket.socket(socket.AF_UNIX) as direct:
        direct.connect(str(server.socket_path))
        direct.sendall(hello + encode.command("ACL", "WHOAMI") + encode.command("QUIT"))
        data = b""
        while more := direct.recv(4096):
            data += more
    return b"sidecar" in data


@pytest.mark.parametrize("tail", [["BOGUS"], ["SETNAME", "bad name"], ["AUTH", "sidecar", "wrong"]])
def test_a_hello_that_fails_after_its_auth_changes_the_user(
    with_users: tuple[Keyfence, RedisServer], tail: list[str]
) -> None:
    """Redis 6.2 and 7.0 execute AUTH before they check the other options; keyfence then asks for the user."""
    keyfence, server = with_users
    hello = encode.command("HELLO", 3, "AUTH", "sidecar", "s", *tail)
    if not _makes_a_user_by(server, hello):
        pytest.skip("this server checks all options before it executes AUTH")
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(hello + encode.command("HSET", ROUTE, "HostIP", "10.0.0.7"))
        data = b""
        while data.count(b"\r\n") < 2:
            data += connection.recv(65536)
        connection.sendall(encode.command("ACL", "WHOAMI"))
    error, refusal, _ = data.split(b"\r\n")
    assert error.startswith((b"-ERR", b"-WRONGPASS"))
    assert refusal.startswith(b"-NOPERM [scope.write] cube-proxy-sidecar")
    with server.client() as direct:
        assert not direct.exists(ROUTE)


def test_a_source_network_identifies_a_service_and_others_are_unknown(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    networks = "identify: {networks: {127.0.0.0/8: CubeProxy, 127.0.0.1/32: CubeMaster}}"
    keyfence = start_keyfence("--config", configure(tmp_path, start_one().url, networks, mode="enforce"))
    with keyfence.client("unknown") as client:
        assert may_write_routes(client)
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"
    assert metric(keyfence, "keyfence_connections_accepted_total", service="CubeMaster") == 2


def test_an_unknown_client_is_refused_in_enforce(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    keyfence = start_keyfence("--config", configure(tmp_path, start_one().url, mode="enforce"))
    with keyfence.client("unknown") as client:
        with pytest.raises(redis.exceptions.NoPermissionError, match="an unidentified client"):
            client.get(ROUTE)
        with pytest.raises(redis.exceptions.ResponseError, match="unauthenticated multibulk length"):
            client.delete(*(str(number) for number in range(20)))


# -- upstreams


def with_tls(
    start_one: Callable[..., RedisServer], certificates: Certificates, **options: object
) -> RedisServer:
    try:
        return start_one(tls=certificates, **options)
    except EmbeddedRedisError as error:
        if "tls-port" not in str(error):
            raise
        pytest.skip("this server was built without TLS")


def admitting(database: int, config: Path) -> Path:
    """The configuration, with a policy that admits this database, in which clients begin."""
    policy = config.with_name("policy.yaml")
    policy.write_text(POLICY.read_text().replace("databases: [0]", f"databases: [{database}]"))
    config.write_text(config.read_text().replace(str(POLICY), policy.name))
    return config


def test_a_tls_upstream_with_a_private_authority(
    start_one: Callable[..., RedisServer],
    start_keyfence: Start,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    server = with_tls(start_one, certificates, acl=["svc on >p@ss ~* &* +@all"])
    url = server.url.replace("127.0.0.1", "svc:p%40ss@127.0.0.1") + "/3"
    upstream = f'upstream: {{url: "{url}", ca: {certificates.ca}}}'
    config = admitting(3, configure(tmp_path, "", upstream, mode="observe"))
    keyfence = start_keyfence("--config", config)
    assert "p%40ss" not in " ".join(keyfence.lines)
    assert ask(keyfence, "/readyz")[0] == 200
    value = b"x" * 3_000_000
    with keyfence.client("CubeMaster") as client:
        assert client.acl_whoami() == "svc"
        client.set("k", value)
        assert client.get("k") == value
        with client.pipeline(transaction=False) as pipe:
            for number in range(2_000):
                pipe.echo(str(number))
            assert pipe.execute()[-1] == b"1999"
    with server.client(db=3) as direct:
        assert direct.strlen("k") == len(value)


def test_a_tls_upstream_of_an_unknown_authority_is_not_trusted(
    start_one: Callable[..., RedisServer],
    start_keyfence: Start,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    server = with_tls(start_one, certificates)
    config = configure(tmp_path, server.url, mode="observe")
    keyfence = start_keyfence("--config", config, expect_stderr="unreachable: TLS failed")
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(1000) == b""
    assert ask(keyfence, "/readyz")[0] == 503


def test_reset_keeps_the_upstream_s_user_and_database(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    server = start_one(tcp=True, acl=["svc on >pw ~* &* +@all"], password="secret")
    url = server.url.replace("127.0.0.1", "svc:pw@127.0.0.1") + "/5"
    keyfence = start_keyfence("--config", admitting(5, configure(tmp_path, url, mode="observe")))
    with keyfence.connect("CubeMaster") as connection:
        connection.sendall(b"SET a 1\r\nRESET\r\nSET b 1\r\nACL WHOAMI\r\nQUIT\r\n")
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    assert data == b"+OK\r\n+RESET\r\n+OK\r\n$3\r\nsvc\r\n+OK\r\n"
    with server.client(db=5) as direct:
        assert direct.exists("a", "b") == 2


@pytest.mark.parametrize("upstream_mode", ["shared", "dedicated"])
def test_a_refused_upstream_login_is_reported(
    upstream_mode: str, start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    """Also to a client that comes within a back-off: no retry of a client helps."""
    server = start_one(tcp=True, password="secret")
    url = server.url.replace("127.0.0.1", ":wrong@127.0.0.1")
    upstream = f"upstream: {{url: '{url}', mode: {upstream_mode}}}"
    config = configure(tmp_path, url, upstream, mode="observe")
    keyfence = start_keyfence("--config", config, expect_stderr="refused keyfence's login: WRONGPASS")
    with keyfence.connect("CubeMaster") as connection:
        for _ in range(3):
            connection.sendall(b"PING\r\n")
            answer = connection.recv(1000)
            assert answer.startswith(b"-ERR keyfence: upstream redis://***@127.0.0.1:")
            assert b"refused keyfence's login: WRONGPASS" in answer


def test_clients_log_in_with_their_own_passwords(
    start_one: Callable[..., RedisServer], start_keyfence: Start, tmp_path: Path
) -> None:
    server = start_one(password="secret")
    keyfence = start_keyfence("--config", configure(tmp_path, server.url, mode="enforce"))
    assert ask(keyfence, "/readyz")[0] == 200
    with (
        keyfence.client("CubeMaster", retry=ONCE) as client,
        pytest.raises(redis.exceptions.AuthenticationError, match="authenticat"),
    ):
        client.hgetall(ROUTE)
    with keyfence.client("CubeMaster", password="secret") as client, client.pipeline() as pipe:
        assert pipe.hset(ROUTE, "HostIP", "10.0.0.7").hgetall(ROUTE).execute()[0] == 1
