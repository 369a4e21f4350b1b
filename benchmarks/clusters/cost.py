"""What a cluster costs: keyfence before three masters, beside keyfence before one Redis, and beside predixy.
`python -m benchmarks.clusters.cost`.

Rule: the targets take turns, and the results are medians of their ratios within a round. On a machine that
does other work too, only the ratios say something. redis-benchmark sends the load: to all targets but the
listeners as a client that does not know clusters. Each command has to come to a Redis, so none was refused.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import machine, nanoseconds, tree
from benchmarks.targets import running, wait_for_port
from tests.cluster import Cluster, running_cluster
from tests.end_to_end.clusters import keyfence_with
from tests.servers import RedisServer, first_port, free_port, running_redis

KEYS = 1_000_000
CLIENTS = 50
PIPELINES = (16, 1)
POLICY = """policy: bench
services: [app]
placeholders: {id: "[0-9]{1,12}", tag: "[{}A-Za-z0-9]{5}"}
scopes: {all: {prefix: "bench:", writers: [app]}}
keys:
  item: {key: "bench:item:<tag>:<id>", type: string}
"""
CONFIG = """policy: policy.yaml
upstream: {%s}
listeners: [{listen: "127.0.0.1:0", service: app}]
admin: none
modes: [{mode: enforce}]
"""
ONE, SINGLE, LISTENERS, PREDIXY = "one Redis", "one address", "listeners", "predixy"
PREDIXY_CONFIG = """Name bench
Bind 127.0.0.1:%d
WorkerThreads 1
Log %s
Authority {
  Auth {
    Mode write
  }
}
ClusterServerPool {
  Servers {
%s
  }
}
"""


class Target(NamedTuple):
    """What gets the load."""

    port: int
    pid: int
    servers: list[RedisServer]  # behind it
    knows_clusters: bool = False  # whether the load has to know clusters

    def calls(self, command: str) -> int:
        """How often its servers have run a command."""
        total = 0
        for server in self.servers:
            with server.client() as client:
                stats = client.info("commandstats").get(f"cmdstat_{command.lower()}", {"calls": 0})
            total += stats["calls"]
        return total


class Result(NamedTuple):
    """What one target took for a load."""

    rate: float  # commands a second
    cpu: float  # µs a command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clusters.cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", type=int, default=400_000, help="of each load at 16 a round trip")
    parser.add_argument("--replicas", type=int, default=0, help="of the three masters, in all (0)")
    parser.add_argument("--predixy", default=shutil.which("predixy"), help="the program; default: in PATH")
    parser.add_argument("--only", action="append", choices=(SINGLE, LISTENERS, PREDIXY))
    options = parser.parse_args()
    print(machine())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfence-bench-")))
        cluster = stack.enter_context(running_cluster(replicas=options.replicas))
        targets = _started(stack, folder, cluster, options.predixy)
        chosen = {ONE, *(options.only or targets)}
        targets = {name: target for name, target in targets.items() if name in chosen}
        for pipeline in PIPELINES:
            for command in ("SET", "GET"):
                count = options.commands if pipeline > 1 else options.commands // 4
                rounds = [_round(targets, command, pipeline, count, at) for at in range(options.rounds)]
                print(_table(f"{command}, {pipeline} a round trip", rounds), flush=True)


def _started(
    stack: contextlib.ExitStack, folder: Path, cluster: Cluster, predixy: str | None
) -> dict[str, Target]:
    redis = stack.enter_context(running_redis(tcp=True))
    ports = [one.port for one in cluster.masters]
    seeds = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    first = first_port()
    upstreams = {
        ONE: f'url: "redis://127.0.0.1:{redis.port}"',
        SINGLE: f"cluster: [{seeds}], expose: single",
        LISTENERS: f"cluster: [{seeds}], announce: {{host: 127.0.0.1, ports: {first}-{first + 9}}}",
    }
    targets = {}
    for name, upstream in upstreams.items():
        own = folder / name.replace(" ", "-")
        own.mkdir()
        keyfence = stack.enter_context(keyfence_with(own, POLICY, CONFIG % upstream))
        servers = [redis] if name == ONE else cluster.masters
        targets[name] = Target(keyfence.address()[1], keyfence.process.pid, servers, name == LISTENERS)
    if predixy is None:
        print("predixy is left out: it is not installed (name it with --predixy)")
    else:
        targets[PREDIXY] = _predixy(stack, folder, predixy, cluster)
    return targets


def _predixy(stack: contextlib.ExitStack, folder: Path, path: str, cluster: Cluster) -> Target:
    port, file = free_port(), folder / "predixy.conf"
    seeds = "\n".join(f"    + 127.0.0.1:{one.port}" for one in cluster.masters)
    file.write_text(PREDIXY_CONFIG % (port, folder / "predixy.log", seeds))
    process = stack.enter_context(running([path, str(file)]))
    wait_for_port(port)
    return Target(port, process.pid, cluster.masters)


def _round(
    targets: dict[str, Target], command: str, pipeline: int, count: int, number: int
) -> dict[str, Result]:
    """Each target once; every second round in the other order."""
    names = list(targets) if number % 2 == 0 else list(reversed(targets))
    return {name: _loaded(targets[name], command, pipeline, count) for name in names}


def _loaded(target: Target, command: str, pipeline: int, count: int) -> Result:
    pids = tree(target.pid)
    tag = "{tag}" if target.knows_clusters else "12345"  # redis-benchmark puts a hash tag of a node there
    load = [
        "redis-benchmark",
        "-p",
        str(target.port),
        "-c",
        str(CLIENTS),
        "-P",
        str(pipeline),
        "-n",
        str(count),
    ]
    load += [
        *(["--cluster"] if target.knows_clusters else []),
        "-r",
        str(KEYS),
        "--csv",
        command,
        f"bench:item:{tag}:__rand_int__",
    ]
    calls, before = target.calls(command), nanoseconds(pids)
    ended = subprocess.run(
        [*load, *(["x" * 64] if command == "SET" else [])], capture_output=True, text=True, check=False
    )
    spent = nanoseconds(pids) - before
    lines = [one for one in ended.stdout.splitlines() if one.startswith('"')]
    if ended.returncode or not lines or target.calls(command) - calls < count:
        sys.exit(
            f"redis-benchmark failed, or commands were refused:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        )
    return Result(float(lines[-1].split(",")[1].strip('"')), spent / count / 1000)


def _table(title: str, rounds: list[dict[str, Result]]) -> str:
    is_beside = PREDIXY in rounds[0]
    head = f"\n{title:24}{'commands/s':>11}{'µs of CPU':>11}{'of one Redis':>14}"
    lines = [head + f"{'of predixy’s rate':>19}" * is_beside]
    for name in rounds[0]:
        rate = statistics.median(one[name].rate for one in rounds)
        cpu = statistics.median(one[name].cpu for one in rounds)
        of_one = statistics.median(one[name].cpu / one[ONE].cpu for one in rounds)
        line = f"{name:24}{rate:11,.0f}{cpu:11.2f}{of_one:14.2f}"
        if is_beside:
            line += f"{statistics.median(one[name].rate / one[PREDIXY].rate for one in rounds):19.2f}"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
