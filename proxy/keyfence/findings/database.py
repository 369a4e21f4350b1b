"""Opens the database of the findings store: SQLite in a file, or PostgreSQL.

Rule: everything that can be wrong with a database is one StoreError with one sentence. A database with a
newer schema is never touched.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

from .tables import meta, metadata

VERSION = 7
# For each older version: the statements that bring a database to the next one, in SQL that SQLite and
# PostgreSQL share. CLUSTERED stands for what only SQLite needs. They never change after a release.
CLUSTERED = "/* clustered */"
_HISTORY = (
    "CREATE TABLE keyfence_history (instance TEXT NOT NULL, number INTEGER NOT NULL, at BIGINT NOT NULL, "
    "kind TEXT NOT NULL, who TEXT NOT NULL, detail TEXT NOT NULL, previous TEXT NOT NULL, "
    "hash TEXT NOT NULL, PRIMARY KEY (instance, number))",
    "CREATE TABLE keyfence_history_heads (instance TEXT NOT NULL, rows BIGINT NOT NULL, hash TEXT NOT NULL, "
    "at BIGINT NOT NULL, tail TEXT NOT NULL, PRIMARY KEY (instance))",
)
UPGRADES: dict[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE keyfence_rule_hours (hour INTEGER NOT NULL, service TEXT NOT NULL, rule TEXT NOT NULL, "
        "observed BIGINT NOT NULL, refused BIGINT NOT NULL, waived BIGINT NOT NULL, late BIGINT NOT NULL, "
        f"PRIMARY KEY (hour, service, rule)) {CLUSTERED}",
        "INSERT INTO keyfence_rule_hours (hour, service, rule, observed, refused, waived, late) "
        "SELECT cell.hour, one.service, one.rule, sum(cell.observed), sum(cell.refused), sum(cell.waived), "
        "sum(cell.late) FROM keyfence_hours cell JOIN keyfence_findings one ON one.number = cell.finding "
        "GROUP BY cell.hour, one.service, one.rule",
        "CREATE INDEX keyfence_findings_last ON keyfence_findings (last)",
        "CREATE INDEX keyfence_findings_since ON keyfence_findings (state, since)",
    ),
    2: ("ALTER TABLE keyfence_findings ADD COLUMN at_rest BIGINT DEFAULT 0 NOT NULL",),
    3: (
        "ALTER TABLE keyfence_findings ADD COLUMN refusable FLOAT DEFAULT 0 NOT NULL",
        "UPDATE keyfence_findings SET refusable = last WHERE observed + refused > 0",
        "ALTER TABLE keyfence_uses ADD COLUMN basis TEXT DEFAULT '' NOT NULL",
        "DROP INDEX keyfence_uses_key",
        "CREATE UNIQUE INDEX keyfence_uses_key ON keyfence_uses (service, kind, name, basis)",
        # Under which policy older evidence was drawn is known only if there was a single one.
        "UPDATE keyfence_uses SET basis = (SELECT min(revision) FROM keyfence_policies) WHERE kind = 'rule' "
        "AND (SELECT count(DISTINCT revision) FROM keyfence_policies) = 1",
        "CREATE TABLE keyfence_bases (basis TEXT NOT NULL, since FLOAT NOT NULL, parts TEXT NOT NULL, "
        "PRIMARY KEY (basis))",
    ),
    4: (
        "ALTER TABLE keyfence_bases ADD COLUMN taken FLOAT DEFAULT 0 NOT NULL",
        "UPDATE keyfence_bases SET taken = since",
    ),
    5: (
        *_HISTORY,
        "CREATE TABLE keyfence_instances (id TEXT NOT NULL, name TEXT NOT NULL, admin TEXT NOT NULL, "
        "environment TEXT NOT NULL, policy TEXT NOT NULL, revision TEXT NOT NULL, sequence BIGINT NOT NULL, "
        "source TEXT NOT NULL, reason TEXT NOT NULL, loaded FLOAT NOT NULL, confirmed FLOAT NOT NULL, "
        "version TEXT NOT NULL, started FLOAT NOT NULL, last FLOAT NOT NULL, modes TEXT NOT NULL, "
        "clients BIGINT NOT NULL, PRIMARY KEY (id))",
    ),
    6: (
        "CREATE TABLE keyfence_comparisons (id TEXT NOT NULL, name TEXT NOT NULL, environment TEXT NOT NULL, "
        "policy TEXT NOT NULL, revision TEXT NOT NULL, sequence BIGINT NOT NULL, state TEXT NOT NULL, "
        "reason TEXT NOT NULL, digest TEXT NOT NULL, candidate TEXT NOT NULL, since FLOAT NOT NULL, "
        "commands TEXT NOT NULL, last FLOAT NOT NULL, PRIMARY KEY (id))",
        "CREATE TABLE keyfence_compared (id TEXT NOT NULL, change TEXT NOT NULL, service TEXT NOT NULL, "
        "rule TEXT NOT NULL, command TEXT NOT NULL, entry TEXT NOT NULL, shape TEXT NOT NULL, "
        "count BIGINT NOT NULL, observed BIGINT NOT NULL, refused BIGINT NOT NULL, waived BIGINT NOT NULL, "
        "first FLOAT NOT NULL, last FLOAT NOT NULL, example TEXT NOT NULL, hint TEXT NOT NULL)",
        "CREATE INDEX keyfence_compared_id ON keyfence_compared (id)",
        "CREATE TABLE keyfence_news (period TEXT NOT NULL, since FLOAT NOT NULL, until FLOAT NOT NULL, "
        "event BIGINT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (period))",
        "CREATE TABLE keyfence_news_targets (period TEXT NOT NULL, target TEXT NOT NULL, "
        "instance TEXT NOT NULL, state TEXT NOT NULL, tries BIGINT NOT NULL, next FLOAT NOT NULL, "
        "PRIMARY KEY (period, target))",
    ),
}
BUSY_SECONDS = 5  # how long to wait for another process that writes
# How long a server of PostgreSQL may say nothing. One that hangs, or whose host is gone, ends no connection.
SILENT_SECONDS = 60.0
_MIGRATION_LOCK = 0x6B657966  # of PostgreSQL: one process at a time makes or upgrades the tables
_LOCK_PAUSE = 0.1  # seconds between two attempts to get it


class StoreError(Exception):
    """The findings store cannot be used; the message is one sentence for the user."""


class Database:
    """A database with the tables of the store."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Connects, and makes or upgrades the tables. Without `create`, a missing database is an error.
        Raises StoreError."""
        try:
            parsed = make_url(url)
        except (SQLAlchemyError, ValueError):
            raise StoreError("the URL of the findings store cannot be read") from None  # it may hold a secret
        self.shown = parsed.set(query={}).render_as_string(hide_password=True)
        self._path = Path(str(parsed.database))
        self._opened: os.stat_result | None = None
        self._beside: dict[Path, os.stat_result] = {}
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._is_upgrading = False
        try:
            if self.is_sqlite:
                _prepare_file(self._path, create)
            self.engine = _engine(parsed, self._silence)
            self._settle()
        except BaseException as exc:
            if hasattr(self, "engine"):
                self.engine.dispose()
            if not isinstance(exc, SQLAlchemyError | OSError | ImportError):
                raise
            raise StoreError(f"the findings store {self.shown} cannot be opened: {reason(exc)}") from None

    def _settle(self) -> None:
        """Make or upgrade the tables, and remember which files they are in."""
        with self.writing() as connection:
            self._settle_schema(connection)
            if self.is_sqlite:
                self._opened = os.stat(self._path)
                beside = [Path(f"{self._path}{ending}") for ending in ("-wal", "-shm")]
                self._beside = {one: os.stat(one) for one in beside if one.exists()}

    def is_in_place(self) -> bool:
        """Whether the file that was opened still has its name. SQLite writes to a deleted file without an
        error."""
        return self._opened is None or _is_at(self._path, self._opened)

    def begin_again(self) -> None:
        """Open the file that has the name now, or make a new one. Raises SQLAlchemyError or OSError."""
        if self.engine.pool.checkedout():  # type: ignore[attr-defined]
            raise OSError(errno.EBUSY, "its file was deleted or replaced, and is still being read")
        # SQLite would mix what is left of the old file into the new one. But another keyfence may have made
        # the new one already, and its own files beside it: those are not touched.
        for path, known in self._beside.items():
            if _is_at(path, known):
                path.unlink(missing_ok=True)
        self._beside.clear()
        self.engine.dispose()
        _prepare_file(self._path, create=True)
        self._settle()

    def _settle_schema(self, connection: Connection) -> None:
        if not self.is_sqlite:
            _lock(connection)
        if not inspect(connection).has_table(meta.name):
            metadata.create_all(connection)
            connection.execute(meta.insert().values(version=VERSION, began=time.time()))
            return
        version = connection.execute(select(meta.c.version)).scalar_one()
        if version > VERSION:
            raise StoreError(
                f"the findings store {self.shown} was made by a newer keyfence (schema {version}, this one "
                f"knows {VERSION}); upgrade keyfence or name another store"
            )
        self._is_upgrading = version < VERSION
        for one in range(version, VERSION):
            for statement in UPGRADES[one]:
                clustered = "WITHOUT ROWID" if self.is_sqlite else ""
                connection.execute(text(statement.replace(CLUSTERED, clustered)))
        if version < VERSION:
            connection.execute(meta.update().values(version=VERSION))
        self._is_upgrading = False

    def _silence(self) -> float:
        """For how many seconds a server may say nothing. An upgrade takes as long as it takes."""
        return math.inf if self._is_upgrading else SILENT_SECONDS

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes; on SQLite it waits for other writers before it reads."""
        with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads one state of the database."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def _lock(connection: Connection) -> None:
    """Wait until no other process makes or upgrades the tables. An upgrade takes as long as it takes, so
    PostgreSQL is asked again and again: it would say nothing while it waits."""
    asked = text("SELECT pg_try_advisory_xact_lock(:key)")
    while not connection.execute(asked, {"key": _MIGRATION_LOCK}).scalar_one():
        time.sleep(_LOCK_PAUSE)


def reason(exc: BaseException) -> str:
    """Why a database failed, in one line, without the statement."""
    if isinstance(exc, ImportError | NoSuchModuleError):
        return "PostgreSQL needs the package psycopg; install keyfence[postgresql]"
    cause = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(cause).__name__


def _is_at(path: Path, known: os.stat_result) -> bool:
    """Whether the file with this name is a known one."""
    try:
        return os.path.samestat(os.stat(path), known)
    except FileNotFoundError:
        return False


def _prepare_file(path: Path, create: bool) -> None:
    """Make the file of an SQLite database, for its owner only: it names keys."""
    if path.exists():
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(13, "Permission denied")
        return
    if not create:
        raise FileNotFoundError(2, "there is no such file")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _use_wal(connection: Any) -> None:
    """Write ahead. SQLite does not wait here, as it does elsewhere, for another one that opens the file."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.02)


def _heard(connection: Any, steps: Generator[Any, Any, Any], silence: Callable[[], float]) -> Any:
    """The steps of psycopg to one answer of a server, unless that says nothing for too long. psycopg steps
    ten times a second, and sends 0 where nothing was heard."""
    heard, since = None, time.monotonic()
    while True:
        try:
            wanted = steps.send(heard)
        except StopIteration as done:
            return done.value
        heard = yield wanted
        now = time.monotonic()
        if heard:
            since = now
        elif now - since > (most := silence()):
            import psycopg

            connection.pgconn.finish()  # so that nobody waits for the end of a transaction there
            raise psycopg.OperationalError(f"the server has said nothing for {most:g} s")


def _of_postgresql(url: URL, silence: Callable[[], float]) -> Engine:
    url = url.set(drivername="postgresql+psycopg")
    within = {"connect_timeout": 5}
    engine = create_engine(url, pool_size=2, max_overflow=2, pool_pre_ping=True, connect_args=within)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        wait = connection.wait
        connection.wait = lambda steps, *more, **named: wait(
            _heard(connection, steps, silence), *more, **named
        )

    return engine


def _engine(url: URL, silence: Callable[[], float]) -> Engine:
    if url.get_backend_name() == "postgresql":
        return _of_postgresql(url, silence)

    def connected() -> sqlite3.Connection:
        # `mode=rw`: a deleted file is not made again by a reader, with rights for everybody.
        name = f"file:{quote(str(Path(str(url.database)).absolute()))}?mode=rw"
        return sqlite3.connect(name, timeout=BUSY_SECONDS, check_same_thread=False, uri=True)

    engine = create_engine(url, creator=connected)

    # sqlite3 begins transactions by itself, and only before some statements. keyfence begins them.
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
