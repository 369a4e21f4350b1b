"""What one client's commands show of a cluster, with the two decision caches in use."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.for_cluster import for_cluster
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.candidate.rehearsal import as_rows
from keyfence.telemetry.telemetry import Telemetry
from tests.session.sessions import Session, cmd
from tests.session.test_comparison import answer

POLICY = parse_policy("""policy: p
claims: ["a:"]
services: [one]
placeholders: {id: "[a-z0-9]+", user: "[a-z0-9]+"}
scopes: {a: {prefix: "a:", writers: [one], unregistered: allow}}
unregistered_scripts: declared
commands: {allow: [SELECT, KEYS, PUBLISH]}
channels: {news: {channel: news, publishers: [one]}}
keys:
  cart: {key: "a:cart:<user>", type: string}
  order: {key: "a:order:<user>:<id>", type: string}
""")


class Rehearsing:
    """A session with the candidate of a rehearsal."""

    def __init__(self, *rules: ModeRule) -> None:
        telemetry = Telemetry()
        self.changes = Changes(1, telemetry.counters, rehearses=True)
        telemetry.beside = self.changes
        modes = Modes(rules or (ModeRule("observe"),), POLICY.services)
        made = for_cluster(POLICY)
        other = Authorizer(made, Modes((ModeRule("observe"),), made.services), clock=lambda: 1e9)
        beside = Candidate(other, self.changes, True, True)
        in_force = InForce(Authorizer(POLICY, modes, clock=lambda: 1e9, candidate=beside))
        context = SessionContext(in_force, make_resolver(frozenset(POLICY.services)), telemetry, sharing=True)
        self.session = Session(context, ClientOrigin("one", "10.0.0.9:5"))

    def send(self, *commands: str, together: bool = False) -> None:
        pieces = [cmd(one) for one in commands]
        for data in [b"".join(pieces)] if together else pieces:
            self.session.from_client(data)
            answer(self.session)

    def found(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(obstacle, command) → (times, works)"""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for row in self.rows():
            times, works = found.get((row["obstacle"], row["command"]), (0, 0))
            found[row["obstacle"], row["command"]] = times + row["times"], works + row["works"]
        return found

    def rows(self) -> list[dict[str, Any]]:
        self.changes.gather()
        assert self.changes.rehearsal is not None
        return as_rows(self.changes.rehearsal.rows)


def test_commands_that_share_a_hash_slot_are_evidence_and_others_an_obstacle() -> None:
    one = Rehearsing()
    for _ in range(3):
        one.send("MGET a:cart:{x} a:order:{x}:1", "MGET a:cart:ann a:order:ann:1", "GET a:cart:ann")
    assert one.found() == {("slots.command", "MGET"): (3, 3)}
    (row,) = [row for row in one.rows() if row["times"]]
    assert [key["name"] for key in row["keys"]] == ["cart", "order"]
    assert row["links"] == [{"first": "user", "second": "user", "times": 3, "values": 1}]


TRANSACTIONS = {
    "shares": (["MULTI", "SET a:cart:{x} v", "SET a:order:{x}:1 v", "EXEC"], (0, 1)),
    "crosses": (["MULTI", "SET a:cart:ann v", "SET a:order:ann:1 v", "SET a:cart:bob v", "EXEC"], (1, 0)),
    "crosses late": (["MULTI", "SET a:cart:ann v", "GET a:cart:ann", "SET a:cart:bob v", "EXEC"], (1, 0)),
    "has one key": (["MULTI", "SET a:cart:ann v", "EXEC"], (0, 0)),
    "begins with several": (["MULTI", "MGET a:cart:{x} a:order:{x}:1", "GET a:cart:ann", "EXEC"], (1, 0)),
}


@pytest.mark.parametrize("together", [True, False], ids=["as one piece", "one by one"])
@pytest.mark.parametrize("kind", TRANSACTIONS)
def test_a_transaction_counts_once(kind: str, together: bool) -> None:
    commands, expected = TRANSACTIONS[kind]
    one = Rehearsing()
    for _ in range(3):
        one.send(*commands, together=together)
    found = [numbers for (obstacle, _), numbers in one.found().items() if obstacle == "slots.transaction"]
    times, works = sum(one[0] for one in found), sum(one[1] for one in found)
    assert (times, works) == (3 * expected[0], 3 * expected[1])


def test_the_keys_of_a_transaction_are_named_with_its_first_key() -> None:
    one = Rehearsing()
    for _ in range(3):
        one.send("MULTI", "SET a:cart:ann v", "SET a:order:ann:1 v", "EXEC", together=True)
    (row,) = [row for row in one.rows() if row["times"]]
    assert [key["name"] for key in row["keys"]] == ["cart", "order"]
    assert row["links"] == [{"first": "user", "second": "user", "times": 3, "values": 1}]


def test_a_first_key_that_is_too_long_to_be_kept_is_not_named() -> None:
    one = Rehearsing()
    one.send("MULTI", f"SET a:order:{'x' * 2000}:1 v", "SET a:cart:bob v", "EXEC")
    (row,) = [row for row in one.rows() if row["times"]]
    assert [key["name"] for key in row["keys"]] == ["cart"]
    assert row["links"] == []


def test_watched_keys_must_share_the_hash_slot_of_the_transaction() -> None:
    one = Rehearsing()
    one.send("WATCH a:cart:ann", "MULTI", "SET a:cart:ann v", "EXEC")
    assert one.found() == {}
    one.send("WATCH a:cart:ann", "MULTI", "SET a:cart:bob v", "EXEC", "MULTI", "SET a:cart:bob v", "EXEC")
    one.send("WATCH a:cart:ann", "WATCH a:cart:bob", "UNWATCH", "WATCH a:cart:bob", "UNWATCH")
    assert one.found() == {("slots.watch", "WATCH"): (2, 0)}


def test_shard_channels_have_hash_slots_as_keys_have() -> None:
    one = Rehearsing()
    one.send("SSUBSCRIBE chat:7 mail:8", "SSUBSCRIBE {chat}:1 {chat}:2")
    assert one.found() == {("slots.channel", "SSUBSCRIBE"): (1, 1)}
    (row,) = [row for row in one.rows() if row["times"]]
    assert [key["name"] for key in row["keys"]] == ["chat:<int>", "mail:<int>"]


SHARDED = {
    "crosses": (["MULTI", "SET a:cart:ann v", "SPUBLISH news x", "EXEC"], ("SPUBLISH", (1, 0))),
    "is crossed": (["MULTI", "SPUBLISH news x", "SET a:cart:ann v", "EXEC"], ("SET", (1, 0))),
    "shares": (["MULTI", "SET a:cart:{x} v", "SPUBLISH {x} m", "EXEC"], ("EXEC", (0, 1))),
}


@pytest.mark.parametrize("together", [True, False], ids=["as one piece", "one by one"])
@pytest.mark.parametrize("kind", SHARDED)
def test_a_shard_channel_is_in_the_hash_slot_of_its_transaction(kind: str, together: bool) -> None:
    commands, (name, (times, works)) = SHARDED[kind]
    one = Rehearsing()
    for _ in range(3):
        one.send(*commands, together=together)
    found = {command: numbers for (_, command), numbers in one.found().items() if numbers != (0, 0)}
    assert found == {name: (3 * times, 3 * works)}


def test_other_obstacles_are_counted_whoever_admits_the_commands() -> None:
    one = Rehearsing()
    for _ in range(3):
        one.send("KEYS a:*", "PUBLISH news x", "EVAL s 0", "EVAL s 1 a:x", "SORT a:x BY w:*")
        one.send("SCRIPT LOAD s", "PUBSUB NUMSUB news")
    assert one.found() == {
        ("scripts.one.node", "SCRIPT LOAD"): (3, 0),
        ("subscribers.one.node", "PUBSUB NUMSUB"): (3, 0),
        ("one.node", "KEYS"): (3, 0),
        ("pubsub", "PUBLISH"): (3, 0),
        ("script.undeclared", "EVAL"): (3, 3),
        ("slots.script", "EVAL"): (0, 3),
        ("sort.patterns", "SORT"): (3, 0),
    }


def test_a_script_is_named_by_its_sha1_or_as_a_function_however_it_is_run() -> None:
    one = Rehearsing()
    text, sha1 = "return", hashlib.sha1(b"return").hexdigest()
    one.send(f"EVAL {text} 2 a:cart:x a:cart:y", f"EVALSHA {sha1.upper()} 2 a:cart:x a:cart:y")
    one.send("FCALL myfunc 2 a:cart:x a:cart:y", "EVALSHA none 0")
    crossing = [row for row in one.rows() if row["obstacle"] == "slots.script"]
    assert {(row["command"], row["script"]) for row in crossing} == {
        *(("EVAL", sha1), ("EVALSHA", sha1), ("FCALL", "myfunc")),
    }
    hidden = [row for row in one.rows() if row["obstacle"] == "script.undeclared" and row["times"]]
    assert [row["script"] for row in hidden] == [""]


def test_what_meets_another_obstacle_would_not_do() -> None:
    one = Rehearsing()
    one.send("SORT a:x BY w:* STORE {a:x}:2", "COPY a:x {a:x}:2 DB 3", "COPY a:x {a:x}:3")
    assert one.found() == {
        ("sort.patterns", "SORT"): (1, 0),
        ("database", "COPY"): (1, 0),
        ("slots.command", "COPY"): (0, 1),
    }


@pytest.mark.parametrize(("number", "expected"), [(0, (0, 1)), (3, (1, 0))])
def test_a_cluster_has_database_0_only(number: int, expected: tuple[int, int]) -> None:
    one = Rehearsing()
    one.send(f"SELECT {number}")
    assert one.found() == {("database", "SELECT"): expected}


def test_what_is_refused_today_is_no_obstacle() -> None:
    one = Rehearsing(ModeRule("enforce"))
    for _ in range(3):
        one.send("FLUSHALL", "MGET b:1 b:2")
    assert one.found() == {}


def test_a_key_is_kept_nowhere() -> None:
    one = Rehearsing()
    one.send("MGET a:cart:annabel a:order:annabel:1", "MGET user:annabel:1 user:annabel:2")
    assert "annabel:1" not in str(one.rows())
