"""How much of Redis' own speed is left through keyfence: one run, side by side, alternating rounds, medians.

Rule: only ratios within one run are told as results. Load comes from redis-benchmark with random keys; the
policy is the whole of `policies/cubesandbox.yaml`, enforced, with telemetry on. CPU times are the processes'
own accounting. Load, Redis and proxy share the machine's cores.

    python -m benchmarks.bench_proxy [--rounds N] [--requests N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from proxy import _compiled
from tests.servers import Keyfence, running_redis

POLICY = Path(__file__).parents[1] / "policies" / "cubesandbox.yaml"
KEY = "cube:v1:master:instance:meta:__rand_int__"


class Workload(NamedTuple):
    """One line of the result."""

    text: str
    clients: int
    pipeline: int
    command: list[str]


class Target(NamedTuple):
    """Something to send load to."""

    name: str
    port: int
    pid: int


class Result(NamedTuple):
    """One round of one workload: requests per second, CPU microseconds of the target for each."""

    rate: float
    cpu: float


WORKLOADS = [
    Workload("SET of 64 bytes, 50 clients, 1 per round trip", 50, 1, ["SET", KEY, "x" * 64]),
    Workload("GET, 50 clients, 1 per round trip", 50, 1, ["GET", KEY]),
    Workload("SET of 64 bytes, 50 clients, 16 per round trip", 50, 16, ["SET", KEY, "x" * 64]),
    Workload("SET of 64 bytes, 1 client", 1, 1, ["SET", KEY, "x" * 64]),
]


def run(target: Target, workload: Workload, requests: int) -> Result:
    """One run of redis-benchmark."""
    argv = [
        "redis-benchmark",
        "-p",
        str(target.port),
        "-c",
        str(workload.clients),
        "-P",
        str(workload.pipeline),
    ]
    argv += ["-n", str(requests), "-r", "1000000", "--csv", *workload.command]
    before = cpu_seconds(target.pid)
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    used = cpu_seconds(target.pid) - before
    return Result(
        float(lines[-1].split(",")[-7 if lines[-1].count(",") > 6 else 1].strip('"')), used / requests * 1e6
    )


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def targets() -> Iterator[list[Target]]:
    """Redis, and keyfence before it: as it is installed, and interpreted."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis(tcp=True))
        assert redis.port is not None
        found = [Target("direct", redis.port, redis.embedded.pid)]
        flags = ["--policy", POLICY, "--service", "CubeMaster", "--mode", "enforce", "--admin", "none"]
        flags += ["--listen", "127.0.0.1:0", "--upstream", redis.url]
        builds = [("keyfence", {})] if any(_compiled.status().values()) else []
        for name, env in [*builds, ("interpreted", {"KEYFENCE_PURE": "1"})]:
            proxy = stack.enter_context(Keyfence(*flags, expect_stderr="(?s).*", env=env))
            found.append(Target(name, proxy.address()[1], proxy.process.pid))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50_000)
    options = parser.parse_args()
    if shutil.which("redis-benchmark") is None:
        sys.exit("redis-benchmark is missing: apt install redis-tools")
    print(f"{options.rounds} rounds of {options.requests} requests; hot modules: {_compiled.describe()}")
    with targets() as found:
        for workload in WORKLOADS:
            requests = options.requests if workload.clients > 1 else options.requests // 5
            results: dict[str, list[Result]] = {target.name: [] for target in found}
            for _ in range(options.rounds):
                for target in found:
                    results[target.name].append(run(target, workload, requests))
            tell(workload, results)


def tell(workload: Workload, results: dict[str, list[Result]]) -> None:
    def median(name: str, of: Callable[[Result], float]) -> float:
        return statistics.median(map(of, results[name]))

    print(f"\n{workload.text}")
    direct = median("direct", lambda result: result.rate)
    for name, rounds in results.items():
        rates = sorted(result.rate for result in rounds)
        rate, cpu = median(name, lambda result: result.rate), median(name, lambda result: result.cpu)
        print(
            f"  {name:12} {rate:9,.0f} req/s ({rates[0]:,.0f} to {rates[-1]:,.0f})  "
            f"{rate / direct:5.2f} of direct  {cpu:6.1f} µs CPU a command"
        )


if __name__ == "__main__":
    main()
