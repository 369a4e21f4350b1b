from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable

import pytest
from sqlalchemy import Connection, text

from keyfence.findings import store as module
from keyfence.findings.batch import Batch
from keyfence.findings.database import Database
from keyfence.findings.filter import Filter
from keyfence.findings.finding import DAY, HOUR, SETTLE_SECONDS, State, finding_id
from keyfence.findings.instances import Instance
from keyfence.findings.queries import Reader
from keyfence.findings.spans import Span
from keyfence.findings.store import Store
from keyfence.telemetry.tally import Key, Row
from tests.findings.rows import NOON, batch, look, row, rule_sums
from tests.findings.test_fleet import an_instance

FIRST = finding_id(("shop", "scope.write", "SET", "order", ""))


@pytest.fixture
def reader(database: Database) -> Reader:
    return Reader(database)


def test_a_first_violation_makes_a_new_finding(store: Store, reader: Reader) -> None:
    changes = store.write(batch(row(3)))
    (found,) = reader.findings()
    assert (found.id, found.state, found.counts, found.owner) == (
        FIRST,
        State.NEW,
        {"observed": 3},
        "billing@x",
    )
    assert [one["key"] for one in found.examples] == ["order:7"]
    assert changes == reader.history(FIRST)
    assert [(one.state, one.at) for one in changes] == [(State.NEW, NOON)]


def test_counts_of_later_batches_are_added(store: Store, reader: Reader) -> None:
    store.write(batch(row(3)))
    later = NOON + 3 * HOUR
    assert store.write(batch(row(2, later, "refused"), row(1, later), at=later)) == []
    (found,) = reader.findings()
    assert found.counts == {"observed": 4, "refused": 2}
    assert (found.first, found.last) == (NOON, later)
    hours = reader.hours(FIRST)
    assert [(hour, sum(counts.values())) for hour, counts in hours.items()] == [(NOON, 3), (later, 3)]
    assert reader.violations_since(later) == {FIRST: {"observed": 1, "refused": 2, "waived": 0, "late": 0}}


def test_violations_that_move_to_another_shape_leave_no_finding_behind(store: Store, reader: Reader) -> None:
    store.write(batch(row(2, shape="tmp:abc", entry="")))
    store.write(batch(row(-2, shape="tmp:abc", entry=""), row(2, shape="tmp:<hex>", entry="")))
    (found,) = reader.findings()
    assert (found.shape, found.total) == ("tmp:<hex>", 2)
    assert reader.history(finding_id(("shop", "scope.write", "SET", "", "tmp:abc"))) == []


def test_violations_that_move_in_a_later_hour_leave_the_sums_of_their_rule(
    store: Store, reader: Reader, database: Database
) -> None:
    gone, kept = {"shape": "tmp:abc", "entry": ""}, {"shape": "tmp:<hex>", "entry": ""}
    store.write(batch(row(5, **gone), row(1, entry="order")))
    later = NOON + HOUR
    store.write(batch(row(-2, later, **gone), row(2, later, **kept), at=later))
    assert reader.trend(NOON) == {
        NOON: {"observed": 6, "refused": 0, "waived": 0, "late": 0},
        later: {"observed": 0, "refused": 0, "waived": 0, "late": 0},
    }
    store.write(batch(row(-3, later, **gone), row(3, later, **kept), at=later))
    assert [one["observed"] for one in reader.trend(NOON).values()] == [1, 5]
    sums, added = rule_sums(database)
    assert sums == added


def test_a_violation_after_the_finding_was_resolved_reopens_it(store: Store, reader: Reader) -> None:
    store.write(batch(row()))
    store.resolve([FIRST], "r2", NOON + 60)
    (found,) = reader.findings()
    assert (found.state, found.resolved_by) == (State.RESOLVED, "r2")
    late = NOON + 60 + SETTLE_SECONDS - 1
    store.write(batch(row(at=late), at=late))  # it was counted before the policy was put in force
    assert reader.findings()[0].state is State.RESOLVED
    relapse = late + 60
    (change,) = store.write(batch(row(at=relapse, key="order:8"), at=relapse))
    assert (change.state, change.why) == (State.REOPENED, "seen again after it was resolved")
    (found,) = reader.findings()
    assert [one["key"] for one in found.examples] == ["order:8", "order:7"]


def test_a_finding_that_is_waived_reopens_without_its_waiver(store: Store, reader: Reader) -> None:
    store.write(batch(row()))
    store.write(batch(row(action="waived")))
    assert reader.findings()[0].state is State.WAIVED
    store.write(batch(row()))
    assert reader.findings()[0].state is State.REOPENED


def test_one_must_makes_a_finding_a_must(store: Store, reader: Reader) -> None:
    store.write(batch(row(severity="should")))
    assert reader.findings()[0].severity == "should"
    store.write(batch(row()))
    store.write(batch(row(severity="should")))
    assert reader.findings()[0].severity == "must"


def test_findings_become_open_and_then_quiet_while_keyfence_looks(store: Store, reader: Reader) -> None:
    store.write(batch(row()))
    look(store, NOON, NOON + 10 * DAY)
    states = []
    for day in range(10):
        store.age(NOON + day * DAY)
        states.append(str(reader.findings()[0].state))
    assert states == ["new", *["open"] * 6, *["quiet"] * 3]
    assert [str(one.state) for one in reader.history(FIRST)] == ["new", "open", "quiet"]


def test_a_gap_delays_quiet(store: Store, reader: Reader) -> None:
    store.write(batch(row()))
    look(store, NOON, NOON + 3 * DAY)
    look(store, NOON + 5 * DAY, NOON + 9 * DAY)
    store.age(NOON + 9 * DAY - 60)
    assert reader.findings()[0].state is State.OPEN
    store.age(NOON + 9 * DAY)
    assert reader.findings()[0].state is State.QUIET


def test_time_in_which_a_session_was_opaque_is_a_gap_of_its_service(store: Store, reader: Reader) -> None:
    look(store, NOON, NOON + DAY)
    look(store, NOON + HOUR, NOON + 2 * HOUR, "opaque", "shop")
    assert reader.coverage("shop") == [Span(NOON, NOON + HOUR), Span(NOON + 2 * HOUR, NOON + DAY)]
    assert reader.coverage("other") == [Span(NOON, NOON + DAY)]


def test_time_that_another_instance_passed_through_unread_is_a_gap(store: Store, database: Database) -> None:
    look(store, NOON, NOON + DAY)
    look(Store(database, "there:2"), NOON, NOON + HOUR, "passthrough")
    assert Reader(database).coverage("shop") == [Span(NOON + HOUR, NOON + DAY)]


def test_one_instance_that_looks_is_enough(store: Store, database: Database) -> None:
    look(store, NOON, NOON + HOUR)
    look(Store(database, "there:2"), NOON + HOUR / 2, NOON + 2 * HOUR)
    assert Reader(database).coverage("shop") == [Span(NOON, NOON + 2 * HOUR)]


def test_a_span_grows_and_a_pause_begins_another(store: Store, database: Database) -> None:
    for second in (0, 1, 2, 30, 31):
        look(store, NOON + second, NOON + second + 1)
    assert Reader(database).coverage("") == [Span(NOON, NOON + 3), Span(NOON + 30, NOON + 32)]


def test_evidence_is_added_up_by_hour(store: Store, reader: Reader) -> None:
    for hour in (0, 1, 1, 5):
        store.write(batch(at=NOON + hour * HOUR, asked=10))
    assert reader.asked(NOON)[("shop", "rule", "scope.write")] == (40, NOON + 5 * HOUR)
    assert reader.asked(NOON + 2 * HOUR)[("shop", "rule", "scope.write")].times == 10


def test_old_findings_hours_and_spans_are_deleted(store: Store, reader: Reader) -> None:
    store.write(batch(row(entry="old"), asked=1))
    look(store, NOON, NOON + HOUR)
    later = NOON + 40 * DAY
    store.write(batch(row(at=later, entry="young"), at=later, asked=1))
    look(store, later, later + HOUR)
    store.prune(30 * DAY, later + DAY)
    assert [one.entry for one in reader.findings()] == ["young"]
    assert reader.asked(0.0)[("shop", "rule", "scope.write")].times == 1
    assert reader.coverage("") == [Span(later, later + HOUR)]


def test_the_sums_of_rules_are_those_of_the_findings_that_are_left(
    store: Store, reader: Reader, database: Database
) -> None:
    for hour in range(0, 72, 5):
        at = NOON + hour * HOUR + 1800
        rows = [row(hour + 1, at, rule=rule, entry=rule) for rule in ("scope.write", "ttl.required")]
        # The row of the last violations before the hour is counted in the hour after it.
        store.write(batch(*rows, row(1, at - 1800 - 0.1, entry=f"once{hour}"), at=at))
    before, added = rule_sums(database)
    assert before == added
    now = NOON + 72 * HOUR
    for keep in (60.3, 60.0, 34.9, 2.5, 1.0):
        store.prune(keep * HOUR, now)
        sums, added = rule_sums(database)
        assert sums == added
    assert len(reader.findings()) < 4


def test_beyond_the_limit_findings_are_folded_and_counts_stay_exact(
    store: Store, reader: Reader, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FINDINGS", 20)
    store.write(batch(*(row(2, shape=f"junk{number}:<hex>", entry="") for number in range(15))))
    store.write(batch(*(row(2, shape=f"junk{number}:<hex>", entry="") for number in range(10, 500))))
    found = reader.findings()
    assert len(found) <= 21
    assert sum(one.total for one in found) == 2 * (15 + 490)
    assert next(one for one in found if one.command == "other").total == 2 * (500 - 20)
    sums, added = rule_sums(database)
    assert sums == added


def test_an_example_counts_as_often_as_its_command_came_however_many_hours_a_batch_has(
    store: Store, reader: Reader
) -> None:
    def of(at: float) -> Row:
        one = row(1, at)
        return {**one, "examples": [{**one["examples"][0], "command": {"argv": ["SET"]}, "times": 1}]}

    store.write(batch(of(NOON)))
    made = Batch()
    for hour in (1, 2):
        made.add_rows([of(NOON + hour * HOUR)], NOON + hour * HOUR)
    made.add_rows([row(entry="another")], NOON + 2 * HOUR)  # a new finding
    store.write(made)
    found = next(one for one in reader.findings() if one.entry == "order")
    assert [one["times"] for one in found.examples] == [found.total] == [3]


def test_findings_and_uses_that_are_known_take_no_number_of_postgresql(
    store: Store, database: Database
) -> None:
    def numbers() -> list[int]:
        with database.reading() as connection:
            return [
                connection.execute(text(f"SELECT last_value FROM keyfence_{name}_number_seq")).scalar_one()
                for name in ("findings", "uses")
            ]

    if database.is_sqlite:
        return  # it has no sequence
    store.write(batch(row(), row(entry="another"), asked=1))
    before = numbers()
    for _ in range(3):
        Store(database, "there:2").write(batch(row(), row(entry="another"), asked=1))
    assert numbers() == before


def test_a_finding_that_another_instance_deletes_meanwhile_is_made_again(
    store: Store, reader: Reader, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.is_sqlite:
        return  # one instance writes at a time
    store.write(batch(row(1)))
    known_in, later = module._known, NOON + 20 * DAY

    def known(connection: Connection, seen: Iterable[Key]) -> set[str]:
        found = known_in(connection, seen)
        Store(database, "there:2").prune(DAY, later)
        return found

    monkeypatch.setattr(module, "_known", known)
    changes = store.write(batch(row(7, later), row(3, later, entry="another")))
    assert sorted(one.total for one in reader.findings()) == [3, 7]
    assert [one.state for one in changes] == [State.NEW, State.NEW]


def test_filters_choose_findings(store: Store, reader: Reader) -> None:
    other = row(service="api", rule="ttl.required", shape="tmp:<hex>", entry="", contact="")
    store.write(batch(row(), other))
    look(store, NOON, NOON + 8 * DAY)
    store.age(NOON + 8 * DAY)
    later = NOON + 8 * DAY
    store.write(batch(row(at=later), at=later))

    def services(**fields: object) -> list[str]:
        return sorted(one.service for one in reader.findings(Filter(**fields)))  # type: ignore[arg-type]

    assert services() == ["api", "shop"]
    assert services(service="shop") == services(rule="scope.write") == services(owner="billing@x") == ["shop"]
    assert services(entry="tmp:<hex>") == services(state=(State.QUIET,)) == services(text="TMP:") == ["api"]
    assert services(since=later) == ["shop"]
    assert services(text="100%_") == []
    assert len(services(limit=1)) == len(services(limit=1, offset=1)) == 1
    assert reader.count(Filter(limit=1)) == 2


def test_a_finding_is_found_by_the_beginning_of_its_id(store: Store, reader: Reader) -> None:
    store.write(batch(row(), row(entry="other")))
    found = reader.finding(FIRST[:8])
    assert found is not None
    assert found.id == FIRST
    assert reader.finding("f-") is None  # several
    assert reader.finding("g-") is None


def test_three_instances_write_at_once_and_every_count_is_exact(database: Database, url: str) -> None:
    faults: list[Exception] = []

    def write(name: int) -> None:
        own = Database(url)
        store = Store(own, f"machine:{name}")
        try:
            for turn in range(20):
                at = NOON + turn * HOUR / 4
                rows = [row(1, at, entry=f"entry{number}", key=f"k:{name}") for number in range(15)]
                shape = f"tmp:{name}"  # moves to another shape later, sometimes in a later hour
                rows.append(
                    row(2 if turn % 5 == 0 else -2, at, entry="", shape=shape, rule="key.unregistered")
                )
                rows = rows if turn % 5 in (0, 4) else rows[:-1]
                store.write(batch(*rows, at=at, asked=7))
                look(store, at, at + 60)
                store.age(at)
        except Exception as exc:
            faults.append(exc)
        finally:
            own.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert faults == []
    reader = Reader(database)
    found = [one for one in reader.findings() if one.rule == "scope.write"]
    assert len(found) == len(reader.findings())
    assert {one.entry: one.total for one in found} == {f"entry{number}": 60 for number in range(15)}
    assert all(sorted(each["key"] for each in one.examples) == ["k:0", "k:1", "k:2"] for one in found)
    assert reader.asked(0.0)[("shop", "rule", "scope.write")].times == 3 * 20 * 7
    assert [len(reader.history(one.id)) for one in found] == [1] * 15
    assert all(sum(sum(c.values()) for c in reader.hours(one.id).values()) == 60 for one in found)
    kept, added = rule_sums(database)
    assert kept == added
    assert sum(map(sum, kept.values())) == 15 * 60


def test_a_failed_batch_changes_nothing_and_can_be_written_again(
    store: Store, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = batch(row(3), asked=5)
    waiting.add_span("looking", "", Span(NOON, NOON + 5))
    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_span", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            store.write(waiting)
    assert reader.findings() == []
    store.write(waiting)
    assert reader.findings()[0].total == 3
    assert reader.asked(0.0)[("shop", "rule", "scope.write")].times == 5
    assert reader.coverage("") == [Span(NOON, NOON + 5)]


def test_policies_that_were_put_in_force_are_listed(store: Store, reader: Reader) -> None:
    store.policy_taken("shop", "r1", NOON)
    store.policy_taken("shop", "r2", NOON + 1)
    assert reader.policies() == [(NOON, "shop", "r1"), (NOON + 1, "shop", "r2")]


def instances_of(reader: Reader) -> dict[str, tuple[float, str]]:
    """By id: when it was heard of last, and its revision."""
    return {one.id: (one.last, one.revision) for one in reader.instances()}


def reported(store: Store, one: Instance, *rows: Row) -> None:
    """Write a batch with what an instance says of itself."""
    made = batch(*rows)
    made.instance = one
    store.write(made)


def test_an_instance_has_one_row_that_it_writes_again(store: Store, reader: Reader) -> None:
    reported(store, an_instance("a", last=NOON), row(3))
    reported(store, an_instance("a", last=NOON + 4, revision="def"))
    reported(store, an_instance("b", last=NOON + 5))
    assert instances_of(reader) == {"a:1": (NOON + 4, "def"), "b:1": (NOON + 5, "abc")}
    assert reader.instances()[0] == an_instance("a", last=NOON + 4, revision="def")
    assert len(reader.findings()) == 1


def test_an_instance_that_ends_takes_its_row_along(store: Store, reader: Reader) -> None:
    reported(store, an_instance("a"))
    reported(store, an_instance("b"))
    store.leave("a:1")
    assert set(instances_of(reader)) == {"b:1"}


def test_an_instance_that_is_started_again_replaces_the_one_that_was_killed(
    store: Store, reader: Reader
) -> None:
    reported(store, an_instance("a", last=NOON))
    reported(store, an_instance("a", "staging", id="a:2", last=NOON))
    reported(store, an_instance("a", id="a:3", started=NOON + 60, last=NOON + 61))
    assert set(instances_of(reader)) == {"a:2", "a:3"}


def test_two_instances_of_one_name_that_run_at_once_are_both_listed(store: Store, reader: Reader) -> None:
    reported(store, an_instance("a", last=NOON))
    later = an_instance("a", id="a:2", started=NOON + 1)
    for second in range(2, 8, 2):
        reported(store, an_instance("a", last=NOON + second))
        reported(store, dataclasses.replace(later, last=NOON + second))
    assert set(instances_of(reader)) == {"a:1", "a:2"}


def test_an_instance_that_is_not_heard_of_for_a_week_is_forgotten(store: Store, reader: Reader) -> None:
    reported(store, an_instance("a", last=NOON))
    reported(store, an_instance("b", last=NOON + DAY))
    store.prune(90 * DAY, NOON + 7 * DAY + 1)
    assert set(instances_of(reader)) == {"b:1"}
