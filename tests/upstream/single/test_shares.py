"""A client gets its replies in its order, and what runs on a key runs in its order, whatever the nodes do."""

from __future__ import annotations

import os

import pytest

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.upstream.single import shares, splits

from .model import KEYS, PROFILE, ModelCluster

SEEDS = 3000 if os.environ.get("KEYFENCE_LONG") else 90


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
@pytest.mark.parametrize("block", range(6))
def test_random_schedules_keep_the_order(block: int, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if block % 2:  # few requests are sent at once
        monkeypatch.setattr(shares, "FIRST_SIZE", 20)
        monkeypatch.setattr(shares, "MOST_ASKED", 60)
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6, 1 + in_parts):
        cluster = ModelCluster(seed, splits=in_parts)
        for _ in range(300):
            cluster.step()
        cluster.settle()
        assert cluster.faults == [], seed
        assert all(one.lost == "" for one in cluster.clients), seed
        for client in cluster.clients:
            for key, value in client.values.items():
                assert any(one.keys.get(key) == value for one in cluster.servers), (seed, key)


def played(cluster: ModelCluster, nodes: list[int]) -> None:
    """These nodes answer what they got."""
    for number in nodes:
        server = cluster.servers[number]
        server.take_in()
        while cluster.inboxes[number]:
            server.work()
        while server.to_client:
            server.deliver(65_536)


def test_replies_that_wait_for_an_earlier_one_are_held_and_then_sending_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "MAX_HELD", 10_000)
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = [one + client.name for one in KEYS]
    first = next(one for one in key if cluster.node_of(one) == 0)
    others = [one for one in key if cluster.node_of(one) != 0]
    for one in others:
        cluster.servers[cluster.node_of(one)].keys[one] = b"x" * 2_000
        client.values[one] = b"x" * 2_000
    client.ask([b"GET", first])
    for one in others:
        client.ask([b"GET", one])
    played(cluster, [1, 2])
    assert client.replies == 0
    before = [len(one.exchange.output) for one in cluster.servers]
    for one in others:
        client.ask([b"GET", one])
    assert [len(one.exchange.output) for one in cluster.servers] == before, "nothing more is sent"
    played(cluster, [0, 1, 2])
    played(cluster, [0, 1, 2])
    assert client.replies == 1 + 2 * len(others)


def test_large_replies_are_asked_for_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "FIRST_SIZE", 1_000)
    monkeypatch.setattr(shares, "MOST_ASKED", 10_000)
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    keys = [one + client.name for one in KEYS]
    for one in keys:
        cluster.servers[cluster.node_of(one)].keys[one] = client.values[one] = b"x" * 2_400
    client.ask(*([b"GET", one] for one in keys * 4))
    under_way = []
    while client.replies < 4 * len(keys):
        under_way.append(client.shares.due)
        played(cluster, [0, 1, 2])
    assert under_way[0] == 10, "as many as have room if each is of the first size"
    assert {*under_way[1:-1]} == {4}, "as many as have room by the size that was seen"
    for one in keys:
        cluster.servers[cluster.node_of(one)].keys[one] = client.values[one] = b"x"
    for _ in range(30):
        client.ask([b"GET", keys[0]])
        played(cluster, [0, 1, 2])
    client.ask(*([b"GET", one] for one in keys))
    assert client.shares.due == len(keys), "what was large once does not count for ever"


def test_a_transaction_is_sent_whole_however_large_the_replies_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "FIRST_SIZE", 10_000)
    monkeypatch.setattr(shares, "MOST_ASKED", 10_000)
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    client.ask([b"MULTI"], [b"SET", key, b"1"], [b"GET", key], [b"EXEC"])
    assert client.shares.due == 4


def test_what_was_sent_together_is_answered_together_unless_some_of_it_takes_long() -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    keys = [one + client.name for one in KEYS]
    here, there = (next(one for one in keys if cluster.node_of(one) == node) for node in (0, 1))
    client.ask([b"GET", here], [b"GET", there])
    played(cluster, [0])
    assert client.replies == 0
    played(cluster, [1])
    assert client.replies == 2
    client.ask([b"GET", here], [b"GET", there])
    played(cluster, [0])
    assert client.replies == 2
    assert cluster.later.waiting
    while cluster.later.waiting:
        cluster.later.run_next()
    assert client.replies == 3
    played(cluster, [1])
    assert client.replies == 4


def test_a_client_with_too_many_held_replies_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MOST_HELD", 10_000)
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = [one + client.name for one in KEYS]
    client.ask([b"GET", next(one for one in key if cluster.node_of(one) == 0)])
    other = next(one for one in key if cluster.node_of(one) == 1)
    cluster.servers[1].keys[other] = client.values[other] = b"x" * 100_000
    client.ask([b"GET", other])
    played(cluster, [1])
    assert "too many replies before an earlier one" in client.lost


def test_a_refused_command_is_not_sent_again_after_a_later_one_on_its_key_has_run() -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    server = cluster.servers[cluster.node_of(key)]
    client.ask([b"SET", key, b"1"])
    client.ask([b"SET", key, b"2"])
    server.take_in()
    server.is_down = True
    server.work()
    server.is_down = False
    server.work()
    server.deliver(1_000)
    assert client.errors == [b"-CLUSTERDOWN The cluster is down\r\n"]
    assert server.keys[key] == b"2"


def test_a_later_command_that_no_node_runs_does_not_hold_up_a_refused_one() -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    other = next(one for one in KEYS if hash_slot(one) != hash_slot(key)) + client.name
    server = cluster.servers[cluster.node_of(key)]
    client.ask([b"SET", key, b"1"])
    client.ask([b"MGET", key, other])
    server.take_in()
    server.is_down = True
    server.work()
    server.is_down = False
    server.work()
    server.deliver(1_000)
    cluster.settle()
    assert client.errors == [b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"]
    assert server.keys[key] == b"1"


def test_a_transaction_moves_as_a_whole_with_its_hash_slot() -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    slot = hash_slot(key)
    source = cluster.servers[cluster.node_of(key)]
    target = cluster.servers[(source.number + 1) % 3]
    for one in (source, target):
        one.owners[slot] = target.number
    client.ask([b"MULTI"], [b"SET", key, b"1"], [b"GET", key], [b"EXEC"])
    played(cluster, [source.number])
    assert client.replies == 0
    while cluster.later.waiting:
        cluster.later.run_next()
    played(cluster, [target.number])
    assert client.replies == 4
    assert target.keys[key] == b"1"
    assert client.errors == []


def test_a_script_may_word_an_error_of_its_own() -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    server = cluster.servers[cluster.node_of(key)]
    client.shares.may_share(PROFILE)
    client.expect([b"GET", key])
    client.shares.send([encode.command(b"GET", key)], [1], True)
    server.take_in()
    server.is_down = True
    server.work()
    server.is_down = False
    played(cluster, [server.number])
    assert client.errors == [b"-CLUSTERDOWN The cluster is down\r\n"]


def test_a_value_that_reads_as_a_refusal_is_none_where_it_begins_a_piece() -> None:
    """A node's bytes come in any pieces. One may begin within a value, with text that a client wrote."""
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key = KEYS[0] + client.name
    server = cluster.servers[cluster.node_of(key)]
    value = b"-TRYAGAIN a value\r\n-TRYAGAIN a value"
    server.keys[key] = client.values[key] = value
    client.ask([b"SET", KEYS[0] + b":nobody", b"1"], [b"GET", key])
    server.take_in()
    server.is_down = True
    server.work()
    server.is_down = False
    server.work()
    head = bytes(server.to_client).index(b"$%d\r\n" % len(value)) + len(b"$%d\r\n" % len(value))
    server.deliver(head)
    server.deliver(1_000)
    played(cluster, [server.number])
    while cluster.later.waiting:
        cluster.later.run_next()
        played(cluster, [server.number])
    assert client.replies == 2
    assert client.errors == []


@pytest.mark.parametrize("first", [1, 2, 9, 10, 30])
@pytest.mark.parametrize("last", range(18, 29))
def test_no_part_of_a_redirect_is_passed_on_behind_an_error_that_came_in_pieces(
    first: int, last: int
) -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    key, other = KEYS[0] + client.name, KEYS[-1] + client.name
    here, slot = cluster.node_of(key), hash_slot(key)
    there = (here + 1) % 3
    for server in cluster.servers:
        server.owners[slot] = there
    client.ask([b"MGET", key, other], [b"GET", key])
    server = cluster.servers[here]
    server.take_in()
    server.work()
    server.work()
    server.deliver(first)
    server.deliver(len(server.to_client) - last)  # it ends within the line of MOVED
    played(cluster, [here, there])
    while cluster.later.waiting:
        cluster.later.run_next()
        played(cluster, [here, there])
    assert client.replies == 2
    assert client.errors == [b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"]


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
def test_a_hash_slot_without_a_node_is_waited_for_and_then_an_error(in_parts: bool) -> None:
    cluster = ModelCluster(1, clients=1, splits=in_parts)
    (client,) = cluster.clients
    cluster.owner = dict.fromkeys(cluster.slots, 9)
    cluster.tell()
    while cluster.later.waiting:
        cluster.later.run_next()
    client.ask([b"MGET", *(key + client.name for key in (KEYS if in_parts else KEYS[:1]))])
    assert client.replies == 0
    while cluster.later.waiting:
        cluster.later.run_next()
    assert client.errors == [b"-CLUSTERDOWN Hash slot not served\r\n"]


def test_a_node_that_has_left_gets_nothing_more_also_if_it_had_no_hash_slot_left() -> None:
    cluster = ModelCluster(1, clients=1)
    (client,) = cluster.clients
    slot = cluster.slots[0]
    client.ask([b"GET", next(key for key in KEYS if hash_slot(key) == slot) + client.name])
    played(cluster, [0])
    cluster.owner = dict.fromkeys(cluster.slots, 1)
    cluster.tell()
    client.ask([b"PING"])
    played(cluster, [0])
    assert client.replies == 2
    cluster.tell(without=0)
    client.ask([b"PING"])
    played(cluster, [0])
    assert client.replies == 2
    played(cluster, [1])
    assert client.replies == 3


def test_commands_in_parts_are_held_until_they_are_whole_and_closed_if_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "MOST_HELD", 30_000)
    monkeypatch.setattr(splits, "MOST_JOINED", 15_000)
    cluster = ModelCluster(1, clients=1, splits=True)
    (client,) = cluster.clients
    keys = [key + client.name for key in KEYS[::2]]
    for key in keys:
        cluster.servers[cluster.node_of(key)].keys[key] = client.values[key] = b"x" * 2_000
    client.ask([b"MGET", *keys])
    played(cluster, [1, 2])
    assert client.replies == 0
    assert client.shares.retries._order.held > 8_000
    played(cluster, [0])
    assert client.replies == 1
    assert client.shares.retries._order.held == 0
    client.ask([b"MGET", *keys, *keys])
    played(cluster, [0, 1, 2])
    assert [error[:40] for error in client.errors] == [b"-ERR the nodes' replies to MGET are longer"[:40]]
    assert client.shares.retries._order.held == 0
    for _ in range(4):
        client.ask([b"MGET", *keys])
    played(cluster, [1, 2])
    assert "too many replies before an earlier one" in client.lost
