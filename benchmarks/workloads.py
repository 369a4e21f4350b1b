"""The workloads, and the programs that send them.

Rule: a workload is the same for every target, except that slow targets get fewer requests. The CPU time and
memory of the target and of Redis are read just before and just after each round.
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
UNKNOWN = "bench:user:__rand_int__"  # not in any scope either
KEYS = 1_000_000
_KEYS = {"foreign": FOREIGN, "strange": UNKNOWN}  # by load
LONGEST = 300  # seconds after which a round fails


class Workload(NamedTuple):
    """One line of the results."""

    name: str
    text: str
    clients: int
    pipeline: int
    # By redis-benchmark: set, get, foreign, strange. By the generator: replay, refused, violating, multi,
    # fan-out. Without requests: idle.
    load: str
    requests: int
    share: float = 0.0  # of refused commands, 0 to 1
    size: int = 64  # bytes of a value
    targets: tuple[str, ...] = ()  # only these and the peers; (): MAIN
    is_quick: bool = False


class Round(NamedTuple):
    """The results of one round of a workload with one target. CPU times are in µs per command."""

    rate: float  # commands per second; for fan-out, messages
    p50: float  # milliseconds
    p99: float
    p999: float
    cpu: float
    redis_cpu: float
    resident: float  # MiB after the round; for idle, KiB per connection
    errors: float  # error replies as a share of all commands


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
        "SET, 50 clients, by the generator, 5 % refused",
        50,
        1,
        "refused",
        60_000,
        share=0.05,
        targets=("direct", "keyfence", "dedicated"),
    ),
    Workload(
        "violated",
        "SET, 50 clients × 16, every command violates an observed rule",
        50,
        16,
        "foreign",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "strange",
        "SET, 50 clients × 16, every key is unknown to the policy, observed",
        50,
        16,
        "strange",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "mixed",
        "SET, 50 clients × 16, by the generator, keys that violate various rules",
        50,
        16,
        "violating",
        200_000,
        targets=("direct", "observe"),
    ),
    Workload(
        "observed",
        "SET, 50 clients × 16, no violations",
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
        "PUBLISH to 50 subscribers (counts messages)",
        50,
        1,
        "fan-out",
        200_000,
        targets=("direct", "haproxy", "2000-entries"),
    ),
    Workload(
        "entries",
        "SET, 50 clients × 16, with 12 and with 2,000 entries",
        50,
        16,
        "set",
        600_000,
        targets=("direct", "keyfence", "2000-entries"),
        is_quick=True,
    ),
    Workload(
        "workers",
        "SET, 50 clients, with one process and with two workers",
        50,
        1,
        "set",
        100_000,
        targets=("direct", "keyfence", "2-workers"),
    ),
]


def run(field: Field, target: Target, workload: Workload, scale: float) -> Round | str:
    """Runs one round. Returns its results, or a text with the reason why there are none."""
    requests = max(int(workload.requests * scale / (10 if target.is_slow else 1)), workload.clients * 2)
    wait_for_port(target.ports[""])
    pids = tree(target.pid) if target.pid else []
    redis = [field.redis.embedded.pid]
    before, redis_before = cpu_seconds(pids), cpu_seconds(redis)
    try:
        if workload.load in ("set", "get", *_KEYS):
            figures = _redis_benchmark(target, workload, requests)
        else:
            figures = _generator(target, workload, requests)
    except subprocess.TimeoutExpired:
        return f"did not end within {LONGEST} s"
    if isinstance(figures, str):
        return figures
    done = figures.pop("requests")
    cpu = (cpu_seconds(pids) - before) / done * 1e6
    redis_cpu = (cpu_seconds(redis) - redis_before) / done * 1e6
    return Round(
        **{**figures, "errors": figures["errors"] / done},
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
    # Takes the first printed percentile from 99.9 on.
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


# -- the generator


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
    """Returns the KiB of the target's memory for each idle connection. Each connection has sent one PING.

    A process seldom returns memory to the system. So this must run before all other load, and the memory is
    compared with the target's size before any load.
    """
    pids = tree(target.pid)
    with socket.create_connection(
        ("127.0.0.1", target.ports[""])
    ) as first:  # excludes the extra cost of the first connection
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
