"""What a connection costs: CPU time with one GET, beside HAProxy's, and memory while it is idle.
`python -m benchmarks.connections`.

Rule: redis-benchmark opens a connection for each GET, as many scripts do. The targets take turns, and the
results are medians. On a machine that does other work too, only their ratio says something.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks import targets
from benchmarks.processes import machine, nanoseconds, tree
from benchmarks.targets import Field, Target
from benchmarks.workloads import KEY, KEYS, idle
from tests.servers import running_redis

CLIENTS = 50
IDLE = 5_000


def per_connection(target: Target, connections: int) -> float:
    """Returns the microseconds of CPU of a target and its workers for each connection."""
    pids = tree(target.pid)
    before = nanoseconds(pids)
    load = ["redis-benchmark", "-p", str(target.ports[""]), "-c", str(CLIENTS), "-k", "0", "-r", str(KEYS)]
    subprocess.run([*load, "-n", str(connections), "GET", KEY], capture_output=True, check=True)
    return (nanoseconds(pids) - before) / connections / 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=20_000, help="of each target in a round")
    options = parser.parse_args()
    print(machine())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        field = Field(stack.enter_context(running_redis(tcp=True)), folder)
        targets.start(stack, field, {"haproxy", "keyfence"}, [])
        for left_out in field.skipped:
            print(f"left out: {left_out}")
        measured = [target for target in field.targets.values() if target.pid]
        resident = {target.name: idle(field, target, IDLE) for target in measured}  # before any load
        rounds = [
            {target.name: per_connection(target, options.connections) for target in measured}
            for _ in range(options.rounds)
        ]
    print(f"{'':12}{'µs of CPU a connection':>24}{'KiB an idle one':>18}")
    for target in measured:
        microseconds = statistics.median(one[target.name] for one in rounds)
        print(f"{target.name:12}{microseconds:24.1f}{resident[target.name]:18.2f}")
    if resident.keys() >= {"keyfence", "haproxy"}:
        ratio = statistics.median(one["keyfence"] / one["haproxy"] for one in rounds)
        print(f"keyfence, of HAProxy in the same round: {ratio:.2f}")


if __name__ == "__main__":
    main()
