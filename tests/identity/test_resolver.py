from __future__ import annotations

import dataclasses
import ipaddress
import re
import struct
from pathlib import Path

from keyfence.identity.client_facts import Evidence
from keyfence.identity.networks import forwarded, is_trusted
from keyfence.identity.resolver import Resolver, make_resolver
from keyfence.identity.unix_users import with_unix_peer


def networks(**named: str) -> Resolver:
    found = [(ipaddress.ip_network(text.replace("_", "/")), name) for name, text in named.items()]
    return make_resolver(frozenset({"A", "B"}), users={"redis-b": "B"}, networks=found)


def test_the_documentation_lists_the_sources_in_their_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    section = text.partition("\n## identify\n")[2].partition("\n## ")[0]
    login, *others = re.findall(r"^[1-9]\. the (?:client's TLS )?\*\*([^*]+)\*\*", section, re.MULTILINE)
    assert login == "user"
    assert others == [source.evidence for source in make_resolver(frozenset()).sources]


def test_the_narrowest_network_decides() -> None:
    known = networks(wide="10.0.0.0_8", narrow="10.1.0.0_16", one="10.1.2.3_32")
    assert known.identify(Evidence("L", "10.9.9.9"))[0] == "wide"
    assert known.identify(Evidence("L", "10.1.9.9"))[0] == "narrow"
    assert known.identify(Evidence("L", "10.1.2.3"))[0] == "one"


def test_the_network_is_better_evidence_than_the_listener_and_no_evidence_is_unknown() -> None:
    known = networks(inside="10.0.0.0_8")
    assert known.identify(Evidence("L", "10.0.0.1"))[0] == "inside"
    assert known.identify(Evidence("L", "192.0.2.1"))[0] == "L"
    assert known.identify(Evidence("", "192.0.2.1"))[0] == "unknown"
    assert known.identify(Evidence("L", ""))[0] == "L"  # a unix socket
    assert known.identify(Evidence("", "no address"))[0] == "unknown"


def test_an_ipv4_client_of_an_ipv6_socket_is_found_in_its_ipv4_network() -> None:
    known = networks(four="10.0.0.0_8", six="fd00::_8", link="fe80::_10")
    assert known.identify(Evidence("L", "::ffff:10.1.1.1"))[0] == "four"
    assert known.identify(Evidence("L", "fd00::1"))[0] == "six"
    assert known.identify(Evidence("L", "fe80::1%eth0"))[0] == "link"


def test_a_user_is_the_service_it_is_mapped_to_or_named_like_else_nothing_changes() -> None:
    known = networks()
    assert known.of_user(b"redis-b", "C") == "B"
    assert known.of_user(b"A", "C") == "A"
    assert known.of_user(b"default", "C") == "C"
    assert known.of_user(b"\xff\xfe", "C") == "C"


def test_a_reload_changes_it_for_all_who_have_it() -> None:
    known = networks(wide="10.0.0.0_8")
    known.take(make_resolver(frozenset({"C"}), users={"redis-c": "C"}))
    assert known.identify(Evidence("L", "10.9.9.9"))[0] == "L"
    assert (known.of_user(b"redis-c", "X"), known.of_user(b"redis-b", "X")) == ("C", "X")


def test_a_mapped_name_wins_over_a_name_that_equals_a_service() -> None:
    known = make_resolver(frozenset({"A", "B", "unknown"}), certificates={"x.example": "B"})
    assert known.identify(Evidence("L", names=("A", "x.example")))[0] == "B"
    assert known.identify(Evidence("L", names=("A",)))[0] == "A"
    assert known.identify(Evidence("L", names=("unknown", "y")))[0] == "L"


def test_the_best_evidence_wins() -> None:
    known = make_resolver(
        frozenset({"A"}),
        networks=[(ipaddress.ip_network("10.0.0.0/8"), "network")],
        certificates={"x": "certificate"},
        uids={0: "uid"},
    )
    everything = Evidence("listener", "10.0.0.1", uid=0, names=("x",))
    assert known.identify(everything)[0] == "certificate"
    assert known.identify(dataclasses.replace(everything, names=("y",)))[0] == "uid"
    assert known.identify(dataclasses.replace(everything, names=(), uid=1))[0] == "network"
    assert known.identify(Evidence("listener", "192.0.2.1", uid=1))[0] == "listener"
    assert known.identify(Evidence())[0] == "unknown"


def test_a_forwarded_client_has_the_address_it_connects_from_and_nothing_of_the_proxy() -> None:
    proxy = with_unix_peer(Evidence("L"), struct.pack("iII", 1, 2**32 - 2, 1))
    assert proxy == Evidence("L", uid=2**32 - 2)
    assert forwarded(proxy, "10.0.0.1") == Evidence("L", "10.0.0.1")
    kept = {field.name: field.name for field in dataclasses.fields(Evidence)}
    assert forwarded(Evidence(**kept), "10.0.0.1") == Evidence("listener_service", "10.0.0.1")


def test_a_proxy_outside_the_trusted_networks_is_not_believed() -> None:
    networks = [ipaddress.ip_network("10.0.0.0/8")]
    assert is_trusted("10.1.1.1", networks)
    assert is_trusted("::ffff:10.1.1.1", networks)
    assert not is_trusted("192.0.2.1", networks)
    assert is_trusted("192.0.2.1", [])


def test_the_source_that_knows_a_client_is_named() -> None:
    known = make_resolver(
        frozenset({"A"}),
        networks=[(ipaddress.ip_network("10.0.0.0/8"), "N")],
        certificates={"x": "C"},
        uids={0: "U"},
    )
    assert known.identify(Evidence("L", "10.0.0.1", uid=0, names=("x",))) == ("C", "certificate")
    assert known.identify(Evidence("L", "10.0.0.1", uid=0)) == ("U", "Unix user")
    assert known.identify(Evidence("L", "10.0.0.1")) == ("N", "source network")
    assert known.identify(Evidence("L")) == ("L", "listener")
    assert known.identify(Evidence()) == ("unknown", "")


def test_a_user_names_a_service_if_it_is_mapped_or_named_like_one() -> None:
    known = networks()
    assert known.names_service(b"redis-b")
    assert known.names_service(b"A")
    assert not known.names_service(b"default")
    assert not known.names_service(b"\xff")
