"""Who is who."""

from __future__ import annotations

import ipaddress

import pytest

from proxy.relay.identity import Evidence, Identities, auth_user, hello_failed, hello_users


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
