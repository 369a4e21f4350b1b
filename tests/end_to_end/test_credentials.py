"""A running keyfence whose login at Redis changes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def client_of(keyfence: Keyfence, **options: object) -> redis.Redis:
    """A client that connects once, and does not try again by itself."""
    once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return keyfence.client(retry=once, decode_responses=True, **options)


def admin(keyfence: Keyfence, path: str) -> Any:
    """An answer of the admin listener, whatever its status."""
    try:
        with urllib.request.urlopen(f"{keyfence.ready.admin}{path}") as answer:
            return json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return json.load(exc)


def metric(keyfence: Keyfence, start: str) -> float:
    """The value of the series that begins like this; 0.0: there is none."""
    with urllib.request.urlopen(f"{keyfence.ready.admin}/metrics") as answer:
        found = [line for line in answer.read().decode().splitlines() if line.startswith(start)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def login(password: str, seconds: float) -> str:
    """A file's text for a login that ends."""
    return json.dumps({"username": "keyfence", "password": password, "expires_in": seconds})


def change_password(server: RedisServer, new: str) -> None:
    """From now on Redis takes this password of keyfence alone, and its connections are gone."""
    with server.client() as admin:
        admin.acl_setuser("keyfence", enabled=True, reset_passwords=True, passwords=[f"+{new}"])
        admin.client_kill_filter(_type="normal", skipme=True)


def put(path: Path, text: str) -> None:
    """Replaces a file as a sidecar does."""
    path.with_name("next").touch(0o600)
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


def test_a_command_that_fails_is_named_with_its_setting_and_costs_no_login_in_force(
    tmp_path: Path, server: RedisServer
) -> None:
    change_password(server, "first")
    why = r"/keyfence.yaml:7: command: the command \S+ ended with status 1"
    (tmp_path / "token.py").write_text("import sys; print('hidden'); sys.exit('hidden')")
    source = f"command: [{sys.executable}, {tmp_path}/token.py]"
    told = rf"upstream unix:\S+ has no new credentials: \S+{why}"
    with keyfence_with(tmp_path, server, source, told=told) as keyfence, client_of(keyfence) as client:
        with pytest.raises(redis.RedisError, match="keyfence has no credentials for it"):
            client.get("app:k")
        warnings = str(admin(keyfence, "/readyz")["warnings"])
        credentials = admin(keyfence, "/status")["upstream"]["credentials"]
        assert re.search(why, warnings)
        assert re.search(why, credentials["trouble"])
        assert credentials["failures"] > 0
        assert "hidden" not in warnings + str(credentials)
        assert metric(keyfence, "keyfence_upstream_credentials_failures_total") > 0
        printed = login("first", 2)
        (tmp_path / "token.py").write_text(f"print({printed!r})")
        until_it_answers(client)
        assert not warnings_of(keyfence)
        (tmp_path / "token.py").write_text("import sys; sys.exit(1)")
        while not warnings_of(keyfence):
            assert client.set("app:k", "v") is True  # the login in force stays
            time.sleep(0.1)
        (tmp_path / "keyfence.yaml").write_text(
            CONFIG.format(url=server.url, source="file: password", more="")
        )
        put(tmp_path / "password", "first")
        keyfence.process.send_signal(signal.SIGHUP)  # the remedy needs no restart
        while warnings_of(keyfence):
            assert client.set("app:k", "v") is True
            time.sleep(0.1)
        assert admin(keyfence, "/status")["upstream"]["credentials"]["source"] == f"file {tmp_path}/password"
        assert metric(keyfence, "keyfence_upstream_credentials_expire_timestamp_seconds") == 0


def warnings_of(keyfence: Keyfence) -> list[str]:
    found: list[str] = admin(keyfence, "/readyz")["warnings"]
    return found


class Load:
    """A client that works without pause in a thread. Each reply must be the one to its own request."""

    def __init__(
        self, number: int, client: redis.Redis, work: Callable[[redis.Redis, str, str], None]
    ) -> None:
        self.rounds = 0
        self.error = ""
        self._name = f"app:{number}"
        self._client = client
        self._work = work
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._work(self._client, self._name, f"{self._name}-{self.rounds}")
                self.rounds += 1
        except Exception as exc:
            self.error = repr(exc)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()


def plainly(client: redis.Redis, name: str, value: str) -> None:
    """On a shared connection."""
    assert client.set(name, value) is True
    assert client.get(name) == value


def alone(client: redis.Redis, name: str, value: str) -> None:
    """On a connection of the client's own: transactions with WATCH, and short blocks."""
    with client.pipeline(transaction=True) as queued:
        queued.watch(name)
        queued.multi()
        queued.set(name, value)
        queued.get(name)
        assert queued.execute() == [True, value]
    assert client.blpop(f"{name}:queue", timeout=0.01) is None
    assert client.rpush(f"{name}:queue", value) == 1
    assert client.blpop(f"{name}:queue", timeout=0.01) in ((f"{name}:queue", value), [f"{name}:queue", value])


def test_a_login_that_changes_every_two_seconds_costs_no_client_a_reply(
    tmp_path: Path, server: RedisServer
) -> None:
    """Each login ends after six seconds, and Redis takes none but the newest."""
    change_password(server, "number0")
    put(tmp_path / "password", login("number0", 6))
    with (
        keyfence_with(tmp_path, server, "file: password", told="|.") as keyfence,
        contextlib.ExitStack() as stack,
    ):
        loads = [
            stack.enter_context(Load(number, client_of(keyfence, protocol=2 + number % 2), work))
            for number, work in enumerate([plainly, plainly, alone, alone])
        ]
        listener = client_of(keyfence, protocol=3).pubsub()
        stack.callback(listener.close)
        listener.subscribe("news")
        assert listener.get_message(timeout=PATIENCE_SECONDS) is not None
        deaf = client_of(keyfence, protocol=2).pubsub()
        stack.callback(deaf.close)
        deaf.subscribe("news")
        assert deaf.get_message(timeout=PATIENCE_SECONDS) is not None
        for number in range(1, 4):
            with server.client() as direct:
                direct.acl_setuser(
                    "keyfence", enabled=True, reset_passwords=True, passwords=[f"+number{number}"]
                )
            put(tmp_path / "password", login(f"number{number}", 6))
            time.sleep(2)
        assert [load.error for load in loads] == [""] * 4
        assert min(load.rounds for load in loads) > 10
        with pytest.raises(redis.ConnectionError):  # AUTH cannot be sent to a RESP2 subscriber
            deaf.get_message(timeout=PATIENCE_SECONDS)
        deaf.close()  # it would subscribe again
        with server.client() as direct:
            direct.publish("news", "text")
        message = listener.get_message(timeout=PATIENCE_SECONDS)
        assert message is not None
        assert message["data"] == "text"
        assert metric(keyfence, 'keyfence_closures_total{reason="credentials"}') == 1
        assert metric(keyfence, 'keyfence_upstream_reauthentications_total{answer="accepted"') > 4
        assert metric(keyfence, "keyfence_upstream_credentials_expire_timestamp_seconds") > 0
