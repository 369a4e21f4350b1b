"""Who is who."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import ipaddress
import socket

import pytest

from keyfence.identity.resolver import (
    AUTHENTICATED,
    WRONGPASS,
    Evidence,
    Identities,
    Login,
    Password,
    auth_credentials,
    auth_user,
    certificate_names,
    hello_credentials,
    hello_failed,
    hello_users,
    hello_without_credentials,
)
from tests.servers import RedisServer


def networks(**named: str) -> Identities:
    found = [(ipaddress.ip_network(text.replace("_", "/")), name) for name, text in named.items()]
    return Identities(frozenset({"A", "B"}), {"redis-b": "B"}, found)


def test_the_narrowest_network_decides() -> None:
    known = networks(wide="10.0.0.0_8", narrow="10.1.0.0_16", one="10.1.2.3_32")
    assert known.at_connect(Evidence("L", "10.9.9.9")) == "wide"
    assert known.at_connect(Evidence("L", "10.1.9.9")) == "narrow"
    assert known.at_connect(Evidence("L", "10.1.2.3")) == "one"


def test_the_network_is_better_evidence_than_the_listener_and_no_evidence_is_unknown() -> None:
    known = networks(inside="10.0.0.0_8")
    assert known.at_connect(Evidence("L", "10.0.0.1")) == "inside"
    assert known.at_connect(Evidence("L", "192.0.2.1")) == "L"
    assert known.at_connect(Evidence("", "192.0.2.1")) == "unknown"
    assert known.at_connect(Evidence("L", "")) == "L"  # a unix socket
    assert known.at_connect(Evidence("", "no address")) == "unknown"


def test_an_ipv4_client_of_an_ipv6_socket_is_found_in_its_ipv4_network() -> None:
    known = networks(four="10.0.0.0_8", six="fd00::_8", link="fe80::_10")
    assert known.at_connect(Evidence("L", "::ffff:10.1.1.1")) == "four"
    assert known.at_connect(Evidence("L", "fd00::1")) == "six"
    assert known.at_connect(Evidence("L", "fe80::1%eth0")) == "link"


def test_a_user_is_the_service_it_is_mapped_to_or_named_like_else_nothing_changes() -> None:
    known = networks()
    assert known.of_user(b"redis-b", "C") == "B"
    assert known.of_user(b"A", "C") == "A"
    assert known.of_user(b"default", "C") == "C"
    assert known.of_user(b"\xff\xfe", "C") == "C"


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
    assert auth_user(words.encode().split()) == user


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


def test_only_some_errors_show_that_hello_authenticated_nobody() -> None:
    assert hello_failed([b"a"], b"-WRONGPASS invalid username-password pair\r\n")
    assert hello_failed([b"a"], b"-NOPROTO unsupported protocol version\r\n")
    assert hello_failed([b"a"], b"-ERR unknown command 'HELLO'\r\n")
    assert not hello_failed([b"a"], b"-ERR Syntax error in HELLO option 'x'\r\n")
    assert not hello_failed([b"a"], b"-ERR Client names cannot contain spaces\r\n")
    assert not hello_failed([b"a", b"b"], b"-WRONGPASS invalid username-password pair\r\n")


# -- certificates


def certificate(cn: str = "", *alternative: tuple[str, str]) -> dict[str, object]:
    """What `ssl.SSLSocket.getpeercert` gives."""
    subject = ((("organizationName", "o"),), (("commonName", cn),)) if cn else ()
    return {"subject": subject} | ({"subjectAltName": alternative} if alternative else {})


SPIFFE = "spiffe://cube.example/ns/a/sa/b"


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (None, ()),
        ({}, ()),
        (certificate("A"), ("A",)),
        (certificate("A", ("DNS", "b.example")), ("b.example",)),
        (certificate("A", ("DNS", "b.example"), ("URI", SPIFFE)), (SPIFFE, "b.example")),
        (certificate("A", ("URI", SPIFFE)), (SPIFFE,)),
        (certificate("A", ("IP Address", "10.0.0.1")), ("A",)),
        # Who may choose his CN or a DNS name doesn't choose his URI.
        (certificate(SPIFFE), ()),
        (certificate("A", ("DNS", SPIFFE)), ()),
        (certificate("A", ("URI", "A")), ("A",)),
    ],
)
def test_a_certificate_names_whom_it_was_issued_to(
    known: dict[str, object] | None, names: tuple[str, ...]
) -> None:
    assert certificate_names(known) == names


def test_a_name_that_is_mapped_goes_before_one_that_equals_a_services() -> None:
    known = Identities(frozenset({"A", "B", "unknown"}), certificates={"x.example": "B"})
    assert known.at_connect(Evidence("L", names=("A", "x.example"))) == "B"
    assert known.at_connect(Evidence("L", names=("A",))) == "A"
    assert known.at_connect(Evidence("L", names=("unknown", "y"))) == "L"


def test_the_best_evidence_wins() -> None:
    known = Identities(
        frozenset({"A"}),
        networks=[(ipaddress.ip_network("10.0.0.0/8"), "network")],
        certificates={"x": "certificate"},
        uids={0: "uid"},
    )
    everything = Evidence("listener", "10.0.0.1", 0, ("x",))
    assert known.at_connect(everything) == "certificate"
    assert known.at_connect(dataclasses.replace(everything, names=("y",))) == "uid"
    assert known.at_connect(dataclasses.replace(everything, names=(), uid=1)) == "network"
    assert known.at_connect(Evidence("listener", "192.0.2.1", 1)) == "listener"
    assert known.at_connect(Evidence()) == "unknown"


# -- passwords


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def test_a_user_of_keyfences_own_needs_one_of_his_passwords() -> None:
    known = Identities(
        frozenset({"A", "B"}),
        passwords={
            "app": Password((digest(b"old"), digest(b"new")), "A"),
            "default": Password((digest(b""),), "B"),
        },
    )
    assert known.check(b"app", b"old") == known.check(b"app", b"new") == "A"
    assert known.check(b"app", b"") is Login.WRONG
    assert known.check(b"app", b"ol\xff") is Login.WRONG
    assert known.check(b"default", b"") == "B"
    assert known.check(b"APP", b"old") is Login.NOT_MINE
    assert known.check(b"\xff\xfe", b"old") is Login.NOT_MINE


def test_a_password_is_never_part_of_what_is_shown() -> None:
    assert "sha256" not in repr(Password((digest(b"old"),), "A"))


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
def test_hello_goes_on_without_what_keyfence_has_checked(
    words: str, credentials: list[tuple[bytes, bytes]], rest: str
) -> None:
    argv = words.encode().split()
    assert hello_credentials(argv) == credentials
    assert hello_without_credentials(argv) == rest.encode().split()


def test_the_words_for_a_login_are_those_of_redis(redis_server: RedisServer) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(redis_server.socket_path))
        for request, answer in (("AUTH nobody pw", WRONGPASS), ("AUTH default any", AUTHENTICATED)):
            connection.sendall(f"{request}\r\n".encode())
            assert connection.recv(1000) == answer
