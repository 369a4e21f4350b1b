from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from keyfence.findings import queries
from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, Event, State
from keyfence.findings.instances import Instance
from keyfence.findings.queries import Reader
from keyfence.findings.spans import Span, seconds
from keyfence.findings.store import Store
from keyfence.findings.writer import ASLEEP_SECONDS, LONGEST_BACKOFF, Writer
from keyfence.policy.loading.load import load_policy
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.tally import Row
from tests.findings.rows import NOON, row
from tests.findings.test_fleet import an_instance
from tests.servers import PROJECT


class Fixture:
    """A writer with a clock that is set by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = NOON
        self.counters = Counters()
        self.database = Database(f"sqlite:///{path}")
        self.changes: list[Event] = []
        self.writer = self.new_writer()
        self.reader = Reader(self.database)
        self.locked: sqlite3.Connection | None = None

    def new_writer(self) -> Writer:
        def changed(events: Sequence[Event]) -> None:
            self.changes += events

        store = Store(self.database, "here:1")
        return Writer(store, self.counters, keep=90 * DAY, on_change=changed, clock=lambda: self.now)

    def count(self, *rows: Row, opaque: Sequence[str] = (), begun: Sequence[str] = ()) -> None:
        """Have a process count rows; sessions of `begun` have become opaque and have ended."""
        gauges = {"opaque_open": [[service, 1] for service in opaque]}
        counters = {"sessions_opaque": [[service, "script", 1] for service in begun]}
        asked = [("shop", "rule", "scope.write", 1, "")]
        self.writer.take({"tally": rows, "asked": asked, "gauges": gauges, "counters": counters})

    def lock(self) -> None:
        """Have another process hold the database, so that nothing can be written."""
        with self.database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 1")
        self.locked = sqlite3.connect(self.path, isolation_level=None)
        self.locked.execute("BEGIN IMMEDIATE")

    def unlock(self) -> None:
        if self.locked is not None:
            self.locked.close()
            self.locked = None


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    made = Fixture(tmp_path / "findings.db")
    yield made
    made.unlock()
    made.database.close()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_what_was_counted_is_written_with_its_evidence(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.count(row(2))
        fixture.count(row(3))
        await fixture.writer.write()

    run(main)
    (found,) = fixture.reader.findings()
    assert found.total == 5
    assert fixture.reader.asked(0.0)[("shop", "rule", "scope.write")].times == 2
    assert [one.state for one in fixture.changes] == [State.NEW]


def test_the_version_changes_with_the_findings_and_only_then(fixture: Fixture) -> None:
    async def run() -> None:
        writer = fixture.writer
        seen: list[int] = []

        async def version() -> int:
            writer.look(is_open=True)
            await writer.write()
            seen.append(writer.version)
            return writer.version

        await version()
        fixture.now += 1
        fixture.count()  # commands, and no violation
        assert await version() == seen[0]
        fixture.count(row())
        assert await version() > seen[-2]
        fixture.lock()
        fixture.count(row())
        assert await version() == seen[-2]
        fixture.unlock()
        assert await version() > seen[-2]
        fixture.now += DAY  # the finding becomes open
        assert await version() > seen[-2]

    asyncio.run(run())


def test_violations_are_written_at_each_tick_and_evidence_alone_every_five_seconds(fixture: Fixture) -> None:
    async def main() -> None:
        async def tick() -> None:
            await fixture.writer.tick()
            written.append(sum(one.times for one in fixture.reader.asked(0.0).values()))

        written: list[int] = []
        for second in range(7):
            fixture.now = NOON + second
            fixture.count()
            await tick()
        assert [number // written[0] for number in written] == [1, 1, 1, 1, 1, 6, 6]
        fixture.count(row())
        await tick()
        assert written[-1] == 8 * written[0]
        assert fixture.reader.findings()[0].total == 1

    run(main)


def test_what_cannot_be_written_waits_and_is_counted_once(
    fixture: Fixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        fixture.lock()
        for _ in range(4):
            fixture.count(row(1, fixture.now))
            await fixture.writer.write()
            fixture.now += 60
        assert fixture.counters.findings_write_failures == 4
        fixture.unlock()
        fixture.count(row(1, fixture.now))
        await fixture.writer.write()

    run(main)
    (found,) = fixture.reader.findings()
    assert (found.total, found.first, found.last) == (5, NOON, NOON + 240)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("cannot be written: database is locked; findings wait in memory")
    assert lines[1].endswith("is written again after 4 min 0 s; nothing was lost")


def test_a_failing_database_is_tried_again_later_and_later(fixture: Fixture) -> None:
    tries = []

    async def main() -> None:
        fixture.lock()
        fixture.count(row())
        for second in range(120):
            fixture.now = NOON + second
            before = fixture.counters.findings_write_failures
            await fixture.writer.tick()
            if fixture.counters.findings_write_failures > before:
                tries.append(second)
        fixture.unlock()
        fixture.now += LONGEST_BACKOFF
        await fixture.writer.tick()

    run(main)
    assert tries == [0, 1, 3, 7, 15, 31, 61, 91]
    assert fixture.reader.findings()[0].total == 1


def test_a_clock_that_is_set_back_holds_nothing_up(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked_after: list[float] = []

    def age(_store: Store, now: float) -> list[Event]:
        looked_after.append(now)
        return []

    monkeypatch.setattr(Store, "age", age)

    evaluated: list[float] = []

    def reevaluate(_writer: Writer, _policy: object, _since: float, now: float, _changes: object) -> None:
        evaluated.append(now)

    monkeypatch.setattr(Writer, "_reevaluate", reevaluate)

    async def main() -> None:
        fixture.count(row())
        await fixture.writer.tick()
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        fixture.lock()
        fixture.count(row(entry="another"))
        await fixture.writer.tick()
        fixture.unlock()
        fixture.now -= DAY
        await fixture.writer.tick()

    run(main)
    assert len(fixture.reader.findings()) == 2
    assert looked_after == [NOON, NOON - DAY]
    assert evaluated == [NOON - DAY]
    assert "is written again after 0.0 s" in capsys.readouterr().err


def test_a_new_policy_evaluates_the_findings_without_reading_all_at_once(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        fixture.count(*(row(entry=f"entry{number}") for number in range(5)))
        await fixture.writer.write()
        with monkeypatch.context() as patch:
            patch.delattr(Reader, "findings")
            patch.setattr(queries, "_READ_AT_ONCE", 2)
            fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
            fixture.now += 60
            await fixture.writer.write()
        assert fixture.counters.findings_write_failures == 0

    run(main)
    assert len(fixture.reader.findings()) == 5


def steady(fixture: Fixture) -> None:
    """Let the clock run evenly until something old may be deleted."""
    fixture.writer.look(is_open=True)
    for _ in range(10):
        fixture.now += 60
        fixture.writer.look(is_open=True)


def test_a_clock_that_is_wrong_for_some_minutes_deletes_nothing(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.count(row())
        await fixture.writer.write()
        fixture.now += 400 * DAY
        await fixture.writer.write()  # before anyone has looked at the clock
        for _ in range(9):
            fixture.writer.look(is_open=True)
            await fixture.writer.write()
            fixture.now += 60
        assert len(fixture.reader.findings()) == 1
        fixture.now = NOON
        steady(fixture)
        await fixture.writer.write()
        assert len(fixture.reader.findings()) == 1
        fixture.now += 400 * DAY  # it is right: so much later
        steady(fixture)
        await fixture.writer.write()
        assert fixture.reader.findings() == []

    run(main)


def test_changes_of_state_are_told_if_what_comes_after_them_fails(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OperationalError("DELETE", {}, Exception("the database is gone"))

    async def main() -> None:
        fixture.count(row())
        await fixture.writer.write()
        fixture.now += DAY
        monkeypatch.setattr(Store, "prune", broken)
        steady(fixture)
        await fixture.writer.write()

    run(main)
    assert [one.state for one in fixture.reader.findings()] == [State.OPEN]
    assert [one.state for one in fixture.changes] == [State.NEW, State.OPEN]


def test_time_is_covered_while_clients_are_served(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        for second, is_open in (
            (0, False),
            (1, True),
            (2, True),
            (3, True),
            (4, False),
            (5, True),
            (6, True),
        ):
            fixture.now = NOON + second
            fixture.writer.look(is_open)
            await fixture.writer.write()

    run(main)
    looked = fixture.reader.coverage("shop")
    assert looked == [Span(NOON + 1, NOON + 6)]  # a pause of two seconds is none


def test_time_in_which_the_process_did_not_run_is_not_covered(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        asleep = NOON + 1 + ASLEEP_SECONDS + 1
        for at in (NOON, NOON + 1, asleep, asleep + 1):
            fixture.now = at
            fixture.writer.look(is_open=True)
            await fixture.writer.write()

    run(main)
    end = NOON + 1 + ASLEEP_SECONDS + 2
    assert fixture.reader.coverage("shop") == [Span(NOON, NOON + 1), Span(end - 1, end)]


def test_time_in_which_the_process_did_not_run_is_not_covered_if_the_database_is_away_meanwhile(
    fixture: Fixture,
) -> None:
    asleep = NOON + 2 + ASLEEP_SECONDS + 60

    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        fixture.lock()
        for at in (NOON, NOON + 1, NOON + 2, asleep, asleep + 1):
            fixture.now = at
            fixture.writer.look(is_open=True)
            await fixture.writer.write()
        fixture.unlock()
        await fixture.writer.write()

    run(main)
    assert fixture.reader.coverage("shop") == [Span(NOON, NOON + 2), Span(asleep, asleep + 1)]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_gap_stays_one_if_the_clock_is_set_back(fixture: Fixture, is_away: bool) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        if is_away:
            fixture.lock()
        for at, opaque in ((0, ["shop"]), (1, ["shop"]), (2, ["shop"]), (-100, []), (-99, []), (-98, [])):
            fixture.now = NOON + at
            fixture.count(opaque=opaque)
            fixture.writer.look(is_open=True)
            await fixture.writer.write()
        fixture.unlock()
        await fixture.writer.write()

    run(main)
    assert fixture.reader.coverage("web") == [Span(NOON - 100, NOON - 98), Span(NOON, NOON + 2)]
    assert seconds(fixture.reader.coverage("shop"), NOON, NOON + 2) == 0


def test_passthrough_and_opaque_sessions_are_gaps(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        for second in range(5):
            fixture.now = NOON + second
            if second == 2:
                fixture.count(opaque=["shop"])
            else:
                fixture.count()
            fixture.writer.look(is_open=True)
            await fixture.writer.write()

    run(main)
    # The session ended at some time between the samples at 2 and 3 seconds.
    assert fixture.reader.coverage("shop") == [Span(NOON, NOON + 1), Span(NOON + 3, NOON + 4)]
    assert fixture.reader.coverage("other") == [Span(NOON, NOON + 4)]


def test_the_end_of_an_opaque_session_belongs_to_the_gap_also_if_the_count_comes_late(
    fixture: Fixture,
) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        for second in range(6):
            fixture.now = NOON + second
            if second == 1:
                fixture.count(opaque=["shop"])
            elif second != 2:
                fixture.count()
            fixture.writer.look(is_open=True)
            await fixture.writer.write()

    run(main)
    # It ended between the counts at 1 and 3 seconds.
    assert fixture.reader.coverage("shop") == [Span(NOON + 3, NOON + 5)]


def test_an_opaque_session_that_begins_and_ends_between_two_samples_is_a_gap(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(load_policy(PROJECT / "policies" / "general.yaml"))
        for second in range(4):
            fixture.now = NOON + second
            if second == 2:
                fixture.count(begun=["shop"])
            fixture.writer.look(is_open=True)
            await fixture.writer.write()

    run(main)
    assert fixture.reader.coverage("shop") == [Span(NOON, NOON + 1), Span(NOON + 2, NOON + 3)]


def test_without_a_policy_nothing_is_covered(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.writer.policy_taken(None)
        for second in range(3):
            fixture.now = NOON + second
            fixture.writer.look(is_open=True)
            await fixture.writer.write()

    run(main)
    assert fixture.reader.coverage("shop") == []


def test_what_is_left_is_written_at_the_end(fixture: Fixture) -> None:
    async def main() -> None:
        fixture.count(row())
        await fixture.writer.close()

    run(main)
    assert [one.total for one in Reader(Database(f"sqlite:///{fixture.path}")).findings()] == [1]


def test_what_cannot_be_written_at_the_end_is_said_to_be_lost(
    fixture: Fixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        fixture.lock()
        fixture.count(row())
        await fixture.writer.close()

    run(main)
    *_, last = capsys.readouterr().err.splitlines()
    assert f"1 finding that waited for the findings store sqlite:///{fixture.path} is lost" in last


def test_a_batch_that_is_a_fault_of_keyfences_does_not_end_the_writing(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        fixture.count(row())
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", lambda *_: "\ud83d".encode())
            await fixture.writer.write()
        fixture.now += 60
        fixture.count(row())
        await fixture.writer.write()

    run(main)
    assert [one.total for one in fixture.reader.findings()] == [1]
    assert fixture.counters.findings_write_failures == 1
    assert "what was counted since the last write to the findings store is lost" in capsys.readouterr().err


def test_a_fault_of_keyfences_after_a_write_loses_nothing_that_was_written(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture.count(row())
    monkeypatch.setattr(Store, "age", lambda *_: "\ud83d".encode())
    run(fixture.writer.write)
    assert [one.total for one in fixture.reader.findings()] == [1]
    assert [one.state for one in fixture.changes] == [State.NEW], "the webhook is told"
    assert fixture.counters.findings_write_failures == 1
    told = capsys.readouterr().err
    assert "internal error" in told
    assert "is lost" not in told


def test_what_waits_is_kept_if_keyfence_cannot_say_what_it_is(fixture: Fixture) -> None:
    def fail() -> Instance:
        raise RuntimeError("by this test")

    fixture.count(row())
    fixture.writer.reports = fail
    with pytest.raises(RuntimeError):
        run(fixture.writer.write)
    fixture.writer.reports = None
    run(fixture.writer.write)
    assert [one.total for one in fixture.reader.findings()] == [1]


def test_a_write_that_is_cancelled_at_the_end_loses_nothing(fixture: Fixture) -> None:
    """The job that writes each second is cancelled at any moment, also while the thread has not begun."""

    async def main() -> None:
        is_free = threading.Event()
        fixture.writer._thread.submit(is_free.wait)
        fixture.count(row(2))
        tick = asyncio.ensure_future(fixture.writer.tick())
        await asyncio.sleep(0.01)
        tick.cancel()
        await asyncio.gather(tick, return_exceptions=True)
        assert tick.cancelled()
        is_free.set()
        await fixture.writer.close()

    run(main)
    (found,) = fixture.reader.findings()
    assert found.total == 2
    assert [one.state for one in fixture.changes] == [State.NEW]


def test_a_file_that_is_deleted_is_told_and_made_again(
    fixture: Fixture, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(PROJECT / "policies" / "cubesandbox.yaml")

    async def main() -> None:
        fixture.writer.policy_taken(policy)
        fixture.count(row())
        await fixture.writer.write()
        assert len(fixture.reader.findings()) == 1
        fixture.path.unlink()
        for second in range(3):
            fixture.now += 1
            fixture.count(row(2, fixture.now, entry="cart"))
            await fixture.writer.write()
            assert len(fixture.reader.findings()) == 1, second

    asyncio.run(main())
    (found,) = fixture.reader.findings()
    assert (found.entry, found.total) == ("cart", 6)
    assert fixture.path.stat().st_mode & 0o777 == 0o600
    assert [one[2] for one in fixture.reader.policies()] == [policy.revision]
    assert list(fixture.reader.bases({fixture.writer.in_force.basis})) == [fixture.writer.in_force.basis]
    assert fixture.counters.findings_write_failures == 1
    text = capsys.readouterr().err
    assert text.count("was deleted or replaced while keyfence ran") == 1


def test_a_file_that_is_replaced_is_used(fixture: Fixture, tmp_path: Path) -> None:
    Database(f"sqlite:///{tmp_path / 'other.db'}").close()

    async def main() -> None:
        fixture.count(row())
        await fixture.writer.write()
        (tmp_path / "other.db").replace(fixture.path)
        fixture.count(row(3, entry="cart"))
        await fixture.writer.write()

    asyncio.run(main())
    assert [one.entry for one in Reader(Database(f"sqlite:///{fixture.path}")).findings()] == ["cart"]


def test_a_deleted_file_that_is_being_read_is_made_again_later(fixture: Fixture) -> None:
    async def main() -> None:
        await fixture.writer.write()
        fixture.path.unlink()
        fixture.count(row(2))
        with fixture.database.reading():
            await fixture.writer.write()
            assert not fixture.path.exists()
        fixture.now += LONGEST_BACKOFF
        await fixture.writer.write()

    asyncio.run(main())
    assert [one.total for one in fixture.reader.findings()] == [2]


def test_a_new_kind_of_violation_is_written_at_once_and_further_ones_of_it_wait(fixture: Fixture) -> None:
    seen = []

    async def main() -> None:
        for second in range(8):
            fixture.now = NOON + second
            fixture.count(row(), *([row(entry="cart")] if second == 2 else []))
            await fixture.writer.tick()
            seen.append({one.entry: one.total for one in fixture.reader.findings()})

    run(main)
    first = {"order": 1}
    later = {"order": 3, "cart": 1}
    assert seen == [first, first, *(later for _ in range(5)), {"order": 8, "cart": 1}]


def heard(fixture: Fixture) -> list[tuple[float, str, int]]:
    """Of each instance: when it was heard of, its revision and its clients."""
    return [(one.last - NOON, one.revision, one.clients) for one in fixture.reader.instances()]


def test_an_instance_reports_with_what_is_written_anyway_and_not_each_time(fixture: Fixture) -> None:
    one = an_instance("a")
    fixture.writer.reports = lambda: one
    seen = []

    async def main() -> None:
        nonlocal one
        for second in range(6):
            fixture.now = NOON + second
            fixture.count(row(entry=f"entry{second}"))
            one = dataclasses.replace(one, clients=second, confirmed=fixture.now)
            await fixture.writer.tick()
            seen.append(heard(fixture)[0][0])

    run(main)
    assert seen == [0, 0, 0, 0, 4, 4]
    assert heard(fixture) == [(4, "abc", 4)]


def test_what_has_changed_is_reported_with_the_next_write(fixture: Fixture) -> None:
    fixture.writer.reports = lambda: an_instance("a")

    async def main() -> None:
        await fixture.writer.write()
        fixture.now += 1
        fixture.writer.reports = lambda: an_instance("a", revision="def")
        await fixture.writer.write()

    run(main)
    assert heard(fixture) == [(1, "def", 2)]


def test_a_report_that_could_not_be_written_is_made_again(fixture: Fixture) -> None:
    fixture.writer.reports = lambda: an_instance("a")

    async def main() -> None:
        fixture.lock()
        await fixture.writer.write()
        fixture.unlock()
        fixture.now += 2
        await fixture.writer.write()

    run(main)
    assert heard(fixture) == [(2, "abc", 2)]


def test_an_instance_is_listed_in_the_file_that_took_the_place_of_a_deleted_one(fixture: Fixture) -> None:
    fixture.writer.reports = lambda: an_instance("a")

    async def main() -> None:
        await fixture.writer.write()
        fixture.path.unlink()
        for _ in range(2):
            fixture.now += 1
            await fixture.writer.write()

    run(main)
    assert len(heard(fixture)) == 1


def test_a_writer_that_is_closed_takes_its_instance_along(fixture: Fixture) -> None:
    fixture.writer.reports = lambda: an_instance("a")

    async def main() -> None:
        await fixture.writer.write()
        assert len(heard(fixture)) == 1
        await fixture.writer.close()

    run(main)
    left = Database(f"sqlite:///{fixture.path}")
    assert Reader(left).instances() == []
    left.close()
