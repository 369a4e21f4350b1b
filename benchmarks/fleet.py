"""Measures how soon a published policy is in force on every instance. `python -m benchmarks.fleet`.

Rule: the time is that from the end of a push to the answer of the last instance that the version is in force.
On a machine that does other work too, the CPU time of a load says more, so it is shown as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import machine
from keyfence.fleet.redis_store import RedisStore
from keyfence.fleet.redis_url import parse_redis_url
from tests.fleet.publishing import NAME, Publisher
from tests.servers import Keyfence, RedisServer, running_redis

LOOK_SECONDS = 0.02
PATIENCE = 120.0
SETTLE_SECONDS = 6.0  # until each instance has its process that loads
POLICY = """policy: fleet
claims: ["a:"]
services: [one, two]
placeholders: {{word: "[a-z]+"}}
scopes: {{s: {{prefix: "a:", writers: [{writer}]}}}}
keys: {{words: {{key: "a:<word>", type: string}}}}
"""


class Fleet:
    """Some instances that take the policy of one store."""

    def __init__(self, server: RedisServer, instances: list[Keyfence], publisher: Publisher) -> None:
        self._server, self._instances, self._publisher = server, instances, publisher
        self._store = RedisStore(parse_redis_url(server.url), NAME)

    def push(self, *, signals: bool) -> float:
        """Publishes the next version. Returns the seconds until the last instance has it in force."""
        after = asyncio.run(self._store.last())
        version = self._publisher.version(after + 1, POLICY.format(writer=("one", "two")[after % 2]))
        if signals:
            asyncio.run(self._store.add(version, after))
        else:  # as a store whose signals are lost
            with self._server.client() as client:
                key = f"keyfence:{{{NAME}}}:version:{after + 1}"
                row = {"content": version.contents["shop.yaml"], "signature": version.signed.text()}
                client.hset(key, mapping=row)
                client.set(f"keyfence:{{{NAME}}}:sequence", after + 1)
        pushed = time.monotonic()
        left = list(self._instances)
        while left:
            left = [one for one in left if _sequence(one) != after + 1]
            if time.monotonic() - pushed > PATIENCE:
                raise SystemExit(f"{len(left)} instances have not taken version {after + 1}")
            time.sleep(LOOK_SECONDS if signals else 10 * LOOK_SECONDS)
        return time.monotonic() - pushed

    def cpu(self) -> float:
        """Returns the CPU seconds of all instances and of the processes that have loaded for them."""
        return sum(_cpu(one.process.pid) for one in self._instances)


def _cpu(pid: int) -> float:
    """CPU seconds of a process and its children, also of those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(_cpu(int(child)) for child in children)


def _sequence(one: Keyfence) -> int:
    with urllib.request.urlopen(f"{one.ready.admin}/status", timeout=PATIENCE) as answer:
        return int(json.load(answer)["policy"]["signed"]["sequence"])


@contextlib.contextmanager
def running(count: int, folder: Path) -> Iterator[Fleet]:
    """Starts a Redis and the instances, the first version in force."""
    publisher = Publisher()
    with running_redis(tcp=True) as server, contextlib.ExitStack() as stack:
        store = RedisStore(parse_redis_url(server.url), NAME)
        asyncio.run(store.add(publisher.version(1, POLICY.format(writer="one")), 0))
        instances = []
        for number in range(count):
            config = folder / f"{number}.yaml"
            config.write_text(
                f"policy: {{redis: '{server.url}', name: {NAME}, trust: '{publisher.key}'}}\n"
                f"upstream: {server.url}\nadmin: 127.0.0.1:0\nfindings: none\n"
                "listeners: [{listen: '127.0.0.1:0', service: one}]\n"
            )
            env = {"STATE_DIRECTORY": str(folder / f"state-{number}")}
            one = Keyfence("--config", config, env=env, expect_stderr="^")
            instances.append(stack.enter_context(one))
        time.sleep(SETTLE_SECONDS)
        yield Fleet(server, instances, publisher)


def _line(name: str, times: list[float], cpu: float, loads: int) -> str:
    middle, last = statistics.median(times), max(times)
    return f"| {name} | {len(times)} | {middle:.2f} s | {last:.2f} s | {cpu / loads:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon a published policy is in force everywhere.")
    parser.add_argument("--instances", type=int, default=5)
    parser.add_argument("--pushes", type=int, default=25, help="with a signal")
    parser.add_argument("--polls", type=int, default=3, help="pushes without a signal")
    given = parser.parse_args()
    print(f"{machine()}; {given.instances} instances")
    print(
        "| pushes | number | median of the last instance | longest | CPU of one load |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder, running(given.instances, Path(folder)) as fleet:
        for name, count, signals in (("with a signal", given.pushes, True), ("without", given.polls, False)):
            before = fleet.cpu()
            times = [fleet.push(signals=signals) for _ in range(count)]
            if times:
                print(_line(name, times, fleet.cpu() - before, count * given.instances), flush=True)


if __name__ == "__main__":
    main()
