"""A running keyfence whose login at Redis changes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.servers import PATIENCE_SECONDS, Keyfence, RedisServer, running_redis

POLICY = """policy: p
services: [app]
scopes: {all: {prefix: "app:", writers: [app], unregistered: allow}}
"""
CONFIG = """policy: policy.yaml
upstream:
  url: {url}
  username: keyfence
  connect_timeout: 2s
  credentials:
    {source}
listeners: [{{listen: "127.0.0.1:0", service: app}}]
admin: "127.0.0.1:0"
findings: none
{more}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(acl=["keyfence on >first ~* &* +@all"]) as running:
        yield running


@contextlib.contextmanager
def keyfence_with(
    folder: Path, server: RedisServer, source: str, more: str = "", told: str = ""
) -> Iterator[Keyfence]:
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "keyfence.yaml").write_text(CONFIG.format(url=server.url, source=source, more=more))
    with Keyfence("--config", folder / "keyfence.yaml", expect_stderr=told) as keyfence:
        yield keyfence


def client_of(keyfence: Keyfence) -> redis.Redis:
    """A client that connects once, and does not try again by itself."""
    return keyfence.client(retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0), decode_responses=True)


def change_password(server: RedisServer, new: str) -> None:
    """From now on Redis takes this password of keyfence alone, and its connections are gone."""
    with server.client() as admin:
        admin.acl_setuser("keyfence", enabled=True, reset_passwords=True, passwords=[f"+{new}"])
        admin.client_kill_filter(_type="normal", skipme=True)


def put(path: Path, text: str) -> None:
    """Replaces a file as a sidecar does."""
    path.with_name("next").write_text(text)
    path.with_name("next").replace(path)


@pytest.mark.parametrize("more", ["", "workers: 2"])
def test_after_a_refusal_the_file_is_read_before_any_client_gets_an_error(
    tmp_path: Path, server: RedisServer, more: str
) -> None:
    change_password(server, "first")
    put(tmp_path / "password", "first\n")
    with keyfence_with(tmp_path, server, "file: password", more, told="|unreachable") as keyfence:
        for number in range(3):
            put(tmp_path / "password", f"number{number}\n")
            change_password(server, f"number{number}")
            with client_of(keyfence) as client:
                assert client.set("app:k", number) is True
                assert client.pubsub().execute_command("SUBSCRIBE", "news") is None  # on its own connection


def test_a_wrong_password_is_an_error_in_time(tmp_path: Path, server: RedisServer) -> None:
    change_password(server, "first")
    put(tmp_path / "password", "hidden\n")
    with (
        keyfence_with(
            tmp_path, server, "file: password", told="refused keyfence's login: WRONGPASS"
        ) as keyfence,
        client_of(keyfence) as client,
    ):
        before = time.monotonic()
        with pytest.raises(redis.RedisError, match="refused keyfence's login: WRONGPASS"):
            client.get("app:k")
        assert time.monotonic() - before < 4
        put(tmp_path / "password", "first\n")
        until_it_answers(client)
    assert "hidden" not in "".join(keyfence.lines)


def until_it_answers(client: redis.Redis) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            assert client.set("app:k", "v") is True
            return
        except redis.RedisError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('hidden'); print('hidden')", "gives several lines"),
        ("import time; time.sleep(60)", "has not ended within 2 s"),
        ("import sys; print('hidden'); sys.exit('hidden')", "ended with status 1"),
    ],
)
def test_a_command_that_fails_is_named_with_its_setting_and_clients_get_an_error_in_time(
    tmp_path: Path, server: RedisServer, code: str, why: str
) -> None:
    change_password(server, "first")
    told = rf"no new credentials for upstream unix:\S+: \S+/keyfence.yaml:7: command: the command \S+ {why}"
    (tmp_path / "token.py").write_text(code)
    source = f"command: [{sys.executable}, {tmp_path}/token.py]"
    with keyfence_with(tmp_path, server, source, told=told) as keyfence, client_of(keyfence) as client:
        before = time.monotonic()
        with pytest.raises(redis.RedisError, match="keyfence has no credentials for it"):
            client.get("app:k")
        assert time.monotonic() - before < 4
        (tmp_path / "token.py").write_text("""print('{"username": "keyfence", "password": "first"}')""")
        until_it_answers(client)
