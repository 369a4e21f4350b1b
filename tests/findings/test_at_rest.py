"""Findings at rest: an audit replaces the counts of the one before it, and stands in nobody's way."""

from __future__ import annotations

import dataclasses

import pytest
from sqlalchemy import inspect, text

from keyfence.audit.at_rest import AtRest, write_audit
from keyfence.findings import tables
from keyfence.findings.database import UPGRADES, Database
from keyfence.findings.filter import Filter
from keyfence.findings.finding import AT_REST, DAY, Finding, State
from keyfence.findings.gate.evidence import of_store
from keyfence.findings.gate.judgement import judge
from keyfence.findings.queries import Reader
from keyfence.findings.readiness import Readiness, may_be_refused, standings
from keyfence.findings.store import Store
from tests.findings.rows import NOON, batch, look, row

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


def test_an_older_store_gets_the_column(url: str) -> None:
    """A database of version 2 has all tables but one column."""
    before = Database(url)
    with before.writing() as connection:
        connection.execute(text("ALTER TABLE keyfence_findings DROP COLUMN at_rest"))
        connection.execute(tables.meta.update().values(version=2))
    before.close()
    after = Database(url)
    with after.reading() as connection:
        columns = {one["name"] for one in inspect(connection).get_columns(tables.findings.name)}
    assert columns == {column.name for column in tables.findings.columns}
    assert audit(after, LOST) == [State.NEW]
    after.close()
    assert 2 in UPGRADES


@pytest.mark.parametrize("times", [1, 2])
def test_an_audit_without_violations_writes_nothing(database: Database, times: int) -> None:
    for _ in range(times):
        assert audit(database) == []
    assert found(database) == {}
