"""Each command without keys has an answer in a cluster: who gets it, and how replies are joined."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from keyfence.commands.table import COMMANDS, KNOWN_COMMANDS
from keyfence.upstream.cluster.fan_out import (
    ROWS,
    FanOut,
    Join,
    Reach,
    asked,
    fan_out,
)
from keyfence.upstream.cluster.topology import Node, Topology
from tests.servers import PROJECT

from .replies import FIRST, REPLICA, SECOND, THIRD, topology

REPLIES = sorted((PROJECT / "tools" / "command_replies").glob("*.json"))
DISABLED = "ERR This instance has cluster support disabled"


def call(text: str) -> list[bytes]:
    return text.encode().split()


def ids(text: str, nodes: Topology | None = None) -> list[str]:
    return [one.id for one in asked(fan_out(call(text)), nodes or topology())]


def names(entries: list[list[object]]) -> Iterator[str]:
    for entry in entries:
        yield str(entry[0]).upper().replace("|", " ")
        if len(entry) > 9:
            yield from names(entry[9])  # type: ignore[arg-type]


@pytest.mark.parametrize("path", REPLIES, ids=lambda path: path.stem)
def test_each_command_of_a_server_has_an_answer(path: object) -> None:
    content = json.loads(path.read_text())  # type: ignore[attr-defined]
    found = set(content) if path.stem.endswith("-reference") else set(names(content["commands"]))  # type: ignore[attr-defined]
    assert found <= ROWS.keys()
    for name in found:
        row = fan_out(name.encode().split())
        assert bool(row.refusal) == (row.reach is Reach.NOBODY), name


def test_the_table_has_a_row_for_each_command_and_no_other() -> None:
    assert ROWS.keys() == KNOWN_COMMANDS


def test_rows_are_as_the_servers_say_unless_they_say_why() -> None:
    reaches = {"": Reach.ONE, "all_shards": Reach.SHARDS, "all_nodes": Reach.NODES}
    for row in COMMANDS.values():
        own = ROWS[row.command.name]
        if reaches.get(row.tips.request) is not own.reach and not row.command.names_keys:
            assert own.why or own.reach is Reach.CHANNEL, row.command.name


@pytest.mark.parametrize(
    ("text", "reach", "join"),
    [
        ("KEYS *", Reach.SHARDS, Join.CONCATENATED),
        ("DBSIZE", Reach.SHARDS, Join.SUM),
        ("RANDOMKEY", Reach.SHARDS, Join.RANDOM),
        ("FLUSHALL", Reach.SHARDS, Join.ALL_SUCCEED),
        ("flushdb async", Reach.SHARDS, Join.ALL_SUCCEED),
        ("SCRIPT LOAD x", Reach.NODES, Join.ALL_SUCCEED),
        ("SCRIPT FLUSH", Reach.NODES, Join.ALL_SUCCEED),
        ("SCRIPT EXISTS x", Reach.SHARDS, Join.MINIMUM),
        ("SCRIPT KILL", Reach.SHARDS, Join.ONE_SUCCEEDS),
        ("FUNCTION LOAD x", Reach.SHARDS, Join.ALL_SUCCEED),
        ("FUNCTION LIST", Reach.ONE, Join.FIRST),
        ("FUNCTION DUMP", Reach.ONE, Join.FIRST),
        ("FUNCTION STATS", Reach.SHARDS, Join.RUNNING),
        ("WAIT 1 0", Reach.SHARDS, Join.MINIMUM),
        ("WAITAOF 1 1 0", Reach.SHARDS, Join.MINIMUM),
        ("CONFIG GET x", Reach.ONE, Join.FIRST),
        ("CONFIG SET x y", Reach.NODES, Join.ALL_SUCCEED),
        ("INFO", Reach.ONE, Join.FIRST),
        ("PING", Reach.ONE, Join.FIRST),
        ("ECHO x", Reach.ONE, Join.FIRST),
        ("TIME", Reach.ONE, Join.FIRST),
        ("LASTSAVE", Reach.SHARDS, Join.MINIMUM),
        ("PUBSUB CHANNELS", Reach.NODES, Join.DISTINCT),
        ("PUBSUB NUMSUB a", Reach.NODES, Join.SUM),
        ("PUBLISH a b", Reach.ONE, Join.FIRST),
        ("COMMAND", Reach.ONE, Join.FIRST),
        ("COMMAND DOCS", Reach.ONE, Join.FIRST),
        ("CLIENT LIST", Reach.NODES, Join.TEXTS),
        ("CLIENT SETNAME x", Reach.CLIENT, Join.FIRST),
        ("MEMORY STATS", Reach.ONE, Join.FIRST),
        ("MEMORY PURGE", Reach.SHARDS, Join.ALL_SUCCEED),
        ("LATENCY RESET", Reach.NODES, Join.SUM),
        ("SLOWLOG GET", Reach.NODES, Join.CONCATENATED),
        ("OBJECT HELP", Reach.ONE, Join.FIRST),
        ("SWAPDB 0 1", Reach.ONE, Join.FIRST),
        ("SELECT 1", Reach.CLIENT, Join.FIRST),
        ("BGSAVE", Reach.SHARDS, Join.ALL_SUCCEED),
        ("ACL WHOAMI", Reach.ONE, Join.FIRST),
        ("ACL SETUSER x", Reach.NODES, Join.ALL_SUCCEED),
        ("EVAL x 0", Reach.ONE, Join.FIRST),
        ("FCALL x 0", Reach.ONE, Join.FIRST),
        ("SCAN 0", Reach.SCAN, Join.FIRST),
        ("NO.SUCH x", Reach.ONE, Join.FIRST),
    ],
)
def test_who_gets_a_command(text: str, reach: Reach, join: Join) -> None:
    row = fan_out(call(text))
    assert (row.reach, row.join) == (reach, join)


@pytest.mark.parametrize(
    "text", ["CLUSTER SLOTS", "cluster nodes", "CLUSTER", "CLUSTER NEW", "READONLY", "READWRITE", "ASKING"]
)
def test_a_plain_client_sees_a_redis_without_a_cluster(text: str) -> None:
    assert fan_out(call(text)).refusal == DISABLED


@pytest.mark.parametrize(
    "text", ["MONITOR", "SHUTDOWN", "DEBUG SLEEP 0", "CLIENT KILL ID 1", "CLIENT TRACKING on"]
)
def test_what_one_node_cannot_answer_for_all_is_an_error_that_names_the_command(text: str) -> None:
    error = fan_out(call(text)).refusal
    assert error.startswith("ERR ")
    assert "is not supported: keyfence serves a whole cluster, and " in error
    assert error.split()[1] == text.split(maxsplit=1)[0]


def test_the_nodes_of_each_reach() -> None:
    assert ids("DBSIZE") == [FIRST, SECOND, THIRD]
    assert ids("CONFIG SET x y") == [FIRST, SECOND, THIRD, REPLICA]


def nodes(*, failed: str = "", lost: str = "") -> Topology:
    """Three primaries and a replica, of which one is down, or one has lost its hash slots."""
    return Topology(
        [
            Node("a", "10.0.0.1", 1, slots=() if lost == "a" else ((0, 5460),), is_healthy=failed != "a"),
            Node("b", "10.0.0.2", 1, slots=((5461, 10922),), is_healthy=failed != "b"),
            Node("c", "10.0.0.3", 1, slots=((10923, 16383),)),
            Node("d", "10.0.0.4", 1, is_primary=False, primary_id="a", is_healthy=failed != "d"),
        ]
    )


def test_a_replica_that_is_down_is_left_out_and_a_primary_is_not() -> None:
    assert ids("SCRIPT LOAD x", nodes(failed="d")) == ["a", "b", "c"]
    assert ids("SCRIPT LOAD x", nodes(failed="b")) == ["a", "b", "c", "d"]
    assert ids("DBSIZE", nodes(failed="b")) == ["a", "b", "c"]


def test_all_keys_cannot_be_meant_while_hash_slots_have_no_owner() -> None:
    lost = nodes(lost="a")
    for text in ("KEYS *", "FLUSHALL", "SCRIPT LOAD x"):
        assert ids(text, lost) == [], text


def test_a_row_says_what_it_is() -> None:
    assert fan_out([]) == FanOut(Reach.ONE)
