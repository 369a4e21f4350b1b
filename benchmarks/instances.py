"""Measures what the report of an instance costs it, and whether many that write at once lose a finding.

Run it from the repository's root: `python -m benchmarks.instances [--instances 20] [--seconds 10]`. Each
instance is a process with a writer of its own, on one PostgreSQL, and writes as keyfence does, with the same
kinds of violations in each second. The processor time is that of the process, so others of
the machine do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.processes import machine
from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.instances import REPORT_SECONDS
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.writer import Writer
from keyfence.policy.rules import RULES
from keyfence.telemetry.counters import Counters
from tests.findings.rows import row
from tests.findings.test_fleet import an_instance
from tests.postgres import running_postgresql

VIOLATIONS = 10  # kinds, in each second
WRITES = 150
SERVICES = 50  # with a mode of their own for each rule


def modes() -> str:
    """Modes that take some room: a policy of many services, each with modes of its own."""
    rules = {rule: {"*": "observe", **{f"service-{n}": "enforce" for n in range(SERVICES)}} for rule in RULES}
    return json.dumps({"rules": rules, "glass": [], "is_part": False})


def cost_of_a_report(url: str) -> float:
    """Seconds of processor time of this process that one report adds to a write."""
    took: dict[bool, list[float]] = {True: [], False: []}

    async def main() -> None:
        database = Database(url)
        writer = Writer(Store(database, "here:1"), Counters(), keep=90 * DAY)
        one, text = an_instance("here:9464"), modes()
        for number in range(2 * WRITES):
            reports = number % 2 == 0
            changed = dataclasses.replace(one, revision=str(number), modes=text)
            writer.reports = (lambda changed=changed: changed) if reports else None
            writer.take({"tally": [row(1, time.time(), entry=f"entry{n}") for n in range(VIOLATIONS)]})
            began = time.process_time()
            await writer.write()
            took[reports].append(time.process_time() - began)
        await writer.close()

    asyncio.run(main())
    return statistics.median(took[True]) - statistics.median(took[False])


def write_for(url: str, number: int, seconds: float, cpu: multiprocessing.Queue[float]) -> None:
    """One instance, for some seconds."""

    async def main() -> None:
        database, counters = Database(url), Counters()
        writer = Writer(Store(database, f"host{number}:1"), counters, keep=90 * DAY)
        one = an_instance(f"host{number}:9464", modes=modes(), started=time.time())
        writer.reports = lambda: one
        began = time.process_time()
        for _ in range(round(seconds)):
            now = time.time()
            writer.take({"tally": [row(1, now, entry=f"entry{n}") for n in range(VIOLATIONS)]})
            writer.look(is_open=True)
            await writer.tick()
            await asyncio.sleep(1)
        cpu.put(time.process_time() - began)
        failures = -1
        while failures != counters.findings_write_failures:  # what could not be written is written now
            failures = counters.findings_write_failures
            await writer.write()
        await writer.close()

    asyncio.run(main())


def together(url: str, instances: int, seconds: float) -> tuple[int, int, list[float]]:
    """How many violations were written of how many, and the processor time of each instance."""
    Database(url).close()
    context = multiprocessing.get_context("spawn")
    cpu = context.Queue()
    started = [
        context.Process(target=write_for, args=(url, number, seconds, cpu)) for number in range(instances)
    ]
    for one in started:
        one.start()
    took = [cpu.get() for _ in started]
    for one in started:
        one.join()
    database = Database(url)
    written = sum(one.total for one in Reader(database).findings())
    database.close()
    return written, instances * VIOLATIONS * round(seconds), took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        each = cost_of_a_report(f"sqlite:///{Path(folder) / 'findings.db'}")
        print(f"SQLite: a report takes {each * 1e3:.2f} ms of CPU, {each / REPORT_SECONDS:.4%} of a core")
    with running_postgresql() as server:
        each = cost_of_a_report(server.url)
        print(f"PostgreSQL: a report takes {each * 1e3:.2f} ms of CPU, {each / REPORT_SECONDS:.4%} of a core")
    with running_postgresql() as server:
        written, sent, took = together(server.url, given.instances, given.seconds)
    share = statistics.median(took) / given.seconds
    print(f"{given.instances} instances for {given.seconds:g} s: {written} of {sent} violations written")
    most = max(took) / given.seconds
    print(f"all of its writing takes an instance {share:.2%} of a core (median), {most:.2%} at most")


if __name__ == "__main__":
    main()
