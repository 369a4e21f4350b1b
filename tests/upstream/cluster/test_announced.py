"""A node's port follows from the configuration and the nodes of its cluster alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.upstream.cluster.announced import Announced, AnnounceError, Announcement, ports_of
from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.cluster.troubles import NO_PORT, Trouble
from tests.upstream.cluster.replies import FIRST, SECOND, addresses

HUNDRED = Announcement("192.0.2.1", range(7200, 7300))


def cluster(*ids: str) -> Topology:
    return Topology(Node(one, f"10.0.0.{index}", 7000 + index) for index, one in enumerate(ids))


def node_ids(count: int, seed: int = 1) -> list[str]:
    chosen = random.Random(seed)
    return [f"{chosen.getrandbits(160):040x}" for _ in range(count)]


def preferring_one_port() -> list[str]:
    """Three ids that prefer one port of a hundred, the lowest first."""
    by_port: dict[int, list[str]] = {}
    for one in node_ids(1000):
        (port,) = ports_of(cluster(one), HUNDRED).by_id.values()
        by_port.setdefault(port, []).append(one)
    return sorted(next(ids for ids in by_port.values() if len(ids) > 2)[:3])


@given(st.lists(st.integers(0, 2**160 - 1), unique=True, max_size=100), st.randoms())
def test_each_node_has_a_port_of_its_own_in_whatever_order_nodes_are_named(
    numbers: list[int], chosen: random.Random
) -> None:
    ids = [f"{one:040x}" for one in numbers]
    ports = ports_of(cluster(*ids), HUNDRED).by_id
    assert len(set(ports.values())) == len(ids)
    assert set(ports.values()) <= set(HUNDRED.ports)
    chosen.shuffle(ids)
    assert ports_of(cluster(*ids), HUNDRED).by_id == ports


def test_a_node_keeps_its_port_whatever_its_address() -> None:
    old, new = Topology([Node(FIRST, "10.0.0.1", 1)]), Topology([Node(FIRST, "10.0.0.2", 2, "name")])
    assert ports_of(old, HUNDRED) == ports_of(new, HUNDRED)


def test_nodes_that_prefer_different_ports_keep_them_whoever_joins_and_leaves() -> None:
    ids = node_ids(12)
    alone = {one: ports_of(cluster(one), HUNDRED).by_id[one] for one in ids}
    sole = [one for one in ids if list(alone.values()).count(alone[one]) == 1]
    for count in range(1, 13):
        ports = ports_of(cluster(*ids[:count]), HUNDRED).by_id
        assert all(ports[one] == alone[one] for one in ids[:count] if one in sole)


def test_of_nodes_that_prefer_one_port_the_lowest_id_has_it_and_operators_hear_of_the_others() -> None:
    low, middle, high = preferring_one_port()
    ports, troubles = ports_of(cluster(high, low, middle), HUNDRED)
    preferred = ports[low]
    assert ports_of(cluster(high), HUNDRED) == ({high: preferred}, ())
    assert sorted((ports[middle], ports[high])) == [preferred + 1, preferred + 2]
    assert [f"prefer port {preferred}" in one.text for one in troubles] == [True, True]
    assert "name the ports of these nodes, or announce more ports" in troubles[0].text


def test_a_port_that_the_configuration_names_is_the_nodes_own() -> None:
    named = Announcement("192.0.2.1", HUNDRED.ports, {("10.0.0.0", 7000): 7250, ("two.example", 7002): 9000})
    topology = Topology([Node(FIRST, "10.0.0.0", 7000), Node(SECOND, "10.0.0.2", 7002, "two.example")])
    assert ports_of(topology, named) == ({FIRST: 7250, SECOND: 9000}, ())
    others = ports_of(cluster(*node_ids(99)), Announcement("", HUNDRED.ports, {("other", 1): 7250})).by_id
    assert set(others.values()) == set(HUNDRED.ports) - {7250}


def test_a_port_named_for_two_nodes_is_an_error() -> None:
    with pytest.raises(AnnounceError, match=r"^one:1 and two:2 have one port, 7200: give each node its own$"):
        Announcement("192.0.2.1", range(0), {("one", 1): 7200, ("two", 2): 7200})


def test_a_node_for_which_no_port_is_left_is_named() -> None:
    low, high = sorted(node_ids(2))
    ports, troubles = ports_of(cluster(low, high), Announcement("192.0.2.1", range(7200, 7201)))
    assert ports == {low: 7200}
    text = (
        "the node 10.0.0.1:7001 has no port of keyfence, so clients cannot reach it: "
        "all 1 announced ports are used; announce more ports"
    )
    assert troubles == (Trouble(NO_PORT, text),)


def test_a_node_that_is_not_in_a_list_of_all_is_named() -> None:
    ports, troubles = ports_of(cluster(FIRST), Announcement("192.0.2.1", range(0), {("other", 1): 7200}))
    assert ports == {}
    assert "no port is announced for it" in troubles[0].text


@pytest.mark.parametrize(
    ("host", "is_name"), [("192.0.2.1", False), ("fd00::1", False), ("keyfence.example", True)]
)
def test_a_name_is_told_from_an_ip_address(host: str, is_name: bool) -> None:
    assert Announced(host, 7200).is_name is is_name


def test_a_redirect_leads_to_keyfences_address_for_the_node() -> None:
    known = addresses()
    assert known.at("10.0.0.1", 7001, 0) == Announced("192.0.2.1", 7201)
    assert known.at("two.example", 7002, 0) == Announced("192.0.2.1", 7202)
    assert known.at("10.0.0.8", 7001, 0) is None
    assert addresses(known={}).at("10.0.0.1", 7001, 0) is None


@pytest.mark.parametrize("host", ["", "?"])
def test_a_redirect_that_names_no_host_leads_to_the_owner_of_the_hash_slot(host: str) -> None:
    known = addresses()
    assert known.at(host, 7002, 5461) == Announced("192.0.2.1", 7202)
    assert known.at(host, 7003, 5461) == Announced(
        "192.0.2.1", 7203
    )  # it has changed: the port says whose it is
    assert known.at(host, 7009, 5461) is None
