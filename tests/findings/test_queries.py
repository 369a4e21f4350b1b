from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from sqlalchemy import Select

from keyfence.findings import queries as module
from keyfence.findings.database import Database
from keyfence.findings.filter import SORTS, Filter
from keyfence.findings.finding import DAY, HOUR, Finding, State
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.tables import findings
from tests.findings.rows import NOON, batch, look, row


@pytest.fixture
def reader(database: Database) -> Reader:
    return Reader(database)


def some(store: Store) -> None:
    """Findings that differ in everything by which a list can be ordered."""
    look(store, NOON - 9 * DAY, NOON)
    old = NOON - 8 * DAY
    store.write(batch(row(9, old, service="api", rule="ttl.required", contact="zoe"), at=old))
    store.write(batch(row(2, service="shop", rule="scope.write", contact="amy"), at=NOON))
    waived = row(5, NOON - DAY, "waived", service="billing", rule="key.case", contact="mia")
    store.write(batch(waived, at=NOON - DAY))
    store.age(NOON + 1)


@pytest.mark.parametrize(
    ("sort", "services"),
    [
        ("violations", ["api", "billing", "shop"]),
        ("last", ["shop", "billing", "api"]),
        ("first", ["shop", "billing", "api"]),
        ("since", ["api", "shop", "billing"]),
        ("service", ["api", "billing", "shop"]),
        ("rule", ["billing", "shop", "api"]),
        ("state", ["shop", "api", "billing"]),
        ("owner", ["shop", "billing", "api"]),
    ],
)
def test_a_list_has_the_order_that_was_asked_for(
    sort: str, services: list[str], store: Store, reader: Reader
) -> None:
    some(store)
    assert [one.service for one in reader.findings(Filter(sort=sort))] == services


def test_every_order_is_tested_and_pages_of_each_are_the_whole_list(store: Store, reader: Reader) -> None:
    rows = [row(number % 3 + 1, entry=f"entry{number}") for number in range(20)]
    store.write(batch(*rows))
    for sort in SORTS:
        whole = [one.id for one in reader.findings(Filter(sort=sort))]
        pages = [
            one.id
            for offset in range(0, 20, 7)
            for one in reader.findings(Filter(sort=sort, limit=7, offset=offset))
        ]
        assert pages == whole
        assert len(set(whole)) == 20


def test_each_finding_comes_once_and_few_are_read_at_once(
    store: Store, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READ_AT_ONCE", 3)
    assert list(reader.each()) == []
    store.write(batch(*(row(entry=f"entry{number}") for number in range(9))))
    read: list[int] = []
    rows_of = reader._rows

    def counting(chosen: Select[Any]) -> Sequence[Any]:
        rows = rows_of(chosen)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(reader, "_rows", counting)
    assert sorted(one.entry for one in reader.each()) == [f"entry{number}" for number in range(9)]
    assert read == [3, 3, 3, 0]


def test_findings_are_counted_by_state(store: Store, reader: Reader) -> None:
    assert reader.state_counts() == {}
    some(store)
    store.write(batch(row(entry="other")))
    assert reader.state_counts() == {State.QUIET: 1, State.NEW: 2, State.WAIVED: 1}


def test_blocking_findings_are_those_that_enforcing_would_refuse(store: Store, reader: Reader) -> None:
    some(store)
    store.write(batch(row(entry="advice", severity="should")))
    found = reader.blocking({State.NEW, State.QUIET})
    assert sorted((one.service, one.rule, one.owner, one.last) for one in found) == [
        ("api", "ttl.required", "zoe", NOON - 8 * DAY),
        ("shop", "scope.write", "amy", NOON),
    ]
    assert reader.blocking(()) == []
    assert [one.service for one in reader.blocking({State.NEW, State.QUIET}, NOON - DAY)] == ["shop"]
    assert set(found[0]._fields) <= {one.name for one in fields(Finding)}


def test_a_trend_is_the_violations_of_all_findings_by_hour(store: Store, reader: Reader) -> None:
    for hour, times in ((0, 3), (0, 4), (2, 5)):
        at = NOON + hour * HOUR + 1800
        store.write(batch(row(times, at, entry=f"entry{times}"), row(1, at, "refused"), at=at))
        store.write(batch(row(1, at, service="api"), at=at))
    nothing = dict.fromkeys(("observed", "refused", "waived", "late"), 0)
    assert reader.trend(0.0) == {
        NOON: nothing | {"observed": 9, "refused": 2},
        NOON + 2 * HOUR: nothing | {"observed": 6, "refused": 1},
    }
    assert reader.trend(NOON + HOUR, "shop") == {NOON + 2 * HOUR: nothing | {"observed": 5, "refused": 1}}
    assert list(reader.trend(NOON + 1800)) == [NOON, NOON + 2 * HOUR]  # from the beginning of the hour
    assert reader.trend(NOON + DAY) == reader.trend(0.0, "nobody") == {}


def test_commands_are_counted_by_service_and_hour(store: Store, reader: Reader) -> None:
    for hour, times in ((0, 10), (0, 5), (3, 1)):
        store.write(batch(at=NOON + hour * HOUR, asked=times))
    store.write(batch(at=NOON, asked=2, service="api"))
    assert reader.commands_by_hour(NOON) == {
        "shop": {NOON: 15, NOON + 3 * HOUR: 1},
        "api": {NOON: 2},
    }
    assert reader.commands_by_hour(NOON + HOUR) == {"shop": {NOON + 3 * HOUR: 1}}


def test_entries_and_owners_of_findings_are_listed(store: Store, reader: Reader) -> None:
    some(store)
    store.write(batch(row(contact="amy"), row(entry="", shape="tmp:<hex>", contact="")))
    assert reader.entry_counts() == {"order": 1, "": 1}
    assert reader.owners() == ["amy", "mia", "zoe"]


def test_the_last_use_of_a_right_is_known_longer_than_its_hours(store: Store, reader: Reader) -> None:
    made = batch()
    made.add_uses([("shop", "read", "order", 4), ("api", "read", "order", 1)], NOON)
    store.write(made)
    store.prune(DAY, NOON + 9 * DAY)
    assert reader.asked(0.0) == {}
    assert reader.last_uses("shop") == {("read", "order"): NOON}
    assert reader.last_uses("nobody") == {}


def test_evidence_of_one_service_is_that_of_all_without_the_others(store: Store, reader: Reader) -> None:
    for service in ("shop", "api"):
        store.write(batch(asked=3, service=service))
    every = reader.asked(0.0)
    assert reader.asked(0.0, "api") == {key: one for key, one in every.items() if key[0] == "api"} != {}


def test_examples_of_an_older_version_that_are_too_long_are_not_read(
    store: Store, reader: Reader, database: Database
) -> None:
    store.write(batch(row()))
    long = json.dumps(
        [{"at": NOON, "decision": "", "key": "k", "client": {}, "command": {"argv": ["x" * 300_000]}}]
    )
    with database.writing() as connection:
        connection.execute(findings.update().values(examples=long))
    assert reader.findings()[0].examples == []
    store.write(batch(row(key="order:8")))
    assert [one["key"] for one in reader.findings()[0].examples] == ["order:8"]
