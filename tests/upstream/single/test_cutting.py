"""Requests are cut by the hash slots of their first keys, and nothing gets lost or changed."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise

import pytest

from keyfence.policy.compiled.hash_slots import SLOTS, hash_slot
from keyfence.resp import encode
from keyfence.upstream.single.cutting import (
    ANY_NODE,
    ENDS,
    MOST_DEALT,
    NO_NODE,
    NO_SLOT,
    NODES,
    PARTS,
    SEVERAL,
    UNFIT,
    Cutter,
    arguments,
    keys_of,
    leading_arguments,
    requests_in,
    slot_of,
)

OWNERS = array("H", [slot * 3 // SLOTS for slot in range(SLOTS)])


def node(key: bytes) -> int:
    return OWNERS[hash_slot(key)]


def call(text: str) -> bytes:
    return encode.command(*text.split())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("GET a", b"a"),
        ("get {b}1", b"b"),
        ("MSET c 1 d 2", b"c"),
        ("EVAL script 1 e", b"e"),
        ("XREAD COUNT 1 STREAMS f 0", b"f"),
        ("BLPOP g h 0", b"g"),
        ("SSUBSCRIBE i", b"i"),
        ("SPUBLISH j text", b"j"),
        ("OBJECT ENCODING k", b"k"),
        ("XINFO STREAM l", b"l"),
        ("BITOP AND m n o", b"m"),
    ],
)
def test_the_first_key_or_sharded_channel_decides(text: str, key: bytes) -> None:
    assert slot_of(arguments(call(text))) == hash_slot(key)


@pytest.mark.parametrize(
    "text", ["PING", "EVAL script 0", "EVAL script 0 arg", "PUBLISH a b", "GET", "NOSUCH a", "MULTI"]
)
def test_a_command_without_keys_has_no_hash_slot(text: str) -> None:
    assert slot_of(arguments(call(text))) == NO_SLOT


def test_requests_for_one_node_stay_one_piece() -> None:
    data = call("SET {x}a 1") + call("GET {x}b") + call("PING") + call("MGET {x}a {x}b")
    (run,) = Cutter(OWNERS).cut(data, 4)
    assert (run.node, run.count, run.begin, run.end) == (node(b"x"), 4, 0, len(data))


def test_requests_without_keys_go_to_any_node() -> None:
    (run,) = Cutter(OWNERS).cut(call("PING") + call("ECHO a"), 2)
    assert (run.node, run.count) == (ANY_NODE, 2)


def test_a_transaction_stays_together_at_the_node_of_its_first_key() -> None:
    cutter = Cutter(OWNERS)
    data = call("MULTI") + call("PING") + call("SET a 1") + call("SET b 1") + call("EXEC")
    (run,) = cutter.cut(data, 5)
    assert cutter.is_transaction
    assert (run.node, run.count, run.end) == (node(b"a"), 5, len(data))
    cutter.cut(call("GET a"), 1)
    assert not cutter.is_transaction


def test_random_requests_are_cut_where_the_node_changes() -> None:
    chosen, cutter = random.Random(7), Cutter(OWNERS)
    for _ in range(300):
        calls = [
            chosen.choice([f"GET {chosen.random()}", f"SET {chosen.random()} 1", "PING", "mget a b"])
            for _ in range(chosen.randint(1, 30))
        ]
        data = b"".join(map(call, calls))
        runs = cutter.cut(data, len(calls))
        assert b"".join(data[run.begin : run.end] for run in runs) == data
        assert sum(run.count for run in runs) == len(calls)
        for run in runs:
            nodes = {slot_of(arguments(one)) for one in requests_in(data[run.begin : run.end])} - {NO_SLOT}
            assert {OWNERS[slot] for slot in nodes} <= {run.node}
        assert all(one.node != other.node for one, other in pairwise(runs))


def test_requests_are_dealt_out_as_they_are_cut() -> None:
    chosen, cutter = random.Random(8), Cutter(OWNERS)
    for _ in range(300):
        calls = [
            chosen.choice([f"GET {chosen.random()}", f"SET {chosen.random()} 1", "PING", "mget a b"])
            for _ in range(chosen.choice([1, 2, 30]))
        ]
        data = b"".join(map(call, calls))
        runs = cutter.cut(data, len(calls))
        dealt = cutter.deal(data, len(calls))
        assert dealt == (runs[0].node if len(runs) == 1 else SEVERAL)
        if dealt != ANY_NODE:
            nodes = [run.node for run in runs for _ in range(run.count)]
            assert NODES[: len(calls)].tolist() == nodes
        assert ENDS[len(calls) - 1] == len(data)


def test_what_stays_together_or_has_no_node_is_not_dealt_out() -> None:
    cutter = Cutter(OWNERS)
    transaction = call("GET a") + call("MULTI") + call("EXEC")
    assert cutter.deal(transaction, 3) == UNFIT
    assert cutter.deal(call("GET a") * (MOST_DEALT + 1), MOST_DEALT + 1) == UNFIT
    cutter.take(array("H", [NO_NODE] * SLOTS))
    assert cutter.deal(call("PING") + call("GET a"), 2) == UNFIT
    assert cutter.deal(call("PING"), 1) == ANY_NODE
    cutter.take(OWNERS)
    assert cutter.deal(call("GET a"), 1) == node(b"a")


def test_inline_commands_are_cut_too() -> None:
    data = b"GET a\r\nGET b\r\nGET c\r\n"
    runs = Cutter(OWNERS).cut(data, 3)
    assert b"".join(data[run.begin : run.end] for run in runs) == data


def test_the_keys_of_requests_are_found() -> None:
    assert keys_of([call("MSET a 1 b 2"), call("GET c"), call("PING")]) == {b"a", b"b", b"c"}


def test_the_arguments_of_a_request_that_has_only_begun() -> None:
    whole = encode.command(b"SET", b"key", b"x" * 100)
    for size in range(len(whole) - 2):
        assert leading_arguments(whole[:size]) == [b"SET", b"key"][: len(leading_arguments(whole[:size]))]
    assert leading_arguments(whole[:-50]) == [b"SET", b"key"]


def test_a_command_that_is_sent_in_parts_is_a_run_of_its_own() -> None:
    apart = [b"a", b"b"]
    assert hash_slot(apart[0]) != hash_slot(apart[1])
    cutter = Cutter(OWNERS, 3, frozenset({b"MGET", b"DEL"}))
    calls = [
        [b"PING"],
        [b"MGET", *apart],
        [b"mget", *apart],
        [b"PING"],
        [b"GET", b"a"],
        [b"MGET", b"{a}1", b"{a}2"],
        [b"EXISTS", *apart],
        [b"DEL", *apart],
    ]
    data = b"".join(encode.command(*one) for one in calls)
    assert cutter.deal(data, len(calls)) == UNFIT
    runs = cutter.cut(data, len(calls))
    found = [(one.node, one.count) for one in runs]
    here = node(b"a")
    assert found == [(ANY_NODE, 1), (PARTS, 1), (PARTS, 1), (here, 4), (PARTS, 1)]
    assert (runs[0].begin, runs[-1].end) == (0, len(data))
    assert all(one.end == two.begin for one, two in pairwise(runs))


def test_only_keys_of_several_hash_slots_and_named_commands_are_sent_in_parts() -> None:
    whole, parts = Cutter(OWNERS), Cutter(OWNERS, 0, frozenset({b"MGET"}))
    for argv in (
        [b"MGET", b"{a}1", b"{a}2"],
        [b"MGET", b"a"],
        [b"MGET"],
        [b"DEL", b"a", b"b"],
        [b"GET", b"a"],
    ):
        data = encode.command(*argv)
        assert parts.deal(data, 1) == whole.deal(data, 1)
    data = encode.command(b"MGET", b"a", b"b")
    assert whole.deal(data, 1) == node(b"a")
    assert parts.deal(data, 1) == UNFIT
    assert parts.deal(encode.command(b"GET", b"a"), 1) == node(b"a"), "nothing of the last call is left"


def test_nothing_of_a_transaction_is_sent_in_parts() -> None:
    cutter = Cutter(OWNERS, 0, frozenset({b"MGET"}))
    calls = [[b"MULTI"], [b"PING"], [b"MGET", b"b", b"a"], [b"GET", b"a"], [b"EXEC"]]
    data = b"".join(encode.command(*one) for one in calls)
    assert cutter.deal(data, len(calls)) == UNFIT
    [run] = cutter.cut(data, len(calls))
    assert (run.node, run.count, run.begin, run.end) == (node(b"b"), len(calls), 0, len(data))
    assert cutter.is_transaction
