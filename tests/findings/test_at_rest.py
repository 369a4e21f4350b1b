"""Findings at rest: an audit replaces the counts of the one before it, and stands in nobody's way."""

from __future__ import annotations

import dataclasses

import pytest
from sqlalchemy import text

from keyfence.audit.at_rest import AtRest, write_audit
from keyfence.findings.database import Database
from keyfence.findings.filter import Filter
from keyfence.findings.finding import AT_REST, DAY, Finding, State
from keyfence.findings.gate.judgement import judge
from keyfence.findings.gate.sources import of_store
from keyfence.findings.queries import Reader
from keyfence.findings.readiness import Readiness, may_be_refused, standings
from keyfence.findings.store import Store
from tests.findings.rows import NOON, batch, look, row
from tests.findings.test_database import SINCE_3, SINCE_4, SINCE_6, SINCE_7, schema_of

LOST = AtRest("key.unregistered", "must", "", "user:<int>", 40, "#shop", "register it", ["user:1", "user:2"])
TTL = AtRest("ttl.required", "must", "cart", "", 3, "#shop", "EXPIRE it", ["shop:cart:1"])
HERE, THERE = "redis://here:1", "redis://there:1"


def found(database: Database) -> dict[str, Finding]:
    return {one.rule: one for one in Reader(database).findings(Filter(service=AT_REST))}


def audit(
    database: Database, *rows: AtRest, at: float = NOON, source: str = HERE, whole: bool = True
) -> list[State]:
    return [one.state for one in write_audit(database, rows, source, "r1", at, whole=whole)]


def test_an_audit_s_findings_are_new_at_first(database: Database) -> None:
    assert audit(database, LOST, TTL) == [State.NEW, State.NEW]
    one = found(database)["key.unregistered"]
    assert (one.service, one.command, one.shape, one.state) == (AT_REST, "AUDIT", "user:<int>", State.NEW)
    assert (one.counts, one.total, one.owner, one.hint) == ({AT_REST: 40}, 40, "#shop", "register it")
    assert [example["key"] for example in one.examples] == ["user:1", "user:2"]
    assert one.clients == [{"address": HERE}]


def test_the_next_audit_s_count_replaces_the_one_before(database: Database) -> None:
    audit(database, LOST)
    assert audit(database, dataclasses.replace(LOST, keys=7, examples=["user:9"]), at=NOON + 60) == []
    one = found(database)["key.unregistered"]
    assert (one.total, one.first, one.last) == (7, NOON, NOON + 60)
    assert [example["key"] for example in one.examples] == ["user:9"]


def test_what_an_audit_does_not_find_any_more_is_resolved(database: Database) -> None:
    audit(database, LOST, TTL)
    assert audit(database, TTL, at=NOON + 60) == [State.RESOLVED]
    gone = found(database)["key.unregistered"]
    assert (gone.state, gone.total, gone.resolved_by) == (State.RESOLVED, 0, "r1")
    assert Reader(database).history(gone.id)[-1].why == "an audit does not find it any more"
    assert audit(database, LOST, TTL, at=NOON + 120) == [State.REOPENED]
    assert found(database)["key.unregistered"].total == 40


def test_a_part_of_the_keys_resolves_nothing(database: Database) -> None:
    audit(database, LOST, TTL)
    assert audit(database, at=NOON + 60, whole=False) == []


def test_an_audit_of_another_redis_resolves_nothing(database: Database) -> None:
    audit(database, LOST)
    assert audit(database, TTL, source=THERE) == [State.NEW]
    assert found(database)["key.unregistered"].state is State.NEW


def test_the_keys_of_an_entry_in_several_scopes_are_one_finding(database: Database) -> None:
    other = dataclasses.replace(TTL, keys=4, severity="should", examples=["shop:cart:2"])
    audit(database, TTL, other)
    one = found(database)["ttl.required"]
    assert (one.total, one.severity) == (7, "must")
    assert [example["key"] for example in one.examples] == ["shop:cart:1", "shop:cart:2"]


def test_findings_at_rest_block_no_service_and_no_gate(store: Store) -> None:
    database = store.database
    audit(database, dataclasses.replace(LOST, rule="scope.write"))
    look(store, NOON, NOON + 8 * DAY)
    store.write(batch(asked=5, at=NOON + 8 * DAY))
    now = NOON + 8 * DAY
    (standing,) = standings(Reader(database), {"scope.write": {"shop": "observe"}}, 7 * DAY, now)
    assert standing.readiness is Readiness.READY
    (one,) = found(database).values()
    assert not one.blocks
    assert not may_be_refused(one)
    assert judge(of_store(Reader(database), 0.0)).new == ()


def test_looking_at_commands_does_not_quiet_them(store: Store) -> None:
    audit(store.database, LOST)
    look(store, NOON, NOON + 30 * DAY)
    store.age(NOON + 30 * DAY)
    assert found(store.database)["key.unregistered"].state is State.OPEN


def test_they_are_listed_with_all_others_by_their_number(store: Store) -> None:
    store.write(batch(row(times=10)))
    audit(store.database, LOST, TTL)
    listed = Reader(store.database).findings()
    assert [one.total for one in listed] == [40, 10, 3]


def test_a_store_of_schema_2_is_upgraded_to_what_a_new_one_is(url: str) -> None:
    before = Database(url)
    fresh = schema_of(before)
    Store(before, "here:1").write(batch(row(times=3)))
    with before.writing() as connection:
        for statement in (*SINCE_7, *SINCE_6, *SINCE_4, *SINCE_3, "UPDATE keyfence_meta SET version = 2"):
            connection.execute(text(statement))
    before.close()
    after = Database(url)
    assert schema_of(after) == fresh
    assert audit(after, LOST) == [State.NEW]
    assert [one.total for one in Reader(after).findings()] == [40, 3]
    after.close()


@pytest.mark.parametrize("times", [1, 2])
def test_an_audit_without_violations_writes_nothing(database: Database, times: int) -> None:
    for _ in range(times):
        assert audit(database) == []
    assert found(database) == {}
