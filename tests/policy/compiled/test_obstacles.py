"""Which obstacles of a cluster a command meets, whatever its hash slots are."""

from __future__ import annotations

import shlex

import pytest

from keyfence.commands.extract import extract
from keyfence.policy.compiled import obstacles
from keyfence.policy.compiled.obstacles import OBSTACLES, of_command, slot_obstacle
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.globs import Glob

SHA1 = "62f78b8df90039549e7ec5d6c65a1934cb0d6062"
POLICY = parse_policy(f"""policy: p
claims: ["a:"]
services: [one]
placeholders: {{id: "[a-z0-9]+"}}
scopes: {{a: {{prefix: "a:", writers: [one], unregistered: allow}}}}
scripts:
  tagged: {{sha1: {SHA1}, keys: 1, writes: ["<KEYS.1>:log"]}}
  counted: {{sha1: {SHA1[::-1]}, keys: 0, writes: ["a:count:<ARGV.1>"]}}
  time: {{sha1: {"0" * 40}, keys: 0}}
""")


@pytest.mark.parametrize(
    ("command", "met"),
    [
        ("GET a:1", []),
        ("MGET a:1 a:2", []),  # its hash slots decide
        ("SELECT 0", []),
        ("SELECT 3", ["database"]),
        ("MOVE a:1 0", ["database"]),
        ("SWAPDB 0 1", ["database"]),
        ("COPY a:1 a:2", []),
        ("COPY a:1 a:2 DB 4", ["database"]),
        ("KEYS a:*", ["one.node"]),
        ("SCAN 0", ["one.node"]),
        ("RANDOMKEY", ["one.node"]),
        ("DBSIZE", ["one.node"]),
        ("FLUSHALL", ["one.node"]),
        ("FLUSHDB", ["one.node"]),
        ("SCRIPT LOAD 'return 1'", ["scripts.one.node"]),
        (f"SCRIPT EXISTS {SHA1}", ["scripts.one.node"]),
        ("FUNCTION LOAD '#!lua name=l'", ["scripts.one.node"]),
        ("FUNCTION LIST", []),
        ("PUBSUB NUMSUB news", ["subscribers.one.node"]),
        ("PUBSUB CHANNELS", ["subscribers.one.node"]),
        ("PUBLISH news x", ["pubsub"]),
        ("SPUBLISH news x", []),
        ("SUBSCRIBE news", []),
        ("SUBSCRIBE __keyspace@0__:a:1", ["notifications"]),
        ("PSUBSCRIBE __keyevent@*__:del", ["notifications"]),
        ("PSUBSCRIBE __*__:expired", ["notifications"]),
        ("PSUBSCRIBE __[k]eyevent@0__:*", ["notifications"]),
        ("PSUBSCRIBE *", []),  # it is for all channels
        ("PSUBSCRIBE __own:*", []),
        ("SUBSCRIBE __", []),
        ("PUBLISH __keyspace@0__:a:1 x", ["pubsub"]),
        ("SORT a:1 BY nosort", []),
        ("SORT a:1 BY w:*", ["sort.patterns"]),
        ("SORT_RO a:1 GET w:*", ["sort.patterns"]),
        ("EVAL 'return 1' 0", ["script.undeclared"]),
        ("EVAL 'return 1' 1 a:1", []),
        ("FCALL f 0", ["script.undeclared"]),
        (f"EVALSHA {SHA1} 1 a:{{1}}", []),  # it makes a key with the same hash tag
        (f"EVALSHA {SHA1[::-1]} 0 x", ["script.undeclared"]),
        (f"EVALSHA {'0' * 40} 0", []),  # it is registered to touch no key
        ("FROBNICATE x", ["command.unknown"]),
    ],
)
def test_the_obstacles_of_a_command(command: str, met: list[str]) -> None:
    argv = [word.encode() for word in shlex.split(command)]
    assert list(of_command(POLICY, (), extract(argv))) == met


def test_of_a_long_pattern_only_the_beginning_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def glob(pattern: bytes) -> Glob:
        read.append(pattern)
        return Glob(pattern)

    monkeypatch.setattr(obstacles, "Glob", glob)
    touches = extract([b"PSUBSCRIBE", b"__key" + b"*" * 100_000])
    assert list(of_command(POLICY, (), touches)) == ["notifications"]
    assert [len(one) for one in read] == [64]


def test_keys_in_different_hash_slots_are_an_obstacle_of_the_place_where_they_stand() -> None:
    assert slot_obstacle("MGET", in_transaction=False) == "slots.command"
    assert slot_obstacle("EVALSHA", in_transaction=False) == "slots.script"
    assert slot_obstacle("WATCH", in_transaction=False) == "slots.watch"
    assert slot_obstacle("EVALSHA", in_transaction=True) == "slots.transaction"


def test_meaning_and_remedy_are_parts_of_sentences() -> None:
    for one in OBSTACLES.values():
        assert not one.meaning.endswith(".")
        assert not one.remedy.endswith(".")


def test_the_remedy_for_a_database_names_the_setting_with_which_valkey_9_has_several() -> None:
    assert "cluster-databases" in OBSTACLES["database"].remedy
