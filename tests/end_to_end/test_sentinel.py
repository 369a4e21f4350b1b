"""A running keyfence follows the primary that real Sentinels name."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import redis

from tests.clients.running import ask, eventually, metric
from tests.sentinel import following, running_sentinels
from tests.servers import PATIENCE_SECONDS, Keyfence


def client_of(keyfence: Keyfence) -> redis.Redis:
    """A client that connects once, and does not try again by itself."""
    return keyfence.client(retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0), decode_responses=True)


def until_it_writes(client: redis.Redis, value: str) -> None:
    """Writes until it succeeds. Only lost connections may come before; no reply may be wrong."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            assert client.set("app:k", value) is True
            return
        except (redis.ConnectionError, redis.ReadOnlyError):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def check_it_is_told(keyfence: Keyfence, node: str) -> None:
    """What operators see of a failover to this node."""

    def last() -> dict[str, object]:
        return dict(json.loads(ask(keyfence, "/status")[1])["upstream"]["last_failover"])

    assert last()["node"] == node
    eventually(lambda: last()["seconds"] is not None, "the failover is over")
    assert metric(keyfence, "keyfence_upstream_failover_seconds") == last()["seconds"]
    eventually(lambda: metric(keyfence, "keyfence_upstream_role", role="master") == 1, "the role is known")


def test_a_graceful_failover_is_followed(tmp_path: Path) -> None:
    alone, several = tmp_path / "alone", tmp_path / "several"
    alone.mkdir()
    several.mkdir()
    with (
        running_sentinels(tmp_path) as watched,
        following(alone, watched, told="is 127") as one,
        following(several, watched, "workers: 2", told="is 127") as other,
        client_of(one) as client,
        client_of(other) as of_worker,
    ):
        assert "upstream sentinel:main" in one.lines[0]
        for number, it in enumerate((client, of_worker)):
            assert it.set(f"app:{number}", "before") is True
        watched.fail_over()
        for it in (client, of_worker):
            until_it_writes(it, "after")
            assert it.get("app:k") == "after"
        for keyfence in (one, other):
            check_it_is_told(keyfence, f"127.0.0.1:{watched.replica.port}")
        assert metric(one, "keyfence_upstream_reconnects_total") > 0
        with watched.replica.client() as direct:
            assert direct.get("app:k") in ("after", b"after")


def test_a_crashed_primary_is_replaced(tmp_path: Path) -> None:
    with (
        running_sentinels(tmp_path, 500) as watched,
        following(tmp_path, watched, told="unreachable|is 127") as keyfence,
        client_of(keyfence) as client,
    ):
        assert client.set("app:k", "before") is True
        watched.primary.kill()
        until_it_writes(client, "after")
        with watched.replica.client() as direct:
            assert direct.get("app:k") in ("after", b"after")


def test_subscribers_and_blocked_clients_do_not_stay_on_the_former_primary(tmp_path: Path) -> None:
    with (
        running_sentinels(tmp_path, 500) as watched,
        following(tmp_path, watched, told="is 127") as keyfence,
        client_of(keyfence) as subscriber,
        client_of(keyfence) as blocked,
    ):
        heard = subscriber.pubsub()
        heard.subscribe("news")
        assert heard.get_message(timeout=PATIENCE_SECONDS) is not None
        connection = blocked.connection_pool.get_connection()
        connection.send_command("BLPOP", "app:queue", "0")
        watched.primary.pause()  # it keeps its connections, and says nothing
        try:
            with pytest.raises(redis.ConnectionError):
                heard.get_message(timeout=PATIENCE_SECONDS)
            with pytest.raises(redis.ConnectionError):
                connection.read_response()
        finally:
            watched.primary.resume()
        with client_of(keyfence) as client:
            until_it_writes(client, "after")
