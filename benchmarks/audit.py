"""Measures an audit: how fast it looks at keys, and what another client of the same Redis notices.

Run it from the repository's root: `python -m benchmarks.audit --keys 100000`. The other client is a process
that asks GET a thousand times a second and keeps each answer's time, first alone and then during the audits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import redis

from keyfence.upstream.embedded import EmbeddedRedis

PROJECT = Path(__file__).parents[1]
POLICY = PROJECT / "policies" / "cubesandbox.yaml"
ALONE_SECONDS = 15.0
KEYS_AT_ONCE = 2000

# The other client. It prints the sorted times of its requests in microseconds when its input ends.
_CLIENT = """
import json, socket, sys, threading, time
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
times = []
while not done.is_set():
    begin = time.perf_counter()
    link.sendall(b"*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nhot\\r\\n")
    link.recv(100)
    times.append((time.perf_counter() - begin) * 1e6)
    time.sleep(0.001)
print(json.dumps(sorted(times)))
"""


class Other:
    """The other client, while the body of a `with` runs."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self._path = str(server.socket_path)
        self.times: list[float] = []

    def __enter__(self) -> Other:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, self._path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.times = json.loads(self._process.communicate(b"")[0])

    def at(self, part: float) -> float:
        """The time in microseconds that this part of the requests did not exceed."""
        return self.times[min(int(len(self.times) * part), len(self.times) - 1)]


class Measured(NamedTuple):
    """One row of the results."""

    name: str
    keys: int  # a second
    seconds: float
    cpu: float  # seconds of the audit's own
    server: float  # seconds of CPU that Redis took, for the other client too
    p50: float  # of the other client, in microseconds
    p99: float
    p999: float
    slowest: float


def fill(server: EmbeddedRedis, count: int) -> None:
    """Makes keys: routes, metrics, tasks, and some of no entry."""
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        client.set("hot", "x" * 100)
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            kind = number % 10
            if kind < 5:
                fields = {"HostIP": "10.0.0.7", "SandboxIP": "10.1.0.9", "8080": "32001"}
                pipeline.hset(f"cube:v1:shared:sandbox:proxy:{number:032x}", mapping=fields)
            elif kind < 8:
                key = f"cube:v1:master:node:metric:node-{number}"
                pipeline.hset(key, mapping={"ins_id": number, "mvm_num": 3, "nic_queues": 4})
                pipeline.expire(key, 86_400)
            elif kind < 9:
                pipeline.set(f"session:{number}:state", "x" * 200)
            else:
                pipeline.hset(f"bypass_host_proxy:{number:032x}", mapping={"HostIP": "10.0.0.7"})
            if number % KEYS_AT_ONCE == 0:
                pipeline.execute()
        pipeline.execute()


def audited(server: EmbeddedRedis, rate: str, more: Sequence[str] = ()) -> Measured:
    """Runs an audit beside the other client."""
    command = [sys.executable, "-m", "keyfence", "audit", server.url, "--policy", str(POLICY)]
    before, took = os.times(), server_cpu(server)
    with Other(server) as other:
        run = subprocess.run(
            [*command, "--rate", rate, *more, "--format", "json"],
            cwd=PROJECT,
            capture_output=True,
            check=False,
        )
    found = json.loads(run.stdout)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    name = f"audit --rate {rate}{''.join(f' {one}' for one in more)}"
    speed = round(found["keys"] / found["seconds"])
    return _row(name, speed, found["seconds"], cpu, server_cpu(server) - took, other)


def server_cpu(server: EmbeddedRedis) -> float:
    """The seconds of CPU that Redis has taken."""
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def alone(server: EmbeddedRedis) -> Measured:
    """The other client without an audit."""
    took = server_cpu(server)
    with Other(server) as other:
        time.sleep(ALONE_SECONDS)
    return _row("no audit", 0, ALONE_SECONDS, 0.0, server_cpu(server) - took, other)


def _row(name: str, keys: int, seconds: float, cpu: float, took: float, other: Other) -> Measured:
    return Measured(
        name, keys, seconds, cpu, took, other.at(0.5), other.at(0.99), other.at(0.999), other.times[-1]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rates", nargs="*", default=["5000/s", "20000/s", "none"])
    asked = parser.parse_args()
    with EmbeddedRedis() as server:
        fill(server, asked.keys)
        print(f"{asked.keys:,} keys, Redis {server.version}, {os.cpu_count()} cores")
        head = f"{'':32}{'keys/s':>9}{'seconds':>9}{'cpu s':>8}{'redis s':>9}"
        head += f"{'p50':>8}{'p99':>8}{'p99.9':>9}{'max':>9}"
        print(f"{head}   (µs, of the other client)")
        rows = [alone(server), *(audited(server, rate) for rate in asked.rates)]
        rows += [audited(server, asked.rates[-1], ("--sample", "1%")), alone(server)]
        for one in rows:
            numbers = f"{one.keys:>9,}{one.seconds:>9.1f}{one.cpu:>8.1f}{one.server:>9.2f}"
            times = f"{one.p50:>8.0f}{one.p99:>8.0f}{one.p999:>9.0f}{one.slowest:>9.0f}"
            print(f"{one.name:32}{numbers}{times}")


if __name__ == "__main__":
    main()
