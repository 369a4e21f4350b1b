"""SCAN over all primaries never leaves a key out, and ends, whatever moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.model import Streamed
from keyfence.policy.compiled.hash_slots import SLOTS, hash_slot
from keyfence.upstream.cluster.fan_out import NOT_SERVED
from keyfence.upstream.cluster.scanning import INVALID_CURSOR, Cursor, Step, decoded
from keyfence.upstream.cluster.topology import Node, Topology

from .scanned import BUCKETS, PAGE, ModelCluster

KEYS = [b"key:%d" % number for number in range(120)]
CALLS_OF_A_NODE = BUCKETS // PAGE


def scanned(cluster: ModelCluster, *, events: int = 0, rate: float = 0, lag: int = 0) -> list[bytes]:
    """The keys of a whole iteration. Something happens between some calls, at most `events` times; keyfence
    knows of it up to `lag` calls later."""
    cursor, found = b"0", []
    known, age = cluster.topology(), 0
    while True:
        page = cluster.scan(cursor, known)
        if page is not None:
            cursor, keys = page
            found += keys
            if cursor == b"0":
                return found
        if events and cluster.chance.random() < rate:
            cluster.happen()
            events -= 1
        age += 1
        if age >= cluster.chance.randint(0, lag):
            known, age = cluster.topology(), 0
        assert cluster.calls < 20_000


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_without_changes_each_node_is_scanned_once(nodes: int) -> None:
    cluster = ModelCluster(nodes, KEYS, random.Random(1))
    assert sorted(scanned(cluster)) == sorted(KEYS)
    assert cluster.calls == nodes * CALLS_OF_A_NODE


def test_without_changes_a_node_with_many_ranges_is_scanned_once_too() -> None:
    cluster = ModelCluster(3, KEYS, random.Random(1))
    for number in range(3):
        cluster.move([slot for slot in range(SLOTS) if slot // 10 % 3 == number], cluster.nodes[number])
    assert sorted(scanned(cluster)) == sorted(KEYS)
    assert cluster.calls == 3 * CALLS_OF_A_NODE


@pytest.mark.parametrize("seed", range(60))
def test_no_key_is_left_out_while_hash_slots_move_and_primaries_fail_over(seed: int) -> None:
    chance = random.Random(seed)
    cluster = ModelCluster(chance.randint(1, 4), KEYS, chance)
    rate, lag = chance.choice([0.05, 0.2, 0.3]), chance.choice([0, 3, 30])
    found = scanned(cluster, events=chance.randint(1, 40), rate=rate, lag=lag)
    assert set(found) == set(KEYS)


def one_of(cluster: ModelCluster, number: int) -> list[bytes]:
    return [key for key in KEYS if cluster.owners[hash_slot(key)] is cluster.nodes[number]]


def test_a_hash_slot_that_moves_to_a_node_that_has_been_scanned_comes_again() -> None:
    cluster = ModelCluster(3, KEYS, random.Random(1))
    late = one_of(cluster, 2)
    cursor = b"0"
    for _ in range(CALLS_OF_A_NODE + 1):
        page = cluster.scan(cursor, cluster.topology())
        assert page is not None
        cursor = page[0]
    cluster.move({hash_slot(key) for key in late}, cluster.nodes[0])
    found: list[bytes] = []
    while cursor != b"0":
        page = cluster.scan(cursor, cluster.topology())
        assert page is not None
        cursor = page[0]
        found += page[1]
    assert set(late) <= set(found)


def test_a_key_that_moves_alone_is_found_at_the_node_that_takes_it() -> None:
    cluster = ModelCluster(2, KEYS, random.Random(1))
    key = one_of(cluster, 1)[0]
    giver, taker = cluster.nodes[1], cluster.nodes[0]
    cursor, found = b"0", []
    while True:
        page = cluster.scan(cursor, cluster.topology())
        assert page is not None
        cursor = page[0]
        found += page[1]
        if cursor == b"0":
            break
        if cluster.calls == CALLS_OF_A_NODE:  # the taker has been scanned, its owner is next
            giver.leaving[hash_slot(key)] = taker.id
            giver.keys.remove(key)
            taker.keys.add(key)
    assert set(found) == set(KEYS)
    assert cluster.calls == 3 * CALLS_OF_A_NODE


@settings(deadline=None)
@given(
    st.builds(
        Cursor,
        st.integers(0, SLOTS - 1),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**40 - 1),
    )
)
def test_a_cursor_holds_its_place_in_63_bits(cursor: Cursor) -> None:
    text = cursor.encoded()
    assert text is not None
    assert 0 < int(text) < 2**63
    again = decoded(text)
    assert again is not None
    assert again._replace(mark=0) == cursor._replace(mark=0)
    assert again.has_mark(cursor.mark)


def test_a_cursor_of_a_table_of_a_million_is_a_number_for_every_client() -> None:
    text = Cursor(SLOTS - 1, True, True, 2**64 - 1, 2**20 - 1).encoded()
    assert text is not None
    assert int(text) < 2**53


@pytest.mark.parametrize("text", [b"x", b"-1", b"", b"+1", b" 1", b"1.0", b"1\0", b"18446744073709551616"])
def test_what_is_no_cursor_gets_the_error_of_redis(text: bytes) -> None:
    assert Step([b"SCAN", text], three()).answer == INVALID_CURSOR


@settings(deadline=None)
@given(st.integers(1, 2**64 - 1))
def test_any_other_number_begins_at_its_hash_slot(number: int) -> None:
    step = Step([b"SCAN", b"%d" % number], three())
    assert not step.answer
    assert step.request == b"*2\r\n$4\r\nSCAN\r\n$1\r\n0\r\n"


def three() -> Topology:
    return Topology(
        Node(name, "10.0.0.1", 1, slots=((SLOTS * at // 3, SLOTS * (at + 1) // 3 - 1),))
        for at, name in enumerate("abc")
    )


def test_options_go_on_and_errors_come_back() -> None:
    step = Step([b"scan", b"0", b"MATCH", b"a*", b"COUNT", b"7"], three())
    assert step.node == "a"
    assert step.request.endswith(b"$1\r\n0\r\n$5\r\nMATCH\r\n$2\r\na*\r\n$5\r\nCOUNT\r\n$1\r\n7\r\n")
    assert step.answered(b"-ERR syntax error\r\n") == b"-ERR syntax error\r\n"
    assert Step([b"SCAN"], three()).request == b"*1\r\n$4\r\nSCAN\r\n"


def test_a_pattern_whose_end_is_not_there_is_an_error() -> None:
    step = Step([b"SCAN", b"0", b"MATCH", Streamed(b"a", 100_000)], three())
    assert step.answer == b"-ERR keyfence cannot go on with SCAN: an argument is too long\r\n"


def test_a_cursor_of_a_node_that_is_too_large_is_an_error() -> None:
    reply = Step([b"SCAN", b"0"], three()).answered(b"*2\r\n$13\r\n9999999999999\r\n*0\r\n")
    assert reply == b"-ERR keyfence cannot go on with SCAN: a node's cursor has more than 40 bits\r\n"


def test_a_large_cursor_of_a_node_goes_on() -> None:
    step = Step([b"SCAN", b"0"], three())
    reply = step.answered(b"*2\r\n$12\r\n999999999999\r\n*0\r\n")
    assert reply is not None
    again = Step([b"SCAN", reply.split(b"\r\n")[2]], three())
    assert (again.node, again.request) == ("a", b"*2\r\n$4\r\nSCAN\r\n$12\r\n999999999999\r\n")


@pytest.mark.parametrize("text", [b"nonsense", b"-"])
def test_an_answer_that_is_no_topology_is_an_error(text: bytes) -> None:
    step = Step([b"SCAN", b"0"], three())
    assert step.answered(b"*2\r\n$1\r\n0\r\n*0\r\n") is None
    assert step.confirmed(text, "10.0.0.1").startswith(b"-ERR keyfence cannot go on with SCAN: ")


def test_a_node_that_knows_hash_slots_without_an_owner_is_an_error() -> None:
    step = Step([b"SCAN", b"0"], three())
    assert step.answered(b"*2\r\n$1\r\n0\r\n*0\r\n") is None
    line = b"a 10.0.0.1:1@2 myself,master - 0 0 0 connected 0-5\n"
    assert step.confirmed(line, "10.0.0.1") == NOT_SERVED
