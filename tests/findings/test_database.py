from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, text
from sqlalchemy.exc import OperationalError

from keyfence.findings import database as module
from keyfence.findings.database import VERSION, Database, StoreError
from keyfence.findings.finding import HOUR
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.tables import meta, metadata
from tests.findings.rows import NOON, batch, look, row, rule_sums
from tests.postgres import PostgreSQL
from tests.servers import PATIENCE_SECONDS


def test_a_database_is_made_once_and_opened_again(url: str) -> None:
    Database(url).close()
    again = Database(url)
    with again.reading() as connection:
        assert connection.execute(text(f"SELECT version FROM {meta.name}")).scalars().all() == [VERSION]
        assert set(metadata.tables) <= set(inspect(connection).get_table_names())
    again.close()


class Busy:
    """A connection to a file that others open at the same time, which happens too rarely for a test."""

    def __init__(self, times: int) -> None:
        self.left = times

    def execute(self, _statement: str) -> None:
        self.left -= 1
        if self.left >= 0:
            raise sqlite3.OperationalError("database is locked")


def test_a_file_that_others_open_at_the_same_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Busy(3)
    module._use_wal(one)
    assert one.left == -1
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with pytest.raises(sqlite3.OperationalError):
        module._use_wal(Busy(1_000_000))


def test_a_newer_schema_is_refused_and_not_touched(database: Database, url: str) -> None:
    with database.writing() as connection:
        connection.execute(meta.update().values(version=VERSION + 1))
    with pytest.raises(StoreError, match=rf"made by a newer keyfence \(schema {VERSION + 1}, .* upgrade"):
        Database(url)


def test_an_older_schema_is_brought_up_to_date_step_by_step(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Database(url).close()
    steps = {
        VERSION: ("ALTER TABLE keyfence_meta ADD COLUMN one INTEGER DEFAULT 1",),
        VERSION + 1: ("ALTER TABLE keyfence_meta ADD COLUMN two INTEGER DEFAULT 2",),
    }
    monkeypatch.setattr(module, "UPGRADES", steps)
    monkeypatch.setattr(module, "VERSION", VERSION + 2)
    for _ in range(2):
        newer = Database(url)
        with newer.reading() as connection:
            found = connection.execute(text("SELECT version, one, two FROM keyfence_meta")).one()
        newer.close()
        assert tuple(found) == (VERSION + 2, 1, 2)


# The tables of schema 1, as keyfence made them: those of schema 2 without what came later.
SINCE_2 = "DROP INDEX keyfence_findings_last", "DROP INDEX keyfence_findings_since"


SINCE_3 = ("ALTER TABLE keyfence_findings DROP COLUMN at_rest",)
SINCE_4 = (
    "ALTER TABLE keyfence_findings DROP COLUMN refusable",
    "DROP INDEX keyfence_uses_key",
    "ALTER TABLE keyfence_uses DROP COLUMN basis",
    "CREATE UNIQUE INDEX keyfence_uses_key ON keyfence_uses (service, kind, name)",
    "DROP TABLE keyfence_bases",
)
SINCE_5 = ("ALTER TABLE keyfence_bases DROP COLUMN taken",)
SINCE_6 = (
    "DROP TABLE keyfence_history",
    "DROP TABLE keyfence_history_heads",
    "DROP TABLE keyfence_instances",
)
SINCE_7 = (
    "DROP TABLE keyfence_comparisons",
    "DROP TABLE keyfence_compared",
    "DROP TABLE keyfence_news",
    "DROP TABLE keyfence_news_targets",
)


def as_schema_1(url: str) -> None:
    """Make a store with data what it was under schema 1."""
    database = Database(url)
    store = Store(database, "here:1")
    for hour in range(5):
        at = NOON + hour * HOUR
        rows = [row(hour + 1, at, entry=f"entry{number}") for number in range(3)]
        rows.append(row(2, at, "refused", rule="ttl.required", service="api"))
        store.write(batch(*rows, at=at, asked=5))
    look(store, NOON, NOON + 5 * HOUR)
    with database.writing() as connection:
        for statement in (
            *SINCE_7,
            *SINCE_6,
            *SINCE_4,
            *SINCE_3,
            *SINCE_2,
            "DROP TABLE keyfence_rule_hours",
            "UPDATE keyfence_meta SET version = 1",
        ):
            connection.execute(text(statement))
    database.close()


def schema_of(database: Database) -> dict[str, Any]:
    """The tables as the database has them: columns, keys, indexes; of SQLite also how they are stored."""
    with database.reading() as connection:
        if database.is_sqlite:
            chosen = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
            listed = connection.execute(text(chosen)).all()
            return {name: " ".join(re.sub(r"[(),]", " ", sql).split()).lower() for name, sql in listed}
        seen = inspect(connection)
        return {
            table: (
                [(one["name"], str(one["type"]), one["nullable"]) for one in seen.get_columns(table)],
                seen.get_pk_constraint(table)["constrained_columns"],
                sorted((str(one["name"]), tuple(one["column_names"])) for one in seen.get_indexes(table)),
            )
            for table in seen.get_table_names()
        }


def test_a_store_of_schema_1_is_upgraded_to_what_a_new_one_is(url: str, database: Database) -> None:
    fresh = schema_of(database)
    database.close()
    as_schema_1(url)
    upgraded = Database(url)
    assert schema_of(upgraded) == fresh
    sums, added = rule_sums(upgraded)
    assert sums == added
    assert sum(map(sum, sums.values())) == 3 * (1 + 2 + 3 + 4 + 5) + 5 * 2
    reader = Reader(upgraded)
    assert (len(reader.findings()), reader.asked(0.0)["shop", "rule", "scope.write"].times) == (4, 25)
    Store(upgraded, "here:2").write(batch(row(7)))
    assert rule_sums(upgraded)[0] == rule_sums(upgraded)[1]
    upgraded.close()
    again = Database(url)
    assert rule_sums(again)[0] == rule_sums(again)[1]
    again.close()


def test_a_store_of_schema_4_knows_the_basis_that_was_first_put_in_force_last(
    url: str, database: Database
) -> None:
    fresh = schema_of(database)
    store = Store(database, "here:1")
    store.basis_taken("r2", "{}", NOON + 1)
    store.basis_taken("r1", "{}", NOON)
    with database.writing() as connection:
        for statement in (*SINCE_7, *SINCE_6, *SINCE_5, "UPDATE keyfence_meta SET version = 4"):
            connection.execute(text(statement))
    database.close()
    upgraded = Database(url)
    assert schema_of(upgraded) == fresh
    assert Reader(upgraded).last_basis() == "r2"
    upgraded.close()


def test_several_processes_that_open_an_old_store_upgrade_it_once(url: str) -> None:
    as_schema_1(url)
    faults: list[Exception] = []

    def open_it() -> None:
        try:
            Database(url).close()
        except Exception as exc:
            faults.append(exc)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert faults == []
    upgraded = Database(url)
    sums, added = rule_sums(upgraded)
    assert sums == added
    upgraded.close()


def test_a_failed_upgrade_leaves_the_database_as_it_was(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("ALTER TABLE keyfence_meta ADD COLUMN one INTEGER", "ALTER TABLE nowhere ADD COLUMN two INTEGER")
    monkeypatch.setattr(module, "UPGRADES", {VERSION: steps})
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    with pytest.raises(StoreError, match="cannot be opened: "):
        Database(url)
    with database.reading() as connection:
        columns = [one["name"] for one in inspect(connection).get_columns(meta.name)]
        assert columns == ["version", "began"]


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "findings.db"
    Database(f"sqlite:///{path}").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_missing_file_is_not_made_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened: there is no such file"):
        Database(f"sqlite:///{tmp_path / 'findings.db'}", create=False)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "findings.db"
    path.write_text("not a database at all, but long enough to be read as one\n" * 20)
    with pytest.raises(StoreError) as caught:
        Database(f"sqlite:///{path}")
    assert (
        str(caught.value) == f"the findings store sqlite:///{path} cannot be opened: file is not a database"
    )


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be opened: (file exists|not a directory)$"):
        Database(f"sqlite:///{tmp_path / 'file' / 'findings.db'}")


def test_a_server_that_does_not_answer_is_one_sentence_without_the_password() -> None:
    with pytest.raises(StoreError) as caught:
        Database("postgresql://keyfence:hunter2@127.0.0.1:1/postgres")
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "***@127.0.0.1:1/postgres cannot be opened: " in str(caught.value)


def test_a_server_that_says_nothing_any_more_is_waited_for_no_longer(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgresql.url)
    with database.writing() as connection:
        connection.execute(text("SELECT pg_sleep(0.5)"))  # slow, but within the limit
    with monkeypatch.context() as patch:
        patch.setattr(module, "SILENT_SECONDS", 0.5)
        began = time.monotonic()
        with pytest.raises(OperationalError) as caught, database.writing() as connection:
            connection.execute(text("SELECT pg_sleep(60)"))
        assert time.monotonic() - began < 30
    assert module.reason(caught.value) == "the server has said nothing for 0.5 s"
    with database.reading() as connection:  # by a new connection
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_a_process_that_waits_for_an_upgrade_by_another_hears_of_the_server_meanwhile(
    postgresql: PostgreSQL,
) -> None:
    first = Database(postgresql.url)
    opened: list[Database] = []
    other = threading.Thread(target=lambda: opened.append(Database(postgresql.url)))
    asked = threading.Semaphore(0)

    def executed(*given: Any) -> None:
        if "advisory" in given[2]:
            asked.release()

    with first.writing() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": module._MIGRATION_LOCK})
        event.listen(Engine, "after_cursor_execute", executed)
        try:
            other.start()
            assert all(asked.acquire(timeout=PATIENCE_SECONDS) for _ in range(3))
            assert not opened
        finally:
            event.remove(Engine, "after_cursor_execute", executed)
    other.join()
    assert opened


def test_a_disk_error_names_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "findings.db"
    database = Database(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 1")
    with pytest.raises(Exception, match="locked") as caught, database.writing():
        pass
    assert module.reason(caught.value) == "database is locked"
    other.close()
    database.close()
    assert os.path.exists(path)


def test_two_keyfences_go_on_in_one_new_file_after_theirs_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "findings.db"
    stores = [Store(Database(f"sqlite:///{path}"), name) for name in ("one", "two")]
    for one in stores:
        one.policy_taken("shop", "r1", 1.0)
    path.unlink()
    for number, one in enumerate(stores):
        assert not one.database.is_in_place()
        one.begin_again()
        stores[0].policy_taken("shop", f"first {number}", 2.0)
        one.policy_taken("shop", f"r{number}", 2.0)
    assert all(one.database.is_in_place() for one in stores)
    for one in stores:
        assert len(Reader(one.database).policies()) == 4
        one.database.close()
    found = sqlite3.connect(path)
    assert found.execute("SELECT count(*) FROM keyfence_policies").fetchone() == (4,)
    assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found.close()


def test_what_is_left_of_a_replaced_file_does_not_mix_with_the_new_one(tmp_path: Path) -> None:
    path, other = tmp_path / "findings.db", tmp_path / "other.db"
    store, new = Store(Database(f"sqlite:///{path}"), "one"), Store(Database(f"sqlite:///{other}"), "two")
    store.policy_taken("shop", "old", 1.0)
    new.policy_taken("shop", "new", 1.0)
    new.database.close()
    assert path.with_name("findings.db-wal").stat().st_size > 0
    other.replace(path)
    store.begin_again()
    assert [one[2] for one in Reader(store.database).policies()] == ["new"]
    store.database.close()
