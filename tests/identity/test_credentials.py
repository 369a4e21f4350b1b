from __future__ import annotations

import contextlib
import socket

import pytest

from keyfence.identity.credentials import (
    AUTHENTICATED,
    WRONGPASS,
    auth_credentials,
    hello_credentials,
    hello_failed,
    hello_users,
    hello_without_credentials,
)
from tests.servers import RedisServer


@pytest.mark.parametrize(
    ("words", "user"),
    [
        ("AUTH pw", b"default"),
        ("AUTH alice pw", b"alice"),
        ("AUTH", None),
        ("AUTH alice pw more", None),
    ],
)
def test_auth_names_a_user(words: str, user: bytes | None) -> None:
    found = auth_credentials(words.encode().split())
    assert (None if found is None else found[0]) == user


@pytest.mark.parametrize(
    ("words", "users"),
    [
        ("HELLO", []),
        ("HELLO 3", []),
        ("HELLO 3 AUTH alice pw", [b"alice"]),
        ("HELLO 3 auth alice pw SetName c", [b"alice"]),
        ("HELLO 3 SETNAME AUTH AUTH alice pw", [b"alice"]),
        ("HELLO 3 AUTH\0 alice pw", [b"alice"]),
        ("HELLO 3 setname\0x c auth\0x alice pw", [b"alice"]),
        ("HELLO 3 SETNAME AUTH alice pw", []),
        ("HELLO 3 AUTH alice", []),
        # Redis has carried out the first option by the time it finds fault with the second.
        ("HELLO 3 AUTH alice pw NONSENSE", [b"alice"]),
        ("HELLO 3 AUTH alice pw AUTH bob pw", [b"alice", b"bob"]),
        ("HELLO 3 NONSENSE AUTH alice pw", []),
    ],
)
def test_hello_names_the_users_that_redis_will_try(words: str, users: list[bytes]) -> None:
    assert hello_users(words.encode().split()) == users


def test_only_some_errors_show_that_hello_authenticated_no_one() -> None:
    assert hello_failed([b"a"], b"-WRONGPASS invalid username-password pair\r\n")
    assert hello_failed([b"a"], b"-NOPROTO unsupported protocol version\r\n")
    assert hello_failed([b"a"], b"-ERR unknown command 'HELLO'\r\n")
    assert not hello_failed([b"a"], b"-ERR Syntax error in HELLO option 'x'\r\n")
    assert not hello_failed([b"a"], b"-ERR Client names cannot contain spaces\r\n")
    assert not hello_failed([b"a", b"b"], b"-WRONGPASS invalid username-password pair\r\n")


def test_the_password_of_auth_without_a_user_is_that_of_default() -> None:
    assert auth_credentials([b"AUTH", b"pw"]) == (b"default", b"pw")
    assert auth_credentials([b"AUTH", b"u", b"pw"]) == (b"u", b"pw")
    assert auth_credentials([b"AUTH"]) is None


@pytest.mark.parametrize(
    ("words", "credentials", "rest"),
    [
        ("HELLO 3", [], "HELLO 3"),
        ("HELLO 3 AUTH u p SETNAME n", [(b"u", b"p")], "HELLO 3 SETNAME n"),
        ("HELLO 3 auth\0 u p SETNAME\0 n", [(b"u", b"p")], "HELLO 3 SETNAME\0 n"),
        ("HELLO 3 SETNAME AUTH AUTH u p", [(b"u", b"p")], "HELLO 3 SETNAME AUTH"),
        ("HELLO 3 AUTH u p AUTH v q", [(b"u", b"p"), (b"v", b"q")], "HELLO 3"),
        ("HELLO 3 AUTH u p WRONG AUTH v q", [(b"u", b"p")], "HELLO 3 WRONG AUTH v q"),
        ("HELLO 3 AUTH u", [], "HELLO 3 AUTH u"),
    ],
)
def test_hello_is_sent_on_without_the_credentials_that_keyfence_checked(
    words: str, credentials: list[tuple[bytes, bytes]], rest: str
) -> None:
    argv = words.encode().split()
    assert hello_credentials(argv) == credentials
    assert hello_without_credentials(argv) == rest.encode().split()


def test_the_replies_to_a_login_are_redis_own(redis_server: RedisServer) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(redis_server.socket_path))
        for request, answer in (("AUTH nobody pw", WRONGPASS), ("AUTH default any", AUTHENTICATED)):
            connection.sendall(f"{request}\r\n".encode())
            assert connection.recv(1000) == answer
