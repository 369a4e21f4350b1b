"""Passwords and users: Redis decides about a login, and keyfence passes its decision on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from keyfence.resp import encode
from tests.differential.pairs import Pair, running_pair, step
from tests.differential.ways import UNANSWERED
from tests.servers import ServerBinary

a, b = partial(step, "a"), partial(step, "b")


@pytest.fixture(scope="module")
def _locked(
    redis_binary: ServerBinary, upstream_mode: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("locked")
    users = [
        "app on >word ~app:* resetchannels &app:* +@all -@dangerous",
        "reader on >word ~* +get +hello",
        "off off >word ~* +@all",
    ]
    with running_pair(redis_binary, upstream_mode, folder, password="secret", acl=users) as pair:
        yield pair


@pytest.fixture
def locked(_locked: Pair) -> Pair:
    return _locked


def test_commands_before_a_password(locked: Pair) -> None:
    locked.same(
        a(
            "GET k",
            "PING",
            "NOSUCH",
            "GET",
            "MULTI",
            "EXEC",
            "SUBSCRIBE x",
            "MONITOR",
            "CLIENT ID",
            "SELECT 1",
        )
    )
    locked.same(
        a("CLIENT REPLY OFF", "GET k", "CLIENT TRACKING ON", "BLPOP l 0", "WATCH k", "RESET", "GET k", "QUIT")
    )


def test_hello_before_a_password(locked: Pair) -> None:
    locked.same(a("HELLO"), a("HELLO 3"), a("HELLO 2"), a("HELLO 4"), a("GET k"))
    locked.same(
        a("HELLO 3 SETNAME x"), a("HELLO 3 AUTH default secret"), a("GET k", "CLIENT GETNAME", "HGETALL h")
    )
    locked.same(
        a("HELLO 3 AUTH default wrong SETNAME n"), a("HELLO 3 AUTH default secret NOSUCH"), a("GET k")
    )
    locked.same(a("HELLO 3 AUTH default secret SETNAME n AUTH default wrong"), a("GET k"))
    locked.same(a("HELLO 3 AUTH app word SETNAME n", "GET k", "GET app:k", "HGETALL app:h", "CLIENT GETNAME"))


def test_logins(locked: Pair) -> None:
    if not locked.answers_failed_logins:
        pytest.skip(UNANSWERED)
    locked.same(
        a(
            "AUTH wrong",
            "GET k",
            "AUTH secret",
            "GET k",
            "AUTH wrong",
            "GET k",
            "AUTH default secret",
            "ACL WHOAMI",
        )
    )
    locked.same(
        a(
            "AUTH app word",
            "ACL WHOAMI",
            "SET app:k 1",
            "SET k 1",
            "KEYS *",
            "AUTH default secret",
            "SET k 1",
            "KEYS *",
        )
    )
    locked.same(a("AUTH off word", "AUTH nosuch word", "AUTH reader word", "GET k", "SET k 1", "EVAL x 0"))
    locked.same(
        a("AUTH app word"),
        a("SELECT 1", "SET app:k 1"),
        a("RESET"),
        a("GET app:k"),
        a("AUTH secret"),
        a("GET app:k"),
    )


def test_a_pipeline_changes_users(locked: Pair) -> None:
    if not locked.answers_failed_logins:
        pytest.skip(UNANSWERED)
    locked.same(
        a(
            *(
                "AUTH app word",
                "SET app:k 1",
                "SET k 1",
                "AUTH secret",
                "SET k 2",
                "GET app:k",
                "AUTH nosuch x",
            )
            * 30
        )
    )


def test_transactions_of_users(locked: Pair) -> None:
    locked.same(a("AUTH app word", "MULTI", "SET app:k 1", "SET k 1", "EXEC", "GET app:k"))
    locked.same(a("AUTH app word", "MULTI", "AUTH secret", "SET k 1", "EXEC", "ACL WHOAMI", "GET k"))
    locked.same(a("AUTH reader word", "MULTI", "GET k", "EXEC"))
    if not locked.answers_failed_logins:
        pytest.skip(UNANSWERED)
    locked.same(a("AUTH app word", "MULTI", "SET app:k 1"), a("AUTH nosuch x"), a("EXEC", "ACL WHOAMI"))


def test_subscriptions_of_users(locked: Pair) -> None:
    locked.same(
        a("AUTH app word", "SUBSCRIBE app:x x", "SUBSCRIBE app:x"),
        b("AUTH app word", "PUBLISH app:x 1", "PUBLISH x 1"),
        a("PSUBSCRIBE app:*", "PSUBSCRIBE *"),
        b("PUBLISH app:x 2"),
    )


def test_a_deleted_user(locked: Pair) -> None:
    with locked.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "passing", "on", ">word", "~*", "+@all")
    locked.same(
        a("AUTH passing word"),
        a("GET k"),
        b("AUTH secret", "ACL SETUSER passing -get"),
        a("GET k", "SET k 1"),
        b("ACL SETUSER passing +get"),
        a("GET k"),
    )


def test_limits_before_a_password(locked: Pair) -> None:
    locked.same(a(b"*11\r\n" + b"$1\r\nx\r\n" * 11), b("GET k"))
    locked.same(a(b"*10\r\n" + b"$1\r\nx\r\n" * 10), b("GET k"))
    locked.same(a(b"*1\r\n$16385\r\n" + b"x" * 16385 + b"\r\n"), b("GET k"))
    locked.same(a(b"*1\r\n$16384\r\n" + b"x" * 16384 + b"\r\n"), b("GET k"))
    locked.same(a("AUTH secret", ("SET", "k", b"x" * 100_000), (*["DEL"], *range(100)), "STRLEN k"))


def test_invalid_requests_before_a_password(locked: Pair) -> None:
    if locked.server.version_info >= (7,):
        locked.same(a(b"POST / HTTP/1.1\r\n\r\n"))
    locked.same(a(b"*1\r\n$x\r\n"))
    locked.same(a(b"PING\r\n\r\nAUTH secret\r\nPING\r\n"), a("QUIT"))
    locked.same(a(encode.command("AUTH", "secret") * 1000, "PING"))
