"""Histories in real stores, in SQLite and PostgreSQL, with rows that were tampered with."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from keyfence.findings.database import Database
from keyfence.findings.history.book import Book
from keyfence.findings.history.chain import chains_of, faults
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.writer import Writer
from keyfence.telemetry.counters import Counters
from tests.findings.rows import NOON


def writer(database: Database, name: str = "here:1") -> tuple[Book, Writer]:
    book = Book(name, lambda: NOON)
    made = Writer(Store(database, name), Counters(), keep=1e9, clock=lambda: NOON, book=book)
    return book, made


def change(database: Database, times: int = 4, name: str = "here:1") -> None:
    """Have an instance change its modes several times."""
    book, made = writer(database, name)

    async def run() -> None:
        for number in range(times):
            book.note("änn", ("modes", {"services": [f"s{number}"]}))
            await made.write()

    asyncio.run(run())


def wrong(database: Database) -> list[str]:
    found = Reader(database).chained()
    return [one.text for one in faults(chains_of(found.rows), found.heads)]


def test_what_was_written_is_what_is_read(database: Database) -> None:
    change(database)
    found = Reader(database).chained()
    assert [row.data()["services"] for row in found.rows] == [["s0"], ["s1"], ["s2"], ["s3"]]
    assert {row.who for row in found.rows} == {"änn"}
    assert found.heads == [found.rows[-1].head]
    assert wrong(database) == []


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE keyfence_history SET detail = '{}' WHERE number = 2", "its content is not what"),
        ("UPDATE keyfence_history SET at = at - 1 WHERE number = 2", "its content is not what"),
        ("UPDATE keyfence_history SET who = 'eve' WHERE number = 4", "its content is not what"),
        ("DELETE FROM keyfence_history WHERE number = 2", "missing before row 3: 2"),
        ("DELETE FROM keyfence_history WHERE number > 2", "missing at the end: there were 4 rows"),
        ("DELETE FROM keyfence_history", "missing, all of it: there were 4 rows"),
        ("DELETE FROM keyfence_history_heads", "its head is missing; there were 4 rows"),
        (
            "UPDATE keyfence_history SET detail = CASE number WHEN 2 THEN "
            "(SELECT detail FROM keyfence_history WHERE number = 3) ELSE "
            "(SELECT detail FROM keyfence_history WHERE number = 2) END "
            "WHERE number IN (2, 3)",
            "its content is not what",
        ),
        (
            "INSERT INTO keyfence_history SELECT instance, 5, at, kind, 'eve', detail, hash, hash "
            "FROM keyfence_history WHERE number = 4",
            "it was added later: there were 4 rows",
        ),
    ],
)
def test_tampering_with_a_store_shows(database: Database, statement: str, fault: str) -> None:
    change(database)
    with database.writing() as connection:
        connection.execute(text(statement))
    assert any(one.startswith(fault) for one in wrong(database)), wrong(database)


def test_instances_that_write_at_once_have_chains_of_their_own(database: Database) -> None:
    threads = [threading.Thread(target=change, args=(database, 10, "same:1")) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = Reader(database).chained()
    assert sorted(row.kind for row in found.rows).count("modes") == 20
    assert len(chains_of(found.rows)) == len(found.heads) == 2
    assert wrong(database) == []


def test_a_chain_that_begins_later_names_the_ones_before(database: Database) -> None:
    change(database)
    change(database, 2)
    first = next(one.instance for one in Reader(database).heads(9) if one.rows == 4)
    with database.writing() as connection:
        for table in ("keyfence_history", "keyfence_history_heads"):
            connection.execute(text(f"DELETE FROM {table} WHERE instance = :first"), {"first": first})
    (found,) = wrong(database)
    assert found.startswith("this row is missing; row 2 of ")


def test_a_write_that_is_done_twice_adds_no_row(database: Database) -> None:
    book = Book("here:1")
    book.note("ann", ("modes", {"services": []}))
    store = Store(database, "here:1")
    for _ in range(2):
        store.history_taken(*book.waiting(), 1)
    assert (len(Reader(database).chained().rows), wrong(database)) == (1, [])


def test_a_row_waits_while_the_database_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Database(f"sqlite:///{tmp_path / 'findings.db'}")
    book, made = writer(database)

    async def run() -> None:
        with database.writing() as connection:
            connection.execute(text("ALTER TABLE keyfence_history RENAME TO hidden"))
        book.note("ann", ("modes", {"services": ["a"]}))
        await made.write()
        assert book.has_waiting
        with database.writing() as connection:
            connection.execute(text("ALTER TABLE hidden RENAME TO keyfence_history"))
        await made.write()

    asyncio.run(run())
    assert not book.has_waiting
    assert wrong(database) == []
    assert "the history is not written, and waits in memory: no such table" in capsys.readouterr().err
    database.close()


def test_a_store_that_was_deleted_while_keyfence_ran_shows_in_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "findings.db"
    database = Database(f"sqlite:///{path}")
    book, made = writer(database)

    async def run() -> None:
        book.note("ann", ("policy", {"revision": "r1"}), ("modes", {"services": ["a"]}))
        await made.write()
        path.unlink()
        book.note("ann", ("modes", {"services": ["b"]}))
        await made.write()

    asyncio.run(run())
    rows = Reader(database).chained().rows
    assert [row.kind for row in rows] == ["start", "chains", "policy", "modes"]
    assert rows[-1].data() == {"services": ["b"]}
    (found,) = wrong(database)
    assert found.startswith("this row is missing; row 2 of ")
    database.close()
