"""Compares the speed of keyfence with Redis and with proxies that check nothing: `python -m benchmarks`.

Rule: all targets are measured in one run. Each round goes through all targets before the next round begins,
so that a slow machine affects all alike. Results are medians, and only ratios within one run are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import platform
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks import plots, results, targets, traffic
from benchmarks.processes import machine
from benchmarks.results import Cell, Cells
from benchmarks.workloads import MAIN, WORKLOADS, Round, Workload, has_redis_benchmark, idle, run
from tests.servers import running_redis

METHOD = """One Redis on loopback, without persistence, and every target before it, all on this one machine,
which the load generator shares. Rounds alternate: each goes through all targets before the next begins. Given
are medians over the rounds with the least and the most; numbers compare within this run only. Load comes from
redis-benchmark with a million random keys, and from a replay of CubeSandbox's traffic
(benchmarks/traffic.py). keyfence judges by the whole of policies/cubesandbox.yaml in enforce, with telemetry
and decision log on. CPU times are the processes' own (utime and stime of /proc/PID/stat, all threads) by
commands sent; they are precise to 10 ms in each round."""


def main() -> None:
    options = _options()
    if not has_redis_benchmark():
        sys.exit("redis-benchmark is missing: apt install redis-tools")
    chosen = [one for one in WORKLOADS if _is_chosen(one, options)]
    if not chosen:
        sys.exit(f"no workload is called so; there are: {', '.join(one.name for one in WORKLOADS)}")
    names = _names_of(chosen, options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with this process
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfence-bench-")))
        redis = stack.enter_context(running_redis(tcp=True))
        field = targets.Field(redis, folder)
        targets.start(stack, field, names, options.peer)
        for reason in field.skipped:
            print(f"skipped: {reason}")
        _prepare(field)
        cells = _measure(field, chosen, options)
        _write(field, chosen, cells, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few workloads, three short rounds")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORKLOAD", help="a name or its beginning"
    )
    parser.add_argument(
        "--target", action="append", default=[], metavar="NAME", help="only these, and direct"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=HOST:PORT", help="one more target"
    )
    parser.add_argument("--rounds", type=int, default=0, help="default: 7, with --quick 3")
    parser.add_argument("--scale", type=float, default=0.0, help="of the numbers of requests")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results", help="where the report goes"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.scale = options.scale or (0.3 if options.quick else 1.0)
    return options


def _is_chosen(workload: Workload, options: argparse.Namespace) -> bool:
    if options.only:
        return any(workload.name == one or workload.name.startswith(f"{one}-") for one in options.only)
    return workload.is_quick or not options.quick


def _names_of(chosen: list[Workload], options: argparse.Namespace) -> set[str]:
    wanted = {name for one in chosen for name in (one.targets or MAIN)}
    return wanted & {"direct", *options.target} if options.target else wanted


def _prepare(field: targets.Field) -> None:
    """Make what the traffic expects to be there."""
    with field.redis.client() as client:
        client.flushall()
        client.xgroup_create(traffic.EVENTS, traffic.GROUP, id="$", mkstream=True)


def _measure(field: targets.Field, chosen: list[Workload], options: argparse.Namespace) -> Cells:
    peers = {peer.partition("=")[0] for peer in options.peer}
    cells: Cells = {}
    for workload in chosen:
        print(f"\n{workload.text}", flush=True)
        there = [
            target
            for name, target in field.targets.items()
            if name in (workload.targets or MAIN) or name in peers
        ]
        rounds: dict[str, list[Round]] = {target.name: [] for target in there}
        trouble: dict[str, str] = {}
        for _ in range(1 if workload.load == "idle" else options.rounds):
            for target in there:
                if target.name in trouble:
                    continue
                made = _one(field, target, workload, options.scale)
                if isinstance(made, str):
                    trouble[target.name] = made
                else:
                    rounds[target.name].append(made)
        for target in there:
            cells[workload.name, target.name] = Cell(tuple(rounds[target.name]), trouble.get(target.name, ""))
        print(results.table(workload, [target.name for target in there], cells), flush=True)
        if workload.load not in ("set", "get"):
            _prepare(field)  # large values, and keys of other types, would be in the way of what follows
    return cells


def _one(field: targets.Field, target: targets.Target, workload: Workload, scale: float) -> Round | str:
    if workload.load != "idle":
        return run(field, target, workload, scale)
    if not target.pid:
        return "its memory isn't known"
    return Round(0, 0, 0, 0, 0, 0, idle(field, target, workload.clients), 0)


def _write(field: targets.Field, chosen: list[Workload], cells: Cells, options: argparse.Namespace) -> None:
    now = datetime.datetime.now(datetime.UTC)
    stem = options.output / now.strftime("%Y-%m-%d-%H%M")
    options.output.mkdir(parents=True, exist_ok=True)
    names = list(field.targets)
    parts = [
        f"# Benchmark of {now:%Y-%m-%d %H:%M} UTC",
        METHOD,
        f"{options.rounds} rounds, requests × {options.scale:g}. Machine: {machine()}. {_versions()}.",
        "\n".join(f"- **{one.name}**: {one.about}" for one in field.targets.values()),
    ]
    parts += [f"Left out: {reason}." for reason in field.skipped]
    parts += ["## Goals", results.goals(cells)]
    pictures = plots.draw(chosen, names, cells, stem)
    parts += [f"![{path.stem}]({path.name})" for path in pictures]
    for workload in chosen:
        parts += [f"## {workload.name}: {workload.text}", results.table(workload, names, cells)]
    report = stem.with_name(f"{stem.name}.md")
    report.write_text("\n\n".join(parts) + "\n")
    print(f"\n{results.goals(cells)}\n\n{report}")
    if not pictures:
        print("no pictures: pip install 'keyfence[bench]'")


def _versions() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("uvloop", "Cython"))
    own = f"keyfence {metadata.version('keyfence')} ({commit or 'no commit'})"
    return f"{own}, Python {platform.python_version()}, {packages}"


if __name__ == "__main__":
    main()
