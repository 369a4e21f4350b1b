"""A topology is read from what nodes answer, and anything else is a named error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.upstream.cluster.topology import MAX_NODES, Node, Topology, TopologyError, topology_in
from keyfence.upstream.cluster.troubles import SLOTS_WITHOUT_NODE, troubles_of
from tests.upstream.cluster.replies import FIRST, NODES, REPLICA, SECOND, THIRD, topology

ASKED = "10.0.0.9"


def only(text: str) -> Node:
    """The node in a reply to CLUSTER NODES with one line."""
    (node,) = topology_in(text, ASKED).nodes
    return node


def line(address: str, flags: str = "master", slots: str = "0-16383") -> str:
    return f"{FIRST} {address} {flags} - 0 0 7 connected {slots}\n"


def test_cluster_nodes_tells_roles_slots_names_and_epochs() -> None:
    found = topology().nodes_by_id
    assert found[FIRST] == Node(FIRST, "10.0.0.1", 7001, slots=((0, 5460),), config_epoch=1)
    assert found[SECOND].hostname == "two.example"
    assert (found[REPLICA].is_primary, found[REPLICA].primary_id) == (False, FIRST)
    assert topology().replicas_of(FIRST) == [found[REPLICA]]


def test_a_verbatim_text_is_read_like_any_other() -> None:
    assert topology("txt:" + NODES).same_as(topology())


def test_each_hash_slot_has_its_owner_while_it_moves_too() -> None:
    found = topology()
    assert [found.owner(slot) for slot in (0, 5460, 5461, 16383)] == [
        found.nodes_by_id[node] for node in (FIRST, FIRST, SECOND, THIRD)
    ]
    assert (found.covered, found.epoch, found.owner(-1), found.owner(16384)) == (16384, 3, None, None)


def test_a_node_is_found_by_its_ip_address_and_by_its_name() -> None:
    found = topology()
    assert found.node_at("10.0.0.2", 7002) == found.node_at("two.example", 7002) == found.nodes_by_id[SECOND]
    assert found.node_at("10.0.0.2", 7001) is None


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.1:7001", "10.0.0.1", 7001),  # before Redis 4
        (":7001@17001", ASKED, 7001),
        ("fd00::1:7001@17001", "fd00::1", 7001),
        ("10.0.0.1:7001@17001,,shard-id=" + "ab" * 20, "10.0.0.1", 7001),
        ("10.0.0.1:7001@17001,name,tls-port=0,shard-id=" + "ab" * 20, "10.0.0.1", 7001),
    ],
)
def test_an_address_is_read_in_all_its_forms(address: str, host: str, port: int) -> None:
    assert only(line(address)).address == (host, port)


@pytest.mark.parametrize("flags", ["master,fail", "master,fail?"])
def test_a_node_that_fails_is_not_healthy(flags: str) -> None:
    assert not only(line("10.0.0.1:7001@17001", flags)).is_healthy


def test_a_node_without_an_address_keeps_its_id() -> None:
    node = only(line(":0@0", "master,noaddr"))
    assert (node.host, node.port, node.is_healthy, node.shown) == ("", 0, False, FIRST)


def test_a_node_that_is_not_a_member_yet_is_left_out() -> None:
    assert topology_in(line("10.0.0.1:7001@17001", "handshake"), ASKED).nodes == ()


ROW = [0, 100, [b"10.0.0.1", 7001, FIRST.encode(), []], [b"10.0.0.4", 7004, REPLICA.encode(), []]]


def test_cluster_slots_tells_owners_and_replicas() -> None:
    found = topology_in([ROW, [200, 200, *ROW[2:]]], ASKED)
    assert found.nodes_by_id[FIRST].slots == ((0, 100), (200, 200))
    assert found.nodes_by_id[REPLICA].primary_id == FIRST
    assert found.covered == 102


@pytest.mark.parametrize(
    ("node", "host"),
    [
        ([b"10.0.0.1", 7001], "10.0.0.1"),  # before Redis 4
        ([b"", 7001, FIRST.encode()], ASKED),  # Redis 6.2 before it has met another node
        ([None, 7001, FIRST.encode(), [b"ip", b"10.0.0.1"]], ASKED),  # an endpoint that is unknown
        (
            [b"?", 7001, FIRST.encode(), [b"ip", b"10.0.0.1"]],
            "10.0.0.1",
        ),  # no name, where names are preferred
        ([b"one.example", 7001, FIRST.encode(), {b"ip": b"10.0.0.1"}], "one.example"),
    ],
)
def test_an_endpoint_is_read_in_all_its_forms(node: list[object], host: str) -> None:
    assert topology_in([[0, 0, node]], ASKED).nodes[0].host == host


def shard(**about: object) -> dict[bytes, object]:
    node = {b"id": FIRST.encode(), b"port": 7001, b"endpoint": b"10.0.0.1", b"role": b"master"}
    return {
        b"slots": [0, 5, 7, 7],
        b"nodes": [node | {name.replace("_", "-").encode(): it for name, it in about.items()}],
    }


def flat(value: object) -> object:
    """A value as RESP2 has it."""
    if isinstance(value, dict):
        return [flat(one) for pair in value.items() for one in pair]
    return [flat(one) for one in value] if isinstance(value, list) else value


def test_cluster_shards_tells_the_same_in_both_protocols() -> None:
    replica = {
        b"id": REPLICA.encode(),
        b"port": 7004,
        b"endpoint": b"",
        b"role": b"replica",
        b"health": b"fail",
    }
    reply = shard()
    nodes = reply[b"nodes"]
    assert isinstance(nodes, list)
    nodes.append(replica)
    found = topology_in([reply], ASKED)
    assert found.nodes_by_id[FIRST].slots == ((0, 5), (7, 7))
    assert found.nodes_by_id[REPLICA] == Node(
        REPLICA, ASKED, 7004, "", False, FIRST, is_healthy=False, is_dead=True
    )
    assert topology_in([flat(reply)], ASKED).same_as(found)


def test_a_node_with_tls_alone_has_that_port() -> None:
    assert topology_in([shard(port=None, tls_port=7101)], ASKED).nodes[0].port == 7101


def test_changes_name_who_joined_left_moved_and_got_another_role() -> None:
    old = topology()
    new = topology(
        NODES.replace(f"{REPLICA} 10.0.0.4:7004", f"{REPLICA} 10.0.0.5:7004")
        .replace(f"slave {FIRST} 0 1795541062267 1 connected", "master - 0 0 4 connected 0-5460")
        .replace(f"{SECOND} ", "aa" * 20 + " ")
        .replace(f"[5460->-{SECOND}]", "")
        .replace(" 0-5460 \n", "\n")
    )
    changes = new.changes_since(old)
    assert [[one.id for one in nodes] for nodes in changes] == [
        ["aa" * 20],
        [SECOND],
        [REPLICA],
        [REPLICA],
        [FIRST, REPLICA],
    ]
    assert not new.same_as(old)
    assert old.same_as(topology())


@pytest.mark.parametrize(
    "reply",
    [
        None,
        7,
        b"garbage",
        line("10.0.0.1"),
        line("10.0.0.1:70000@17001"),
        line("10.0.0.1:7001@17001", slots="16384"),
        line("10.0.0.1:7001@17001", slots="5-4"),
        line("x" * 300 + ":7001@17001"),
        line("10.0.0.1:7001@17001") * 2,
        line("10.0.0.1:7001@17001") * (MAX_NODES + 1),
        [[0, 1]],
        [[0, 1, []]],
        [[0, 1, [b"10.0.0.1", -1]]],
        [[b"x", 1, [b"10.0.0.1", 7001]]],
        [[0, 1, [b"10.0.0.1", 7001, 5]]],
        [None],
        [{b"slots": [0, 1]}],
        [{b"slots": [0, 1], b"nodes": [[b"id"]]}],
    ],
)
def test_anything_else_is_a_named_error(reply: object) -> None:
    with pytest.raises(TopologyError, match=r"^[a-z]"):
        topology_in(reply, ASKED)


VALUES = st.recursive(
    st.none()
    | st.integers(-1, 20_000)
    | st.binary(max_size=5)
    | st.sampled_from([b"slots", b"nodes", b"id"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.binary(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES | st.text() | st.text(alphabet="0 -:@,[>\n").map(lambda text: f"{FIRST} {text}"))
def test_no_reply_raises_anything_else(reply: object) -> None:
    with contextlib.suppress(TopologyError):
        assert isinstance(topology_in(reply, ASKED), Topology)


def test_hash_slots_of_a_dead_node_are_not_served_and_operators_are_told() -> None:
    found = topology_in(
        NODES.replace("myself,master", "master").replace(" master ", " master,fail ", 1), ASKED
    )
    (dead,) = [one for one in found.owners() if one.is_dead]
    assert (found.covered, found.served) == (16384, 16384 - dead.slot_count)
    (trouble,) = troubles_of(found)
    assert trouble.kind == SLOTS_WITHOUT_NODE
    assert trouble.text.startswith(f"{dead.shown} is down, and so are its {dead.slot_count:,} hash slots")
    assert topology().served == 16384
    assert troubles_of(topology()) == []


def test_replicas_are_listed_behind_their_primary() -> None:
    assert [one.id for one in topology().by_shard()] == [FIRST, REPLICA, SECOND, THIRD]
