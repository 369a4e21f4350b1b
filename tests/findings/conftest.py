"""Fixtures: stores in SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from keyfence.findings.database import Database
from keyfence.findings.store import Store
from tests.postgres import NO_POSTGRESQL, PostgreSQL, binaries, running_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    if binaries() is None:
        pytest.skip(NO_POSTGRESQL)
    with running_postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'findings.db'}"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    with psycopg.connect(server.url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server.url


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes what a test has opened. From Python 3.13 on, it is a warning if nobody does."""
    opened: list[Database] = []
    begin = Database.__init__

    def kept(self: Database, url: str, *, create: bool = True) -> None:
        begin(self, url, create=create)
        opened.append(self)

    monkeypatch.setattr(Database, "__init__", kept)
    yield
    for one in opened:
        one.close()


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database, "here:1")
