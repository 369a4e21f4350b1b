"""Measures the page: the time of the overview, and what open pages cost.

Run it from the repository's root: `python -m benchmarks.page [--seconds 60] [--findings 5000]`. keyfence runs
with a findings store that has 30 days of history in every hour of every finding. The first paint is asked for
when no answer is kept any more. The cost of open pages is the processor time of keyfence (proc(5)) beyond
that without pages, so other processes of the machine do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from sqlalchemy import text

from benchmarks.processes import machine, nanoseconds, tree
from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, HOUR
from keyfence.findings.store import Store
from keyfence.policy.loading.load import load_policy
from keyfence.policy.rules import RULES
from keyfence.web.asked_once import WHILE
from tests.findings.rows import batch, look, row
from tests.servers import PROJECT, Keyfence, running_redis

POLICY = PROJECT / "policies" / "cubesandbox.yaml"
DAYS = 30
PAINTS = 5
PER_SECOND = 100  # violations
OVERVIEWS = ("/",) * 10
VIEWS = (
    *("/", "/findings", "/findings?sort=last", "/findings?state=active", "/findings?rule=scope.write"),
    *(
        "/findings?service=CubeProxy",
        "/services",
        "/services/CubeProxy",
        "/services/CubeMaster",
        "/candidate",
    ),
)
_HTML = {"Accept": "text/html"}


def fill(url: str, findings: int) -> None:
    """Make a store: a third of the findings is new, a third open, a third quiet."""
    database, now = Database(url), time.time()
    store, services = Store(database, "here:1"), load_policy(POLICY).services
    rules = list(RULES)
    rows = [
        row(
            at=now - number % DAYS * DAY / 4,
            service=services[number % len(services)],
            rule=rules[number % len(rules)],
            entry="",
            shape=f"tmp:kind{number}:<hex>",
            key=f"tmp:kind{number}:{number:08x}",
        )
        for number in range(findings)
    ]
    for begin in range(0, findings, 1000):
        store.write(batch(*rows[begin : begin + 1000], at=now))
    evidence = batch()
    for hour in range(DAYS * 24):
        asked = [(one, "rule", rule, 100) for one in services for rule in rules]
        evidence.add_uses(asked, now - hour * HOUR)
    store.write(evidence)
    look(store, now - DAYS * DAY, now)
    hours = (
        "SELECT value FROM (WITH RECURSIVE one(value) AS (SELECT :now UNION ALL SELECT value - 1 FROM one "
    )
    hours += "LIMIT :hours) SELECT value FROM one)"
    with database.writing() as connection:
        for statement in (
            "DELETE FROM keyfence_hours",
            "DELETE FROM keyfence_rule_hours",
            f"INSERT INTO keyfence_hours SELECT number, value, 1, 0, 0, 0 FROM keyfence_findings, ({hours})",
            "INSERT INTO keyfence_rule_hours SELECT hour, service, rule, count(*), 0, 0, 0 "
            "FROM keyfence_hours JOIN keyfence_findings ON number = finding GROUP BY 1, 2, 3",
            "UPDATE keyfence_findings SET first = first - 2592000, observed = 720, "
            "state = CASE number % 3 WHEN 0 THEN 'new' WHEN 1 THEN 'open' ELSE 'quiet' END",
        ):
            given = {"now": int(now // HOUR), "hours": DAYS * 24} if ":now" in statement else {}
            connection.execute(text(statement), given)
    database.close()


def paint(keyfence: Keyfence, path: str) -> tuple[float, float]:
    """The seconds until a page has come, and the processor time that it took keyfence."""
    pids = tree(keyfence.process.pid)
    before, began = nanoseconds(pids), time.perf_counter()
    request = urllib.request.Request(keyfence.ready.admin + path, headers=_HTML)
    with urllib.request.urlopen(request) as response:
        response.read()
    return time.perf_counter() - began, (nanoseconds(pids) - before) / 1e9


@contextlib.asynccontextmanager
async def open_pages(keyfence: Keyfence, views: Sequence[str]) -> AsyncIterator[list[int]]:
    """Pages that read their streams. Yields the number of events so far, of each."""
    parts = urllib.parse.urlsplit(keyfence.ready.admin)
    events = [0] * len(views)

    async def read(number: int, view: str) -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        path = f"/live?view={urllib.parse.quote(view, safe='')}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            while line := await reader.readline():
                events[number] += line.startswith(b"data: ")
        finally:
            writer.close()

    tasks = [asyncio.create_task(read(number, view)) for number, view in enumerate(views)]
    try:
        yield events
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def violate(keyfence: Keyfence) -> None:
    """Break a rule PER_SECOND times a second, on ever new keys of one kind."""
    reader, writer = await asyncio.open_connection(*keyfence.address("CubeProxy"))
    began, sent = time.perf_counter(), 0
    try:
        while True:
            due = int((time.perf_counter() - began) * PER_SECOND)
            for number in range(sent, due):
                writer.write(b"HSET cube:v1:shared:sandbox:proxy:s%d HostIP 10.0.0.7\r\n" % (number % 1000))
                await reader.readline()
            sent = max(sent, due)
            await asyncio.sleep(1 / PER_SECOND)
    finally:
        writer.close()


async def cost(
    keyfence: Keyfence, views: Sequence[str], violating: bool, seconds: float
) -> tuple[float, float]:
    """The share of a core that keyfence uses, and how often a page was refreshed in a second."""
    traffic = asyncio.create_task(violate(keyfence)) if violating else None
    try:
        async with open_pages(keyfence, views) as events:
            await asyncio.sleep(5)
            pids = tree(keyfence.process.pid)
            cpu, began, seen = nanoseconds(pids), time.perf_counter(), sum(events)
            await asyncio.sleep(seconds)
            took = time.perf_counter() - began
            share = (nanoseconds(pids) - cpu) / 1e9 / took
            return share, (sum(events) - seen) / took / max(len(views), 1)
    finally:
        if traffic is not None:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)


def measure(keyfence: Keyfence, seconds: float) -> None:
    for path in ("/", "/services/CubeProxy"):
        paints = []
        for _ in range(PAINTS):
            time.sleep(WHILE + 1)  # until no answer is kept
            paints.append(paint(keyfence, path))
        wall, cpu = (1000 * statistics.median(one) for one in zip(*paints, strict=True))
        print(
            f"first paint of {path:<22} {wall:6.1f} ms, of which {cpu:4.0f} ms of keyfence's processor time"
        )
    for violating in (False, True):
        what = f"{PER_SECOND} violations a second" if violating else "idle"
        alone, _ = asyncio.run(cost(keyfence, (), violating, seconds))
        print(f"{what:<25} no pages              {alone:7.2%} of a core")
        for name, views in (("ten overviews", OVERVIEWS), ("ten different views", VIEWS)):
            share, events = asyncio.run(cost(keyfence, views, violating, seconds))
            more = f"{share - alone:+7.2%} for the pages; {events:.2f} refreshes of a page a second"
            print(f"{what:<25} {name:<21} {share:7.2%} of a core, {more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each measurement of open pages")
    parser.add_argument("--findings", type=int, default=5000)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder, running_redis() as redis:
        store = f"sqlite:///{folder}/findings.db"
        fill(store, options.findings)
        config = Path(folder, "keyfence.yaml")
        settings = {
            "policy": str(POLICY),
            "upstream": redis.url,
            "findings": store,
            "admin": "127.0.0.1:0",
            "listeners": [{"listen": "127.0.0.1:0", "service": one} for one in ("CubeMaster", "CubeProxy")],
        }
        config.write_text(json.dumps(settings))
        with Keyfence("--config", config) as keyfence:
            measure(keyfence, options.seconds)


if __name__ == "__main__":
    main()
