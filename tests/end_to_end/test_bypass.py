"""A real cluster and real Sentinels: a client that can go past keyfence is noticed, or does not get so
far."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hiredis
import pytest
import redis
from redis.maint_notifications import MaintNotificationsConfig

from keyfence.resp.encode import command
from tests.clients.running import POLICY, ask, configure, eventually, metric
from tests.cluster import Cluster
from tests.sentinel import Watched, running_sentinels
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis

Start = Callable[..., Keyfence]
NODE = PROJECT / "tests" / "node"
SERVICE = "CubeProxy"
FORBIDDEN = [f"forbidden:{number}" for number in range(30)]  # on each of the nodes
BEFORE_A_CLUSTER = r"is a node of a cluster"
REFUSES = "has refused writes (READONLY): a replica answers clients"


def keys(cluster: Cluster) -> set[bytes]:
    found: set[bytes] = set()
    for server in cluster.masters:
        with server.client() as client:
            found.update(client.keys("*"))
    return found


def answer(keyfence: Keyfence, path: str) -> tuple[int, dict[str, object]]:
    status, body = ask(keyfence, path)
    return status, json.loads(body)


def by_redis_py(address: tuple[str, int]) -> None:
    host, port = address
    with contextlib.suppress(redis.RedisError, redis.exceptions.RedisClusterException):
        client = redis.RedisCluster(host=host, port=port, require_full_coverage=False)
        for key in FORBIDDEN:
            with contextlib.suppress(redis.RedisError):
                client.set(key, "x")
        client.close()


def by_ioredis(address: tuple[str, int]) -> None:
    if not shutil.which("node") or not (NODE / "node_modules").is_dir():
        pytest.skip("no node here, or `npm ci` was not run in tests/node")
    words = ["node", "cluster.js", f"{address[0]}:{address[1]}", *FORBIDDEN]
    done = subprocess.run(words, cwd=NODE, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("write", [by_redis_py, by_ioredis])
def test_a_cluster_client_writes_no_forbidden_key_in_enforce(
    write: Callable[[tuple[str, int]], None], cluster: Cluster, start_keyfence: Start, tmp_path: Path
) -> None:
    config = configure(tmp_path, cluster.url, mode="enforce")
    keyfence = start_keyfence("--config", config, expect_stderr=BEFORE_A_CLUSTER)
    write(keyfence.address(SERVICE))
    assert not keys(cluster)
    assert metric(keyfence, "keyfence_rule_violations_total", rule="redis.address", action="refused") > 0


def test_a_cluster_client_that_leaves_in_observe_is_noticed(
    cluster: Cluster, start_keyfence: Start, tmp_path: Path
) -> None:
    config = configure(tmp_path, cluster.url, f"findings: sqlite:///{tmp_path}/f.db", mode="observe")
    keyfence = start_keyfence("--config", config, expect_stderr=BEFORE_A_CLUSTER)
    by_redis_py(keyfence.address(SERVICE))
    try:
        assert keys(cluster) == {key.encode() for key in FORBIDDEN}  # past keyfence
    finally:
        for server in cluster.masters:
            with server.client() as client:
                client.flushall()
    status, ready = answer(keyfence, "/readyz")
    assert (status, ready["ready"], ready["reasons"]) == (200, True, [])
    [warning] = ready["warnings"]  # type: ignore[misc]
    assert "is a node of a cluster" in warning
    assert answer(keyfence, "/status")[1]["warnings"] == [warning]
    for name, labels in (
        ("keyfence_upstream_standing", {"kind": "cluster"}),
        ("keyfence_rule_violations_total", {"rule": "redis.address", "service": SERVICE}),
    ):
        eventually(lambda name=name, labels=labels: metric(keyfence, name, **labels) > 0, f"{name} counts it")  # type: ignore[misc]
    eventually(lambda: bypassed(keyfence), "each rule of the service has a gap")


def bypassed(keyfence: Keyfence) -> bool:
    """Whether the service has a finding of `redis.address`, and a gap for that reason at each other rule."""
    standings = answer(keyfence, "/readiness?quiet=3600")[1]["standings"]
    rules = {one["rule"]: one for one in standings if one["service"] == SERVICE and one["asked"]}  # type: ignore[attr-defined]
    told = rules.pop("redis.address", None)
    return bool(
        told is not None
        and told["readiness"] == "not ready"
        and rules
        and all(one["readiness"] == "gap" and one["bypassed"] for one in rules.values())
    )


def test_a_redirect_names_no_address_in_enforce(
    cluster: Cluster, start_keyfence: Start, tmp_path: Path
) -> None:
    config = configure(tmp_path, cluster.url, mode="enforce")
    keyfence = start_keyfence("--config", config, expect_stderr=BEFORE_A_CLUSTER)
    with keyfence.client("CubeMaster") as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(20):
            pipeline.hgetall(f"cube:v1:shared:sandbox:proxy:{number}")
        refused = {one for one in pipeline.execute(raise_on_error=False) if isinstance(one, Exception)}
    assert {type(one) for one in refused} == {redis.exceptions.NoPermissionError}
    for one in map(str, refused):
        assert one.startswith("[redis.address] CubeMaster may not follow MOVED past keyfence")
        assert not any(str(server.port) in one for server in cluster.masters)
    assert metric(keyfence, "keyfence_upstream_errors_total", error="MOVED") > 0


MOVING = b">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$13\r\n10.0.0.7:6379\r\n"


class Managed(socketserver.BaseRequestHandler):
    """A connection of a managed Redis that sends notices: one comes before the reply to CLIENT GETNAME."""

    def handle(self) -> None:
        reader = hiredis.Reader()
        while data := self.request.recv(65_536):
            reader.feed(data)
            while argv := reader.gets():
                self.request.sendall(self._reply([argv[0].upper(), *argv[1:]]))

    def _reply(self, argv: list[bytes]) -> bytes:
        if argv[0] == b"ECHO":  # keyfence's barrier
            return b"$%d\r\n%b\r\n" % (len(argv[1]), argv[1])
        if argv[0] == b"HELLO":
            header = b"%2\r\n" if argv[1] == b"3" else b"*4\r\n"
            return header + b"$5\r\nproto\r\n:" + argv[1] + b"\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
        if argv[:2] == [b"CLIENT", b"GETNAME"]:
            return MOVING + b"_\r\n"
        return b"*0\r\n" if argv[0] == b"COMMAND" else b"+PONG\r\n" if argv[0] == b"PING" else b"+OK\r\n"


@pytest.fixture
def with_notices() -> Iterator[int]:
    """The port of a Redis that sends notices."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Managed) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def naming_notices(folder: Path) -> Path:
    """Writes a policy that allows CLIENT MAINT_NOTIFICATIONS by name."""
    path = folder / "policy.yaml"
    path.write_text(f"{POLICY.read_text()}\ncommands: {{allow: [CLIENT MAINT_NOTIFICATIONS]}}\n")
    return path


def test_notices_that_name_addresses_are_a_warning_in_observe(
    with_notices: int, start_keyfence: Start, tmp_path: Path
) -> None:
    named = naming_notices(tmp_path)
    for name, more in (("one", ()), ("workers", ("workers: 2",))):
        folder = tmp_path / name
        folder.mkdir()
        config = configure(folder, f"redis://127.0.0.1:{with_notices}", *more, mode="observe")
        config.write_text(config.read_text().replace(str(POLICY), str(named)))
        keyfence = start_keyfence("--config", config, expect_stderr="CLIENT MAINT_NOTIFICATIONS ON")
        with keyfence.client(SERVICE) as client:
            assert client.execute_command("CLIENT", "MAINT_NOTIFICATIONS", "ON")
        eventually(lambda one=keyfence: "the client may go past" in ask(one, "/readyz")[1], "readyz says it")  # type: ignore[misc]
        status, ready = answer(keyfence, "/readyz")
        [warning] = ready["warnings"]  # type: ignore[misc]
        assert (status, "sends notices that name its addresses" in warning) == (200, True)
        assert answer(keyfence, "/status")[1]["warnings"] == [warning]
        eventually(lambda one=keyfence, text=warning: text in one.stderr(), "standard error says it")  # type: ignore[misc]
        eventually(
            lambda one=keyfence: metric(one, "keyfence_upstream_standing", kind="notices") == 1,  # type: ignore[misc]
            "so does the metric",
        )


def test_redis_py_gets_notices_of_keyfence_only(
    with_notices: int, start_keyfence: Start, tmp_path: Path
) -> None:
    """It asks for them by itself with RESP3, and with `enabled=True` insists on them."""
    config = configure(tmp_path, f"redis://127.0.0.1:{with_notices}", mode="enforce")
    keyfence = start_keyfence("--config", config)
    with keyfence.client(SERVICE, protocol=3) as client:
        assert client.ping()
    insists = MaintNotificationsConfig(enabled=True)
    with keyfence.client(SERVICE, protocol=3, maint_notifications_config=insists) as client:
        assert client.ping()
    asked = {"command": "CLIENT MAINT_NOTIFICATIONS"}
    assert metric(keyfence, "keyfence_commands_total", outcome="local", **asked) > 0
    assert metric(keyfence, "keyfence_rule_violations_total", rule="redis.address") == 0


def test_a_notice_that_comes_all_the_same_is_dropped_in_enforce(
    with_notices: int, start_keyfence: Start, tmp_path: Path
) -> None:
    for mode, expected in (("enforce", b"_\r\n"), ("observe", MOVING + b"_\r\n")):
        folder = tmp_path / mode
        folder.mkdir()
        config = configure(folder, f"redis://127.0.0.1:{with_notices}", mode=mode)
        keyfence = start_keyfence("--config", config)
        with socket.create_connection(keyfence.address(SERVICE), PATIENCE_SECONDS) as client:
            client.sendall(command(b"HELLO", b"3") + command(b"CLIENT", b"GETNAME"))
            received = b""
            while not received.endswith(b"_\r\n"):
                received += client.recv(1024)
        assert received.partition(b"master\r\n")[2] == expected
        hidden = metric(keyfence, "keyfence_addresses_hidden_total", where="MOVING")
        assert hidden == (mode == "enforce")


# -- a failover that only clients hear of


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_login_of_its_own_keyfence_hears_of_a_failover_through_its_clients(
    workers: int, start_keyfence: Start, tmp_path: Path
) -> None:
    with running_redis(password="secret", tcp=True) as server:
        more = (f"workers: {workers}",) if workers else ()
        config = configure(tmp_path, f"redis://127.0.0.1:{server.port}", *more, mode="observe")
        keyfence = start_keyfence("--config", config, expect_stderr="is a replica now")
        login = {"password": "secret", "protocol": 3}
        with keyfence.client("CubeMaster", **login) as client:
            assert client.ping()
        assert ask(keyfence, "/readyz")[0] == 200
        with server.client() as direct:
            direct.replicaof("127.0.0.1", 1)
        with keyfence.client("CubeMaster", **login) as client, pytest.raises(redis.ReadOnlyError):
            client.set("a", "b")
        eventually(lambda: ask(keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
        eventually(lambda: "is a replica now" in keyfence.stderr(), "standard error says it too")
        with server.client() as direct:
            direct.replicaof("NO", "ONE")
        with keyfence.client("CubeMaster", **login) as client:
            client.set("a", "b")
        eventually(lambda: ask(keyfence, "/readyz")[0] == 200, "keyfence is ready again")
        assert not answer(keyfence, "/readyz")[1]["warnings"]


# -- Sentinels


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with running_sentinels(tmp_path_factory.mktemp("sentinels")) as one:
        yield one


def test_a_keyfence_that_starts_before_a_replica_is_ready_and_says_so(
    watched: Watched, start_keyfence: Start, tmp_path: Path
) -> None:
    config = configure(tmp_path, watched.replica.url, mode="enforce")
    keyfence = start_keyfence("--config", config, expect_stderr="is a replica, which refuses writes")
    status, ready = answer(keyfence, "/readyz")
    [warning] = ready["warnings"]  # type: ignore[misc]
    assert (status, ready["ready"]) == (200, True)
    eventually(lambda: warning in keyfence.stderr(), "standard error says it too")
    with keyfence.client("CubeMaster") as client, pytest.raises(redis.ReadOnlyError):
        client.hset("cube:v1:shared:sandbox:proxy:7c8f", "HostIP", "10.0.0.1")
    read_only = {"kind": "read_only"}
    eventually(lambda: metric(keyfence, "keyfence_upstream_standing", **read_only) == 1, "the metric is 1")
    warnings = answer(keyfence, "/readyz")[1]["warnings"]
    assert warnings == [warning, warning.replace("is a replica, which refuses writes", REFUSES)]


def test_info_names_neither_replicas_nor_the_primary_in_enforce(
    watched: Watched, start_keyfence: Start, tmp_path: Path
) -> None:
    def asked(server: RedisServer, stderr: str) -> dict[str, object]:
        folder = tmp_path / str(server.port)
        folder.mkdir()
        keyfence = start_keyfence(
            "--config", configure(folder, server.url, mode="enforce"), expect_stderr=stderr
        )
        with server.client() as direct:
            told = direct.info("replication")
        for protocol in (2, 3):
            with keyfence.client(SERVICE, protocol=protocol) as client:
                info: dict[str, object] = client.info("replication")
            assert told.keys() == info.keys()
        assert metric(keyfence, "keyfence_addresses_hidden_total", where="INFO") == 2
        return info

    replica, primary = asked(watched.primary, "")["slave0"], asked(watched.replica, "is a replica")
    assert isinstance(replica, dict)
    assert (replica["ip"], replica["port"], replica["state"]) == ("?", "?", "online")
    assert (primary["master_host"], primary["master_port"], primary["role"]) == ("?", "?", "slave")


def test_a_keyfence_that_is_pointed_at_a_sentinel_says_so(
    watched: Watched, start_keyfence: Start, tmp_path: Path
) -> None:
    config = configure(tmp_path, f"redis://127.0.0.1:{watched.sentinels[0]}", mode="enforce")
    keyfence = start_keyfence("--config", config, expect_stderr="is a Sentinel")
    eventually(lambda: "is a Sentinel" in ask(keyfence, "/readyz")[1], "keyfence says what it stands before")
    eventually(lambda: "is a Sentinel" in keyfence.stderr(), "standard error says it too")


def test_after_a_failover_readyz_and_status_say_that_redis_refuses_writes(
    watched: Watched, start_keyfence: Start, tmp_path: Path
) -> None:
    """This must be the last test with these servers."""
    both = []
    for name, more in (("one", ()), ("workers", ("workers: 2",))):
        folder = tmp_path / name
        folder.mkdir()
        config = configure(folder, watched.primary.url, *more, mode="enforce")
        both.append(start_keyfence("--config", config, expect_stderr="was a primary and is a replica now"))
    for keyfence in both:
        eventually(lambda one=keyfence: ask(one, "/readyz")[0] == 200, "keyfence is ready")  # type: ignore[misc]
    watched.fail_over()
    for keyfence in both:
        check_read_only(keyfence)


def check_read_only(keyfence: Keyfence) -> None:
    eventually(lambda: ask(keyfence, "/readyz")[0] == 503, "keyfence says that it is not ready")
    [reason] = answer(keyfence, "/readyz")[1]["reasons"]  # type: ignore[misc]
    assert "was a primary and is a replica now" in reason
    status = answer(keyfence, "/status")[1]
    assert (status["ready"], status["reasons"]) == (False, [reason])
    with keyfence.client("CubeMaster") as client, pytest.raises(redis.ReadOnlyError):
        client.hset("cube:v1:shared:sandbox:proxy:7c8f", "HostIP", "10.0.0.1")
    for name, labels in (
        ("keyfence_upstream_errors_total", {"error": "READONLY"}),
        ("keyfence_upstream_standing", {"kind": "read_only"}),
    ):
        eventually(lambda name=name, labels=labels: metric(keyfence, name, **labels) == 1, f"{name} is 1")  # type: ignore[misc]
    eventually(lambda: reason in keyfence.stderr(), "standard error says it too")
