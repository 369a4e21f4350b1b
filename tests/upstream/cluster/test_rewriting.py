"""Replies and redirects name keyfence's addresses, and nothing else about them changes."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.resp.frames import FrameError
from keyfence.upstream.cluster.announced import Addresses
from keyfence.upstream.cluster.rewriting import REWRITTEN, redirected, rewritten
from keyfence.upstream.cluster.topology import Node, Topology, topology_in
from tests.upstream.cluster.replies import FIRST, NODES, REPLICA, SECOND, THIRD, addresses, wire

NAME = "keyfence.example"
BOTH = pytest.mark.parametrize("resp", [2, 3])


def slots_node(port: int, node_id: str, **about: str) -> list[object]:
    return [f"10.0.0.{port - 7000}", port, node_id, about]


SLOTS = [
    [0, 5460, slots_node(7001, FIRST), slots_node(7004, REPLICA)],
    [5461, 10921, slots_node(7002, SECOND, hostname="two.example", zone="a")],
    [10922, 16383, ["?", 7003, THIRD, {"ip": "10.0.0.3"}]],
]


@BOTH
def test_cluster_slots_names_keyfence_and_keeps_what_is_no_address(resp: int) -> None:
    assert rewritten("CLUSTER SLOTS", wire(SLOTS, resp), addresses()) == wire(
        [
            [0, 5460, ["192.0.2.1", 7201, FIRST, {}], ["192.0.2.1", 7204, REPLICA, {}]],
            [5461, 10921, ["192.0.2.1", 7202, SECOND, {"zone": "a"}]],
            [10922, 16383, ["192.0.2.1", 7203, THIRD, {}]],
        ],
        resp,
    )


@BOTH
def test_cluster_slots_omits_nodes_without_an_address_and_ranges_without_an_owner(resp: int) -> None:
    known = addresses(known={FIRST: 7201})
    new = rewritten("CLUSTER SLOTS", wire(SLOTS, resp), known)
    assert new == wire([[0, 5460, ["192.0.2.1", 7201, FIRST, {}]]], resp)
    assert rewritten("CLUSTER SLOTS", wire(SLOTS, resp), addresses(known={REPLICA: 7204})) == b"*0\r\n"


def test_old_servers_tell_no_more_of_a_node_than_its_address_and_id() -> None:
    reply = wire([[0, 5, ["", 7001, FIRST]]])
    assert rewritten("CLUSTER SLOTS", reply, addresses(NAME)) == wire([[0, 5, [NAME, 7201, FIRST]]])


def shards(host: str, name: str, ports: tuple[int, int], *, tls: bool = False) -> object:
    def node(node_id: str, port: int, host: str) -> dict[str, object]:
        about: dict[str, object] = {"id": node_id, "port": port}
        about |= {"tls-port": port} if tls else {}
        about |= {"ip": host, "endpoint": host} | ({"hostname": name} if name else {})
        return about | {"role": "master", "replication-offset": 7, "health": "online"}

    return [
        {"slots": [0, 5460], "nodes": [node(FIRST, ports[0], host)]},
        {"slots": [5461, 10921], "nodes": [node(SECOND, ports[1], host)]},
    ]


@BOTH
@pytest.mark.parametrize("tls", [False, True])
def test_cluster_shards_names_keyfence_by_its_name(resp: int, tls: bool) -> None:
    reply = wire(shards("10.0.0.1", "two.example", (7001, 7002), tls=tls), resp)
    expected = wire(shards(NAME, NAME, (7201, 7202), tls=tls), resp)
    assert rewritten("CLUSTER SHARDS", reply, addresses(NAME)) == expected


@BOTH
def test_cluster_shards_names_no_name_if_keyfence_announces_an_ip_address(resp: int) -> None:
    reply = wire(shards("10.0.0.1", "two.example", (7001, 7002)), resp)
    expected = wire(shards("192.0.2.1", "", (7201, 7202)), resp)
    assert rewritten("CLUSTER SHARDS", reply, addresses()) == expected


@BOTH
def test_cluster_shards_omits_a_shard_of_which_no_node_is_known(resp: int) -> None:
    reply = wire(shards("10.0.0.1", "", (7001, 7002)), resp)
    new = rewritten("CLUSTER SHARDS", reply, addresses(known={SECOND: 7202}))
    expected = shards("192.0.2.1", "", (7201, 7202))
    assert isinstance(expected, list)
    assert new == wire(expected[1:], resp)


def line(host: str, port: int, flags: str = "master") -> str:
    return f"{FIRST} {host}:{port}@{port + 10000} {flags} - 0 0 1 connected 0-5460 [5460->-{SECOND}]"


def as_text(text: str, resp: int) -> bytes:
    return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text.encode()) if resp > 2 else wire(text)


@BOTH
def test_cluster_nodes_names_keyfence_in_each_line(resp: int) -> None:
    new = rewritten("CLUSTER NODES", as_text(NODES, resp), addresses())
    expected = NODES.replace(",two.example", "")
    for index in (1, 2, 3, 4):
        expected = expected.replace(
            f"10.0.0.{index}:700{index}@1700{index}", f"192.0.2.1:720{index}@1720{index}"
        )
    assert new == as_text(expected, resp)


def test_cluster_nodes_has_a_name_where_the_node_has_one() -> None:
    text = rewritten("CLUSTER NODES", wire(NODES), addresses(NAME)).decode()
    assert f"{FIRST} {NAME}:7201@17201 myself,master" in text
    assert f"{SECOND} {NAME}:7202@17202,{NAME} master" in text


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:7001", "192.0.2.1:7201"),
        (":7001@17001", "192.0.2.1:7201@17201"),
        (":0@0", "192.0.2.1:7201@17201"),
        ("10.0.0.1:7001@17001,,shard-id=ab", "192.0.2.1:7201@17201,,shard-id=ab"),
        ("fd00::1:7001@17001,one.example,tls-port=0", "192.0.2.1:7201@17201,,tls-port=0"),
    ],
)
def test_an_address_is_exchanged_in_all_its_forms(address: str, expected: str) -> None:
    def reply(written: str) -> bytes:
        return wire(f"{FIRST} {written} master - 0 0 1 connected\n")

    assert rewritten("CLUSTER NODES", reply(address), addresses()) == reply(expected)


def test_the_port_of_the_bus_is_a_port() -> None:
    reply = wire(line("10.0.0.1", 7001) + "\n")
    assert b":60000@65535 " in rewritten("CLUSTER NODES", reply, addresses(known={FIRST: 60000}))


@pytest.mark.parametrize("command", ["CLUSTER REPLICAS", "CLUSTER SLAVES"])
def test_the_lines_of_replicas_name_keyfence(command: str) -> None:
    reply = wire([line("10.0.0.1", 7001), f"{THIRD} 10.0.0.3:7003@17003 slave {FIRST} 0 0 1 connected"])
    new = rewritten(command, reply, addresses(known={FIRST: 7201}))
    assert new == wire([line("192.0.2.1", 7201)])


@pytest.mark.parametrize("command", list(REWRITTEN))
def test_an_error_stays_and_any_other_answer_is_refused(command: str) -> None:
    error = b"-ERR This instance has cluster support disabled\r\n"
    assert rewritten(command, error, addresses()) == error
    with pytest.raises(FrameError):
        rewritten(command, b":1\r\n", addresses())


def test_clients_that_ask_at_once_share_the_work() -> None:
    known, reply = addresses(), wire(SLOTS)
    first = rewritten("CLUSTER SLOTS", reply, known)
    assert rewritten("CLUSTER SLOTS", wire(SLOTS), known) is first
    assert rewritten("CLUSTER SLOTS", reply, addresses("192.0.2.2")) != first


@given(
    command=st.sampled_from(list(REWRITTEN)),
    reply=st.recursive(
        st.integers(0, 9) | st.sampled_from([FIRST, "id", "nodes", "ip", ""]) | st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "nodes"]), inner),
        max_leaves=15,
    ),
    resp=st.sampled_from([2, 3]),
)
def test_no_reply_raises_anything_else(command: str, reply: object, resp: int) -> None:
    with contextlib.suppress(FrameError):
        assert isinstance(rewritten(command, wire(reply, resp), addresses()), bytes)


def test_a_redirect_names_keyfences_address() -> None:
    assert redirected(b"MOVED 0 10.0.0.1:7001", addresses()) == b"MOVED 0 192.0.2.1:7201"
    assert redirected(b"ASK 0 two.example:7002", addresses(NAME)) == b"ASK 0 keyfence.example:7202"
    assert redirected(b"MOVED 5461 :7002", addresses()) == b"MOVED 5461 192.0.2.1:7202"
    assert redirected(b"MOVED 0 10.0.0.1:7001 more", addresses("fd00::1")) == b"MOVED 0 fd00::1:7201 more"


def test_a_redirect_to_an_unknown_node_has_clients_try_again() -> None:
    assert redirected(b"MOVED 0 10.0.0.8:7001", addresses()).startswith(b"CLUSTERDOWN Hash slot not served")
    assert redirected(b"ASK 0 10.0.0.8:7001", addresses()).startswith(b"TRYAGAIN ")


@pytest.mark.parametrize(
    "text",
    [
        b"MOVED",
        b"MOVED x 1:2",
        b"MOVED 1 host",
        b"MOVED 1 host:x",
        b"ERR MOVED 1 a:1",
        b"MOVED %b a:1" % (b"1" * 5000),
        b"ASK 1 a:1\n",
    ],
)
def test_an_error_of_another_form_stays(text: bytes) -> None:
    assert redirected(text, addresses()) == text


HOSTS = st.sampled_from(["10.0.0.1", "fd00::1", ""])


@st.composite
def clusters(draw: st.DrawFn) -> Topology:
    """A cluster of up to six primaries, with a replica of each."""
    cuts = sorted(draw(st.sets(st.integers(1, 16383), max_size=5)))
    nodes = []
    for index, (first, last) in enumerate(zip([0, *cuts], [*(one - 1 for one in cuts), 16383], strict=True)):
        primary = Node(
            f"{index:02x}" * 20, draw(HOSTS), 7000 + index, slots=((first, last),), config_epoch=index
        )
        replica = Node(f"{index:02x}ff" * 10, draw(HOSTS), 7100 + index, "", False, primary.id)
        nodes += [primary, replica]
    return Topology(nodes)


def reply_of(topology: Topology, command: str, resp: int) -> bytes:
    """What a node of this cluster answers."""
    if command == "CLUSTER NODES":
        lines = []
        for one in topology.nodes:
            role, slots = ("master -", one.slots) if one.is_primary else (f"slave {one.primary_id}", ())
            ranges = "".join(f" {first}-{last}" for first, last in slots)
            lines.append(
                f"{one.id} {one.host}:{one.port}@1 {role} 0 0 {one.config_epoch} connected{ranges}\n"
            )
        return as_text("".join(lines), resp)
    rows: list[object] = []
    for one in topology.nodes:
        near = [one, *topology.replicas_of(one.id)]
        if not one.is_primary:
            continue
        if command == "CLUSTER SLOTS":
            here = [[node.host, node.port, node.id, {}] for node in near]
            rows += [[first, last, *here] for first, last in one.slots]
            continue
        about = [
            {
                "id": node.id,
                "port": node.port,
                "endpoint": node.host,
                "role": "master" if node is one else "replica",
            }
            for node in near
        ]
        rows.append({"slots": [slot for pair in one.slots for slot in pair], "nodes": about})
    return wire(rows, resp)


@given(
    clusters(),
    st.sampled_from(["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"]),
    st.sampled_from([2, 3]),
    st.sampled_from(["192.0.2.1", "fd00::9", NAME]),
)
def test_clients_see_the_same_cluster_at_other_addresses(
    topology: Topology, command: str, resp: int, host: str
) -> None:
    def seen(reply: bytes) -> Topology:
        reader = hiredis.Reader()
        reader.feed(reply)
        return topology_in(reader.gets(), "10.0.0.9")

    ports = {one.id: one.port + 100 for one in topology.nodes}
    reply = reply_of(topology, command, resp)
    new = seen(rewritten(command, reply, Addresses(topology, host, ports)))
    assert new.nodes == tuple(
        dataclasses.replace(one, host=host, port=ports[one.id], hostname=new.nodes_by_id[one.id].hostname)
        for one in seen(reply).nodes
    )


@pytest.mark.parametrize("command", ["CLUSTER SLOTS", "CLUSTER NODES"])
def test_a_thousand_nodes_and_all_ranges_take_a_moment(command: str) -> None:
    nodes = [
        Node(
            f"{index:040x}",
            "10.0.0.1",
            1000 + index,
            slots=tuple((slot, slot) for slot in range(index, 16384, 1000)),
        )
        for index in range(1000)
    ]
    topology = Topology(nodes)
    reply = reply_of(topology, command, 2)
    begin = time.process_time()
    rewritten(command, reply, Addresses(topology, "192.0.2.1", {one.id: one.port for one in nodes}))
    assert time.process_time() - begin < 5
