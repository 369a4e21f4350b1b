"""Tenants with a real Redis: new users and certificates work without a reload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from keyfence.resp import encode
from tests.clients.running import ask
from tests.servers import Certificates, Keyfence, RedisServer, issue_certificate

POLICY = """
policy: saas
services: [app]
bind:
  tenant: {from: user, pattern: "tenant-(.*)"}
  node: {from: certificate, pattern: "spiffe://acme/node/(.*)"}
keys:
  value: {key: "t:<tenant>:<id>", type: string, writers: [app]}
  seen: {key: "n:<node>", type: string, writers: [app]}
placeholders: {id: "[a-z0-9]{1,16}"}
"""


@pytest.fixture
def start(
    start_keyfence: Callable[..., Keyfence], redis_server: RedisServer, tmp_path: Path
) -> Iterator[Callable[..., Keyfence]]:
    def started(listener: str, *more: str) -> Keyfence:
        (tmp_path / "saas.yaml").write_text(POLICY)
        lines = [
            "policy: saas.yaml",
            f"upstream: {redis_server.url}",
            "admin: 127.0.0.1:0",
            f"listeners: [{listener}]",
            "modes: [{mode: enforce}]",
            *more,
        ]
        (tmp_path / "keyfence.yaml").write_text("\n".join(lines) + "\n")
        return start_keyfence("--config", tmp_path / "keyfence.yaml")

    yield started
    with redis_server.client() as direct:
        for name in ("acme", "globex"):
            direct.acl_deluser(f"tenant-{name}")


def add_user(server: RedisServer, tenant: str) -> None:
    with server.client() as direct:
        direct.acl_setuser(f"tenant-{tenant}", True, passwords=["+p"], keys=["*"], categories=["+@all"])


def may(client: redis.Redis, key: str) -> bool:
    try:
        client.set(key, "x")
    except redis.exceptions.NoPermissionError:
        return False
    return True


def test_a_new_user_has_its_own_keys_at_once(
    start: Callable[..., Keyfence], redis_server: RedisServer
) -> None:
    keyfence = start('{listen: "127.0.0.1:0", service: app}')
    for tenant, other in (("acme", "globex"), ("globex", "acme")):
        add_user(redis_server, tenant)
        host, port = keyfence.address("app")
        with redis.Redis(host=host, port=port, username=f"tenant-{tenant}", password="p") as client:
            assert may(client, f"t:{tenant}:1")
            assert not may(client, f"t:{other}:1")
            assert list(client.scan_iter(f"t:{tenant}:1")) == [f"t:{tenant}:1".encode()]
            with pytest.raises(redis.exceptions.NoPermissionError, match="own tenant: t:" + tenant):
                client.get(f"t:{other}:1")


def test_a_client_s_identity_can_change_within_a_pipeline(
    start: Callable[..., Keyfence], redis_server: RedisServer
) -> None:
    keyfence = start('{listen: "127.0.0.1:0", service: app}')
    add_user(redis_server, "acme")
    add_user(redis_server, "globex")
    get = encode.command("GET", "t:acme:1")
    with keyfence.connect("app") as connection:
        connection.sendall(
            get
            + encode.command("AUTH", "tenant-acme", "p")
            + get
            + encode.command("AUTH", "tenant-globex", "wrong")
            + get
            + encode.command("HELLO", "2", "AUTH", "tenant-globex", "p")
            + get
            + encode.command("AUTH", "tenant-acme", "p")
            + encode.command("RESET")
            + get
            + encode.command("ECHO", "end")
        )
        data = b""
        while not data.endswith(b"end\r\n"):
            data += connection.recv(65536)
    answers = [line for line in data.split(b"\r\n") if line.startswith((b"-NOPERM", b"$-1"))]
    assert [line[:7] for line in answers] == [b"-NOPERM", b"$-1", b"$-1", b"-NOPERM", b"-NOPERM"]
    assert b"has not logged in" in answers[0]
    assert b"own tenant: t:globex:1" in answers[3]


def test_a_certificate_names_a_node_s_own_keys(
    start: Callable[..., Keyfence], certificates: Certificates
) -> None:
    tls = f"{{cert: {certificates.certificate}, key: {certificates.key}, client_ca: {certificates.ca}}}"
    keyfence = start(f'{{listen: "127.0.0.1:0", service: app, tls: {tls}}}')
    host, port = keyfence.address("app")
    mine = issue_certificate(certificates.ca, "node7", "/CN=x", "URI:spiffe://acme/node/n7")
    with redis.Redis(
        host=host,
        port=port,
        ssl=True,
        ssl_ca_certs=str(certificates.ca),
        ssl_certfile=str(mine.certificate),
        ssl_keyfile=str(mine.key),
    ) as client:
        assert may(client, "n:n7")
        assert not may(client, "n:n8")
        assert not may(client, "t:acme:1")


def test_the_admin_address_explains_for_a_user(start: Callable[..., Keyfence]) -> None:
    keyfence = start('{listen: "127.0.0.1:0", service: app}')
    question = {"service": "app", "argv": ["GET", "t:acme:1"]}
    for more, verdict in (
        ({}, "violation"),
        ({"user": "tenant-acme"}, "allow"),
        ({"user": "x"}, "violation"),
    ):
        status, answer = ask(keyfence, "/explain", question | more)
        assert status == 200
        assert f'"verdict": "{verdict}"' in answer.replace('":"', '": "')


def test_a_client_redirects_to_connections_of_its_own_tenant_only(
    start: Callable[..., Keyfence], redis_server: RedisServer
) -> None:
    keyfence = start('{listen: "127.0.0.1:0", service: app}')
    host, port = keyfence.address("app")
    clients = []
    for tenant in ("acme", "acme", "globex"):
        add_user(redis_server, tenant)
        clients.append(
            redis.Redis(
                host=host,
                port=port,
                username=f"tenant-{tenant}",
                password="p",
                single_connection_client=True,
            )
        )
    ids = [client.client_id() for client in clients]
    track = ["CLIENT", "TRACKING", "ON", "REDIRECT"]
    assert clients[0].execute_command(*track, ids[1]) == b"OK"  # type: ignore[no-untyped-call]
    with pytest.raises(redis.exceptions.NoPermissionError):
        clients[0].execute_command(*track, ids[2])  # type: ignore[no-untyped-call]
    for client in clients:
        client.close()
