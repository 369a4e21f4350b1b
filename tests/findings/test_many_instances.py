"""Twenty instances that write to one PostgreSQL at once lose no finding, and each of them is listed."""

from __future__ import annotations

import asyncio
import threading
import time

import psycopg

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.writer import Writer
from keyfence.telemetry.counters import Counters
from tests.findings.rows import row, rule_sums
from tests.findings.test_fleet import an_instance
from tests.postgres import PostgreSQL
from tests.servers import PATIENCE_SECONDS

INSTANCES, BATCHES, SHARED = 20, 5, 5


def test_instances_that_write_at_once_lose_nothing(postgresql: PostgreSQL) -> None:
    with psycopg.connect(postgresql.url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    Database(postgresql.url).close()
    may_end = threading.Barrier(INSTANCES + 1, timeout=PATIENCE_SECONDS)
    threads = [
        threading.Thread(target=lambda one=one: asyncio.run(_write(postgresql.url, one, may_end)))
        for one in range(INSTANCES)
    ]
    for thread in threads:
        thread.start()
    may_end.wait()
    database = Database(postgresql.url)
    reader = Reader(database)
    found = reader.findings()
    assert {one.entry: one.total for one in found} == {
        **{f"shared{number}": INSTANCES * BATCHES for number in range(SHARED)},
        **{f"own{one}": 3 * BATCHES for one in range(INSTANCES)},
    }
    sums, added = rule_sums(database)
    assert sums == added
    assert sorted(one.clients for one in reader.instances()) == list(range(INSTANCES))
    may_end.wait()
    for thread in threads:
        thread.join()
    assert reader.instances() == []
    database.close()


async def _write(url: str, number: int, may_end: threading.Barrier) -> None:
    """One instance: each batch has findings of its own, and some that all instances have."""
    database, counters = Database(url), Counters()
    writer = Writer(Store(database, f"host{number}:1"), counters, keep=90 * DAY)
    one = an_instance(f"host{number}", clients=number, started=time.time())
    writer.reports = lambda: one
    for _ in range(BATCHES):
        now = time.time()
        shared = [row(1, now, entry=f"shared{at}") for at in range(SHARED)]
        writer.take({"tally": [*shared, row(3, now, entry=f"own{number}")]})
        writer.look(is_open=True)
        await writer.write()
    await writer.write()  # again, if the last write failed
    may_end.wait()
    may_end.wait()
    await writer.close()
