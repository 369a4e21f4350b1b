"""The form of a workload, and the programs that send it. `rows` has the workloads.

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

from benchmarks.disturbances import disturbance
from benchmarks.paced import Task, paced
from benchmarks.processes import nanoseconds, resident_kib, tree
from benchmarks.targets import Field, Target, wait_for_port
from keyfence.resp.encode import command

KEY = "cube:v1:master:instance:meta:__rand_int__"
FOREIGN = "cube:v1:proxy:bench:__rand_int__"  # CubeMaster may not write it, and no entry covers it
UNKNOWN = "bench:user:__rand_int__"  # not in any scope either
KEYS = 1_000_000
_KEYS = {"foreign": FOREIGN, "strange": UNKNOWN}  # by load
LONGEST = 300  # seconds after which a round fails
PACED_SECONDS = 10.0
SETTLED_SECONDS, SETTLED_KIB = 2.0, 64.0
PACED_PREFIX = "cube:v1:master:instance:meta:"


MAIN = ("direct", "haproxy", "twemproxy", "keyfence", "interpreted", "dedicated")


class Workload(NamedTuple):
    """One line of the results."""

    name: str
    text: str
    clients: int
    pipeline: int
    # By redis-benchmark: set, get, foreign, strange, command. By the generator: replay, refused, violating,
    # multi, fan-out. At a fixed rate: paced. Without requests: idle, start.
    load: str
    requests: int
    share: float = 0.0  # of refused commands, 0 to 1
    size: int = 64  # bytes of a value
    targets: tuple[str, ...] = ()  # only these and the peers; (): MAIN
    is_quick: bool = False
    argv: tuple[str, ...] = ()  # of a command; __rand_int__ is a random number
    keys: int = KEYS  # so many random numbers
    service: str = "CubeMaster"  # whose listener gets the requests
    before: tuple[
        tuple[str, ...], ...
    ] = ()  # commands for Redis before each round; {requests} is their number
    beside: str = ""  # what else happens meanwhile, see `disturbances`


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


def run(field: Field, target: Target, workload: Workload, scale: float) -> Round | str:
    """Runs one round. Returns its results, or a text with the reason why there are none."""
    requests = max(int(workload.requests * scale / (10 if target.is_slow else 1)), workload.clients * 2)
    wait_for_port(target.ports[""])
    pids = tree(target.pid) if target.pid else []
    redis = [field.redis.embedded.pid]
    _before(field, workload, requests)
    before, redis_before = nanoseconds(pids), nanoseconds(redis)
    try:
        if workload.load in ("set", "get", "command", *_KEYS):
            figures = _redis_benchmark(target, workload, requests)
        elif workload.load == "paced":
            figures = _paced(field, target, workload, scale)
        else:
            figures = generated(target, workload, requests)
    except subprocess.TimeoutExpired:
        return f"did not end within {LONGEST} s"
    if isinstance(figures, str):
        return figures
    done = figures.pop("requests")
    cpu = (nanoseconds(pids) - before) / done / 1e3
    redis_cpu = (nanoseconds(redis) - redis_before) / done / 1e3
    return Round(
        **{**figures, "errors": figures["errors"] / done},
        cpu=cpu,
        redis_cpu=redis_cpu,
        resident=resident_kib(pids) / 1024,
    )


def _before(field: Field, workload: Workload, requests: int) -> None:
    with field.redis.client() as client:
        for argv in workload.before:
            client.execute_command(*(one.replace("{requests}", str(requests)) for one in argv))


def _paced(field: Field, target: Target, workload: Workload, scale: float) -> dict[str, float] | str:
    """Half as many requests as the slowest of the targets can answer, while something else happens."""
    if not field.rate:
        closed = workload._replace(load="refused", share=0.0)
        found = [generated(one, closed, 20_000) for one in field.targets.values() if not one.is_slow]
        field.rate = min(one["rate"] for one in found if not isinstance(one, str)) / 2
    seconds = max(PACED_SECONDS * scale, 1.0)
    with disturbance(workload.beside, field, target, seconds):
        task = Task(target.port(workload.service), field.rate, seconds, workload.clients, PACED_PREFIX)
        return paced(task)


# -- redis-benchmark

_ERROR = re.compile(r"^Error from server: (.*)$", re.MULTILINE)
_RATE = re.compile(r"throughput summary: ([0-9.]+) requests per second")
_SUMMARY = re.compile(r"avg +min +p50 +p95 +p99 +max\s+" + r"([0-9.]+) +" * 5 + r"([0-9.]+)")
_PERCENTILE = re.compile(r"([0-9.]+)% <= ([0-9.]+) milliseconds")


def _redis_benchmark(target: Target, workload: Workload, requests: int) -> dict[str, float] | str:
    port = target.port(workload.service)
    argv = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-c", str(workload.clients), "-e"]
    argv += ["-P", str(workload.pipeline), "-n", str(requests), "-r", str(workload.keys), "--precision", "3"]
    key = _KEYS.get(workload.load, KEY)
    if workload.argv:
        argv += workload.argv
    else:
        argv += ["GET", key] if workload.load == "get" else ["SET", key, "x" * workload.size]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LONGEST)
    text = ended.stdout
    if error := _ERROR.search(text):
        return f"error replies: {error[1]}"
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


def generated(target: Target, workload: Workload, requests: int) -> dict[str, float] | str:
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
        if target.name not in field.sizes:
            field.sizes[target.name] = _settled(pids)
        before = field.sizes[target.name]
        connections = [socket.create_connection(("127.0.0.1", target.ports[""])) for _ in range(clients)]
        for connection in connections:
            _ping(connection)
        after = resident_kib(pids)
        for connection in connections:
            connection.close()
    time.sleep(0.2)
    return (after - before) / clients


def _settled(pids: list[int]) -> float:
    """Returns the KiB of memory of these processes, once they have stayed equal for a while: keyfence opens
    its findings store after it is ready."""
    size, since = resident_kib(pids), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        time.sleep(0.1)
        now = resident_kib(pids)
        if abs(now - size) > SETTLED_KIB:
            size, since = now, time.monotonic()
    return size


def _ping(connection: socket.socket) -> None:
    connection.settimeout(30)
    connection.sendall(command("PING"))
    connection.recv(100)
