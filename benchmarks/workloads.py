"""The workloads, and the programs that send them.

Rule: a workload is the same for every target, except that slow targets get fewer requests. The CPU time and
memory of the target and of Redis are read just before and just after.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.processes import cpu_seconds, resident_kib, tree
from benchmarks.targets import Field, Target, wait_for_port
from keyfence.resp.encode import command

KEY = "cube:v1:master:instance:meta:__rand_int__"
FOREIGN = "cube:v1:proxy:bench:__rand_int__"  # CubeMaster may not write it, and no entry covers it
STRANGE = "bench:user:__rand_int__"  # in no scope either
KEYS = 1_000_000
_KEYS = {"foreign": FOREIGN, "strange": STRANGE}  # by load
LONGEST = 300  # seconds that a round may take


class Workload(NamedTuple):
    """One line of the results."""

    name: str
    text: str
    clients: int
    pipeline: int
    load: (
        # of redis-benchmark: set, get, foreign, strange; of the generator: replay, refused, offences, multi,
        # fan-out; idle
        str
    )
    requests: int
    share: float = 0.0  # refused
    size: int = 64  # bytes of a value
    targets: tuple[str, ...] = ()  # only these, and peers; none: all of the main field
    is_quick: bool = False


class Round(NamedTuple):
    """What one round of one workload showed of one target. CPU times are µs for each command."""

    rate: float  # commands per second
    p50: float  # milliseconds
    p99: float
    p999: float
    cpu: float
    redis_cpu: float
    resident: float  # MiB afterwards
    errors: float  # replies that were errors, as a share of all


MAIN = ("direct", "haproxy", "twemproxy", "keyfence", "interpreted", "dedicated")
_OWN = ("direct", "haproxy", "keyfence", "dedicated")


def _basic() -> list[Workload]:
    found = []
    for load in ("set", "get"):
        for clients, pipeline, requests in (
            (1, 1, 20_000),
            (1, 16, 200_000),
            (1, 100, 500_000),
            (50, 1, 100_000),
            (50, 16, 600_000),
            (50, 100, 1_000_000),
            (500, 1, 100_000),
            (500, 16, 600_000),
            (500, 100, 1_000_000),
        ):
            many = f"{clients} client{'s' if clients > 1 else ''}"
            text = f"{load.upper()} of 64 bytes, {many}, {pipeline} per round trip"
            is_quick = load == "set" and (clients, pipeline) in ((1, 1), (50, 1), (50, 16), (50, 100))
            found.append(
                Workload(
                    f"{load}-{clients}x{pipeline}",
                    text,
                    clients,
                    pipeline,
                    load,
                    requests,
                    is_quick=is_quick,
                )
            )
    return found


WORKLOADS = [
    *(
        Workload(
            f"idle-{clients}",
            f"{clients:,} idle connection{'s' if clients > 1 else ''}",
            clients,
            1,
            "idle",
            0,
            targets=("haproxy", "twemproxy", "keyfence", "dedicated"),
        )
        for clients in (1, 1_000, 5_000)
    ),
    *_basic(),
    Workload("set-64k", "SET of 64 KiB, 50 clients", 50, 1, "set", 20_000, size=65_536),
    Workload("get-64k", "GET of 64 KiB, 50 clients", 50, 1, "get", 20_000, size=65_536),
    Workload("replay", "CubeSandbox's own traffic, 50 clients", 50, 1, "replay", 60_000, is_quick=True),
    Workload(
        "replay-16", "CubeSandbox's own traffic, 50 clients, 16 per round trip", 50, 16, "replay", 200_000
    ),
    Workload("sets", "SET, 50 clients, by the generator", 50, 1, "refused", 60_000, targets=_OWN),
    Workload(
        "refused-5",
        "the same, 5 % of it refused",
        50,
        1,
        "refused",
        60_000,
        share=0.05,
        targets=("direct", "keyfence", "dedicated"),
    ),
    Workload(
        "violated",
        "SET, 50 clients × 16, every command violates a rule that is observed",
        50,
        16,
        "foreign",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "strange",
        "SET, 50 clients × 16, every key is one that the policy knows nothing of, which is observed",
        50,
        16,
        "strange",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "mixed",
        "SET, 50 clients × 16, keys that break several rules in turns, by the generator",
        50,
        16,
        "offences",
        200_000,
        targets=("direct", "observe"),
    ),
    Workload(
        "observed",
        "SET, 50 clients × 16, nothing violates a rule",
        50,
        16,
        "set",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "multi-16", "pipelines of 16 in MULTI and EXEC, 50 clients", 50, 16, "multi", 300_000, targets=_OWN
    ),
    Workload(
        "fan-out",
        "PUBLISH to 50 subscribers: messages",
        50,
        1,
        "fan-out",
        200_000,
        targets=("direct", "haproxy", "2000-entries"),
    ),
    Workload(
        "entries",
        "SET, 50 clients × 16, under 12 entries and under 2,000",
        50,
        16,
        "set",
        600_000,
        targets=("direct", "keyfence", "2000-entries"),
        is_quick=True,
    ),
    Workload(
        "workers",
        "SET, 50 clients, one process and two workers",
        50,
        1,
        "set",
        100_000,
        targets=("direct", "keyfence", "2-workers"),
    ),
]


def run(field: Field, target: Target, workload: Workload, scale: float) -> Round | str:
    """One round. A text says why there is none."""
    requests = max(int(workload.requests * scale / (10 if target.is_slow else 1)), workload.clients * 2)
    wait_for_port(target.ports[""])
    pids = tree(target.pid) if target.pid else []
    redis = [field.redis.embedded.pid]
    before, redis_before = cpu_seconds(pids), cpu_seconds(redis)
    try:
        if workload.load in ("set", "get", *_KEYS):
            made = _redis_benchmark(target, workload, requests)
        else:
            made = _generator(target, workload, requests)
    except subprocess.TimeoutExpired:
        return f"no end within {LONGEST} s"
    if isinstance(made, str):
        return made
    done = made.pop("requests")
    cpu = (cpu_seconds(pids) - before) / done * 1e6
    redis_cpu = (cpu_seconds(redis) - redis_before) / done * 1e6
    return Round(
        **{**made, "errors": made["errors"] / done},
        cpu=cpu,
        redis_cpu=redis_cpu,
        resident=resident_kib(pids) / 1024,
    )


# -- redis-benchmark

_RATE = re.compile(r"throughput summary: ([0-9.]+) requests per second")
_SUMMARY = re.compile(r"avg +min +p50 +p95 +p99 +max\s+" + r"([0-9.]+) +" * 5 + r"([0-9.]+)")
_PERCENTILE = re.compile(r"([0-9.]+)% <= ([0-9.]+) milliseconds")


def _redis_benchmark(target: Target, workload: Workload, requests: int) -> dict[str, float] | str:
    argv = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(target.ports[""]), "-c", str(workload.clients)]
    argv += ["-P", str(workload.pipeline), "-n", str(requests), "-r", str(KEYS), "--precision", "3"]
    key = _KEYS.get(workload.load, KEY)
    argv += ["GET", key] if workload.load == "get" else ["SET", key, "x" * workload.size]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LONGEST)
    text = ended.stdout
    rate, summary = _RATE.search(text), _SUMMARY.search(text)
    if ended.returncode or rate is None or summary is None:
        return (ended.stderr or text).strip().rpartition("\n")[2][:100] or f"exit code {ended.returncode}"
    # The first of its percentiles that reaches 99.9; they come ever closer to 100.
    p999 = next((float(at) for share, at in _PERCENTILE.findall(text) if float(share) >= 99.9), 0.0)
    return {
        "rate": float(rate[1]),
        "p50": float(summary[3]),
        "p99": float(summary[5]),
        "p999": p999,
        "errors": 0.0,
        "requests": requests,
    }


def has_redis_benchmark() -> bool:
    return shutil.which("redis-benchmark") is not None


# -- our own


def _generator(target: Target, workload: Workload, requests: int) -> dict[str, float] | str:
    spec = {
        "ports": target.ports,
        "load": workload.load,
        "clients": workload.clients,
        "pipeline": workload.pipeline,
        "requests": requests,
        "share": workload.share,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.generator"],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    if ended.returncode:
        return ended.stderr.strip().rpartition("\n")[2][:100]
    found: dict[str, float] = json.loads(ended.stdout)
    return found


# -- idle connections


def idle(field: Field, target: Target, clients: int) -> float:
    """KiB of the target's memory that one idle connection costs, each of them having sent one PING.

    What a process has once taken it seldom gives back, so this comes before all other load, and what is
    counted from is its size before any of it.
    """
    pids = tree(target.pid)
    with socket.create_connection(("127.0.0.1", target.ports[""])) as first:  # what only the first one costs
        _ping(first)
        before = field.sizes.setdefault(target.name, resident_kib(pids))
        connections = [socket.create_connection(("127.0.0.1", target.ports[""])) for _ in range(clients)]
        for connection in connections:
            _ping(connection)
        after = resident_kib(pids)
        for connection in connections:
            connection.close()
    time.sleep(0.2)
    return (after - before) / clients


def _ping(connection: socket.socket) -> None:
    connection.settimeout(30)
    connection.sendall(command("PING"))
    connection.recv(100)
