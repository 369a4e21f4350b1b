"""The table of pending times to live.

Rule: a key is reported only if Redis confirms the violation, and only for a write that caused it.
"""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.ttl import (
    ASKS_ALL,
    ASKS_GONE,
    ASKS_PRESENCE,
    GIVES,
    GONE,
    NO_TTL,
    REQUIRED,
    SETTLES,
    TOO_LONG,
    TtlRule,
)
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.engine.writes import MAX_KEY, new_write
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Peer

TARGET: Target = parse_policy("policy: p\nservices: [a]\nscopes: {s: {prefix: 'k', writers: a}}").targets[0]
RULE = TtlRule(max=100_000)


def asker(sender: str, transaction: Transaction | None = None) -> Asker:
    return Asker(0, peer=Peer("10.0.0.1:5"), sender=sender, transaction=transaction)


class Bench:
    def __init__(self, limit: int = 3) -> None:
        self.now = 0.0
        self.table = PendingTtls(limit, lambda: self.now)

    def ask(
        self, key: bytes = b"k", question: int = ASKS_PRESENCE, client: str = "c",
        transaction: Transaction | None = None,
        rule: TtlRule = RULE, database: int = 0, command: str = "HSET",
    ) -> None:  # fmt: skip
        authorizer: Any = None
        write = new_write(authorizer, asker(client, transaction), command, database, key, 1, TARGET)
        self.table.ask(write, rule, question)

    def keys(self) -> list[bytes]:
        return [pending.key for pending in self.table]

    def reported_at(self, now: float, left: int) -> list[str]:
        """Returns the commands that are reported at this time."""
        self.now = now
        return [one.write.command for one in self.table.due() if self.table.answer(one, left)]

    def answer_at(self, now: float, left: int) -> list[bool]:
        self.now = now
        return [self.table.answer(pending, left) for pending in self.table.due()]


def test_a_key_is_due_once_after_its_grace_time() -> None:
    bench = Bench()
    bench.ask(b"k")
    bench.ask(b"slow", rule=TtlRule(grace=60_000))
    bench.now = 4.99
    assert bench.table.due() == []
    bench.now = 5.0
    assert [pending.key for pending in bench.table.due()] == [b"k"]
    assert bench.table.due() == []
    bench.now = 60.0
    assert [pending.key for pending in bench.table.due()] == [b"slow"]


def test_due_returns_at_most_the_requested_number() -> None:
    bench = Bench(100)
    for number in range(10):
        bench.ask(b"%d" % number)
    bench.now = 5.0
    assert [len(bench.table.due(4)) for _ in range(4)] == [4, 4, 2, 0]


@pytest.mark.parametrize(
    ("question", "left", "wrong"),
    [
        (ASKS_PRESENCE, -2, False),
        (ASKS_PRESENCE, -1, True),
        (ASKS_PRESENCE, 200_000, False),
        (ASKS_ALL, -2, False),
        (ASKS_ALL, -1, True),
        (ASKS_ALL, 100_000, False),
        (ASKS_ALL, 100_001, True),
        (ASKS_ALL, 0, False),
    ],
)
def test_the_reply_of_redis_decides(question: int, left: int, wrong: bool) -> None:
    bench = Bench()
    bench.ask(question=question)
    assert bench.answer_at(5.0, left) == [wrong]
    assert len(bench.table) == 0


def test_a_full_table_drops_the_oldest_and_counts_it() -> None:
    bench = Bench(3)
    for key in (b"1", b"2", b"3", b"2", b"4", b"5"):
        bench.ask(key)
    assert bench.keys() == [b"3", b"4", b"5"]
    assert bench.table.dropped == 2


def test_a_key_dropped_during_its_question_is_not_reported() -> None:
    bench = Bench(1)
    bench.ask(b"1")
    bench.now = 5.0
    (pending,) = bench.table.due()
    bench.ask(b"2")
    assert bench.table.answer(pending, NO_TTL) is False
    assert bench.keys() == [b"2"]


def test_a_very_long_key_is_not_kept_but_counted() -> None:
    bench = Bench()
    bench.ask(b"k" * MAX_KEY)
    bench.ask(b"k" * (MAX_KEY + 1))
    assert len(bench.table) == 1
    assert bench.table.dropped == 1


def test_a_key_in_another_database_is_another_key() -> None:
    bench = Bench()
    bench.ask(database=0)
    bench.ask(database=1)
    bench.table.settle(1, b"k", SETTLES, asker("c"))
    assert [pending.database for pending in bench.table] == [0]


def test_only_the_client_that_wrote_settles_a_key() -> None:
    bench = Bench()
    bench.ask(client="a")
    bench.table.settle(0, b"k", SETTLES, asker("b"))
    assert bench.keys() == [b"k"]
    bench.table.settle(0, b"k", SETTLES, asker("a"))
    assert bench.keys() == []


def test_no_client_settles_a_key_that_several_wrote() -> None:
    bench = Bench()
    for number, (client, transaction) in enumerate([("b", None), ("a", object())]):
        key = b"%d" % number
        bench.ask(key, client="a")
        bench.ask(key, client=client, transaction=transaction)
        bench.table.settle(0, key, SETTLES, asker("a"))
        bench.table.settle(0, key, SETTLES, asker(client, transaction))
    assert bench.keys() == [b"0", b"1"]


def test_a_transaction_settles_only_keys_that_it_wrote_itself() -> None:
    """The transaction may never be executed; then its writes do not happen."""
    bench = Bench()
    transaction = object()
    bench.ask(b"outside")
    bench.ask(b"inside", transaction=transaction)
    for key in (b"outside", b"inside"):
        bench.table.settle(0, key, SETTLES, asker("c", transaction))
    assert bench.keys() == [b"outside"]
    bench.ask(b"inside", transaction=transaction)
    bench.table.settle(0, b"inside", SETTLES, asker("c", Transaction()))
    assert bench.keys() == [b"outside", b"inside"]
    bench.table.settle(0, b"inside", SETTLES, asker("c"))
    assert bench.keys() == [b"outside"]


def test_a_time_to_live_that_may_be_wrong_settles_nothing() -> None:
    bench = Bench()
    bench.ask(b"some")
    bench.ask(b"any", ASKS_ALL)
    for key in (b"some", b"any"):
        bench.table.settle(0, key, GIVES, asker("c"))
    assert bench.keys() == [b"any"]


def test_a_replaced_key_begins_a_new_grace_time() -> None:
    bench = Bench()
    bench.ask(client="a")
    bench.now = 3.0
    bench.ask(question=ASKS_ALL, client="b")
    assert bench.answer_at(5.0, NO_TTL) == []
    (pending,) = bench.table
    assert (pending.write.asker.sender, pending.everything, pending.due) == ("b", True, 8.0)
    bench.ask(question=ASKS_PRESENCE, client="a")
    (same,) = bench.table
    assert same is pending


def test_a_later_write_has_a_grace_time_of_its_own() -> None:
    """If the key was gone in between, the first write is not at fault."""
    bench = Bench()
    bench.ask()
    bench.now = 4.9
    bench.ask()
    assert bench.answer_at(5.0, NO_TTL) == [False]
    assert bench.answer_at(9.8, NO_TTL) == []
    assert bench.answer_at(9.9, NO_TTL) == [True]


def test_a_key_under_constant_writes_is_reported_too() -> None:
    bench = Bench()
    found: list[float] = []
    for tick in range(120):
        bench.now = tick / 10
        bench.ask()
        found += [bench.now for wrong in bench.answer_at(bench.now, NO_TTL) if wrong]
    assert found == [10.0]


def test_a_script_has_one_early_question_if_its_key_is_gone() -> None:
    bench = Bench()
    bench.ask(question=ASKS_GONE, command="EVALSHA")
    assert bench.answer_at(0.2, GONE) == [False]
    assert len(bench.table) == 0


def test_a_script_has_a_second_question_if_its_key_remains() -> None:
    bench = Bench()
    bench.ask(question=ASKS_GONE, command="EVALSHA")
    assert bench.reported_at(0.2, NO_TTL) == []
    assert bench.reported_at(4.9, NO_TTL) == []
    assert bench.reported_at(5.0, NO_TTL) == ["EVALSHA"]


def test_a_script_in_a_transaction_has_no_early_question() -> None:
    bench = Bench()
    bench.ask(question=ASKS_GONE, command="EVALSHA", transaction=object())
    assert bench.answer_at(0.2, GONE) == []
    assert bench.reported_at(5.0, NO_TTL) == ["EVALSHA"]


def test_only_the_write_that_recreated_a_key_is_reported() -> None:
    bench = Bench()
    bench.ask(question=ASKS_GONE, command="EVALSHA")
    bench.now = 0.1
    bench.ask(command="SETNX", client="b")
    assert bench.reported_at(0.2, GONE) == []  # SETNX may run after this question
    assert bench.reported_at(5.0, NO_TTL) == []
    assert bench.reported_at(5.1, NO_TTL) == ["SETNX"]


def test_a_key_recreated_in_a_loop_is_reported_only_after_the_loop() -> None:
    """Many clients take and release a lock without a time to live: it never exists for a whole grace time."""
    bench = Bench()
    found: list[tuple[float, str]] = []
    for tick in range(200):
        bench.now = tick / 10
        if tick < 100:
            bench.ask(command="SETNX", client="b")
            bench.ask(question=ASKS_GONE, command="EVALSHA")
            bench.ask(command="SETNX", client="c")
        found += [(bench.now, command) for command in bench.reported_at(bench.now, NO_TTL)]
    assert [command for _, command in found] == ["SETNX"]
    assert 9.9 + 5.0 <= found[0][0] <= 9.9 + 10.0


def test_a_removal_by_another_connection_gives_the_next_write_a_grace_time() -> None:
    bench = Bench()
    found: list[float] = []
    for tick in range(160):
        bench.now = tick / 10
        if tick < 100:
            bench.ask(client="a")
            bench.table.settle(0, b"k", SETTLES, asker("b"))
        found += [bench.now for wrong in bench.answer_at(bench.now, NO_TTL) if wrong]
    assert len(found) == 1
    assert found[0] >= 14.9


def test_a_violation_reported_at_once_is_not_reported_for_an_earlier_write() -> None:
    bench = Bench()
    bench.ask(b"k")
    bench.ask(b"any", ASKS_ALL)
    for key in (b"k", b"any", b"other"):
        assert bench.table.knows(0, key) == (key != b"other")
        bench.table.reported(0, key, TOO_LONG)
    assert bench.answer_at(5.0, 200_000) == [False, False]
    bench.ask(b"any", ASKS_ALL)
    bench.table.reported(0, b"any", REQUIRED)
    assert bench.keys() == []


def test_a_correct_key_that_was_written_meanwhile_is_checked_again() -> None:
    bench = Bench()
    bench.ask()
    bench.now = 4.0
    bench.ask()
    assert bench.answer_at(5.0, 60_000) == [False]
    assert bench.answer_at(9.0, 60_000) == [False]
    assert len(bench.table) == 0


def test_a_key_is_dropped_if_redis_cannot_be_asked() -> None:
    bench = Bench()
    bench.ask()
    bench.now = 5.0
    (pending,) = bench.table.due()
    bench.table.unanswered(pending)
    assert len(bench.table) == 0
    bench.ask()
    bench.table.unanswered(pending)  # a newer write to the same key stays
    assert len(bench.table) == 1


def test_connections_from_one_address_are_distinct() -> None:
    policy = parse_policy(
        "policy: p\nservices: [a]\nscopes: {s: {prefix: 'k', writers: a, unregistered: allow, ttl: required}}"
    )
    table = PendingTtls()
    authorizer = Authorizer(policy, Modes((), policy.services), pending=table)
    one, other = object(), object()
    authorizer.authorize(Asker(0, peer=Peer("unix"), sender=one), [b"HSET", b"k", b"f", b"v"])
    authorizer.authorize(Asker(0, peer=Peer("unix"), sender=other), [b"EXPIRE", b"k", b"60"])
    assert len(table) == 1
    authorizer.authorize(Asker(0, peer=Peer("unix"), sender=one), [b"EXPIRE", b"k", b"60"])
    assert len(table) == 0
    authorizer.rule(Asker(0), [b"HSET", b"k", b"f", b"v"])  # leaves no pending key
    assert len(table) == 0


def test_a_refused_command_leaves_no_key_pending() -> None:
    policy = parse_policy(
        "policy: p\nservices: [a]\nscopes: {s: {prefix: 'k', readers: a, unregistered: allow, ttl: required}}"
    )
    for mode, kept in (("enforce", 0), ("observe", 1)):
        table = PendingTtls()
        authorizer = Authorizer(policy, Modes([ModeRule(mode)], policy.services), pending=table)
        ruling, _ = authorizer.authorize(Asker(0), [b"HSET", b"k", b"f", b"v"])
        assert (ruling.refused_by is not None, len(table)) == (mode == "enforce", kept)


@pytest.mark.parametrize(("command", "is_open"), [("RENAMENX k:a k:b", True), ("RENAME k:a k:b", False)])
def test_a_rename_that_may_fail_settles_nothing(command: str, is_open: bool) -> None:
    policy = parse_policy(
        "policy: p\nservices: [x]\nplaceholders: {id: '[a-z]'}\n"
        'keys: {k: {key: "k:<id>", writers: x, ttl: required}}\n'
    )
    table = PendingTtls()
    authorizer = Authorizer(policy, Modes([], policy.services), pending=table)
    for text in ("LPUSH k:a 1", command):
        authorizer.authorize(asker("c"), text.encode().split())
    assert (b"k:a" in {one.key for one in table}) == is_open


@pytest.mark.parametrize(
    ("commands", "reported"),
    [
        (["EVAL x 1 k:a", "SET k:a v"], []),  # reported at once
        (["HSET k:a f v", "SET k:a v"], []),
        (["EVAL x 1 k:a", "EXPIRE k:a 500"], ["EVAL ttl.required"]),
        (["EVAL x 1 k:a", "MULTI", "SET k:a v", "EXEC"], ["SET ttl.required"]),
        (["EVAL x 1 k:a", "SET k:a v KEEPTTL"], ["SET ttl.required"]),
        (["SET k:a v"], []),
    ],
)
def test_a_write_before_one_reported_at_once_is_not_reported(
    commands: list[str], reported: list[str]
) -> None:
    policy = parse_policy(
        "policy: p\nservices: [x]\nplaceholders: {id: '[a-z]'}\nunregistered_scripts: declared\n"
        'keys: {k: {key: "k:<id>", writers: x, ttl: {max: 100s}}}\n'
    )
    now = [0.0]
    table = PendingTtls(clock=lambda: now[0])
    authorizer = Authorizer(policy, Modes([], policy.services), pending=table)
    transaction = None
    for number, text in enumerate(commands):
        transaction = Transaction() if text == "MULTI" else None if text == "EXEC" else transaction
        now[0] += 0.001
        if text not in ("MULTI", "EXEC"):
            authorizer.authorize(asker(f"c{number}", transaction), text.encode().split())
    found = []
    while len(table):
        now[0] += 0.1
        for one in table.due():
            if table.answer(one, NO_TTL):
                found += [f"{one.write.command} {late.violation.rule}" for late in one.findings(NO_TTL)]
    assert found == reported
