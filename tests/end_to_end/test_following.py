"""A running keyfence without Sentinels follows an address that leads to another primary."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from tests.adversity.fault_proxy import FaultProxy
from tests.clients.running import eventually, metric
from tests.end_to_end.test_sentinel import client_of
from tests.sentinel import POLICY
from tests.servers import (
    PATIENCE_SECONDS,
    Keyfence,
    RedisServer,
    ServerBinary,
    all_server_binaries,
    running_redis,
)

CONFIG = """policy: policy.yaml
upstream: {{url: "{url}", mode: {mode}}}
listeners: [{{listen: "127.0.0.1:0", service: app}}]
admin: "127.0.0.1:0"
findings: none
{more}
"""


VALKEYS = [one for one in all_server_binaries() if one.name == "valkey"]


def become(server: RedisServer, *of: str) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", *(of or ("NO", "ONE")))


@pytest.mark.parametrize(("mode", "more", "closed"), [("shared", "", 0), ("dedicated", "workers: 2", 1)])
def test_an_address_that_moves_to_another_primary_is_followed(
    mode: str, more: str, closed: int, tmp_path: Path
) -> None:
    """The former primary lives on as a replica, and keeps its connections. Only new ones reach the other.

    A client of RESP3 knows its connection's id, so its dedicated connection cannot be replaced unnoticed.
    """
    (tmp_path / "policy.yaml").write_text(POLICY)
    with (
        running_redis(tcp=True) as former,
        running_redis(tcp=True) as later,
        FaultProxy(former.port) as proxy,
    ):
        (tmp_path / "keyfence.yaml").write_text(CONFIG.format(url=proxy.url, mode=mode, more=more))
        told = "^"  # whatever the prober sees of the time in which the address leads to a replica
        with (
            Keyfence("--config", tmp_path / "keyfence.yaml", expect_stderr=told) as keyfence,
            client_of(keyfence) as client,
            client_of(keyfence) as subscriber,
        ):
            assert client.set("app:k", "before") is True
            heard = subscriber.pubsub()
            heard.subscribe("news")
            assert heard.get_message(timeout=PATIENCE_SECONDS) is not None
            eventually(lambda: metric(keyfence, "keyfence_upstream_up") == 1, "keyfence knows the role")
            become(former, "127.0.0.1", str(later.port))
            with pytest.raises(redis.ReadOnlyError):
                client.set("app:k", "lost")
            proxy.target = later.port
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not writes(client):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            with later.client() as direct:
                assert direct.get("app:k") in ("after", b"after")
            with former.client() as direct:
                direct.publish("news", "it moved")
            assert heard.get_message(timeout=PATIENCE_SECONDS) is not None  # it would be lost if it moved
            assert metric(keyfence, "keyfence_closures_total") == closed
            become(former)  # so that the other one does not wait for it at its end


@pytest.mark.parametrize("binary", VALKEYS, ids=lambda one: one.id)
@pytest.mark.parametrize("mode", ["shared", "dedicated"])
def test_a_client_that_a_replica_redirects_gets_a_connection_to_the_primary(
    mode: str, binary: ServerBinary, tmp_path: Path
) -> None:
    """After CLIENT CAPA redirect, a replica answers REDIRECT on this connection, and never READONLY."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    with (
        running_redis(binary, tcp=True) as former,
        running_redis(binary, tcp=True) as later,
        FaultProxy(former.port) as proxy,
    ):
        (tmp_path / "keyfence.yaml").write_text(CONFIG.format(url=proxy.url, mode=mode, more=""))
        with (
            Keyfence("--config", tmp_path / "keyfence.yaml", expect_stderr="^") as keyfence,
            keyfence.client(single_connection_client=True) as client,
        ):
            assert client.execute_command("CLIENT", "CAPA", "redirect") == b"OK"
            assert client.set("app:k", "before") is True
            become(former, "127.0.0.1", str(later.port))
            with pytest.raises(redis.ResponseError, match="REDIRECT" if mode == "dedicated" else "read only"):
                client.set("app:k", "lost")
            proxy.target = later.port
            eventually(lambda: writes(client), "keyfence leaves the replica")
            become(former)


def writes(client: redis.Redis) -> bool:
    """Whether a write succeeds."""
    try:
        return client.set("app:k", "after") is True
    except (redis.ResponseError, redis.ConnectionError):
        return False
