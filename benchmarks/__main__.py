"""Compares the speed of keyfence with Redis and with proxies that check nothing: `python -m benchmarks`.

Rule: all targets are measured in one run. Each round goes through all targets before the next round begins,
so that a slow machine affects all targets equally. Results are medians. Only ratios within one run compare.
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
from benchmarks.rows import WORKLOADS
from benchmarks.start import starts
from benchmarks.workloads import MAIN, Round, Workload, has_redis_benchmark, idle, run
from tests.servers import running_redis

METHOD = """All targets stand in front of the same Redis, which has no persistence. Everything, the load
generator included, runs on this machine over loopback. Each round goes through all targets before the next
round begins. The tables show medians over the rounds, with the lowest and the highest value. Numbers compare
only within this run. The load comes from redis-benchmark with a million random keys, and from a replay of
CubeSandbox's traffic (benchmarks/traffic.py). keyfence enforces the whole of policies/cubesandbox.yaml, with
telemetry and decision log on. CPU times are those of each process (/proc/PID/task/*/schedstat, in
nanoseconds), divided by the number of commands sent."""


def main() -> None:
    options = _options()
    if not has_redis_benchmark():
        sys.exit("redis-benchmark is missing: apt install redis-tools")
    chosen = [one for one in WORKLOADS if _is_chosen(one, options)]
    if not chosen:
        sys.exit(f"no such workload; choose from: {', '.join(one.name for one in WORKLOADS)}")
    names = _names_of(chosen, options)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that the exit stack ends the started processes
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
        "--only",
        action="append",
        default=[],
        metavar="WORKLOAD",
        help="a workload, or the first part of its name (set for set-1x1); may be repeated",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="measure only this target and direct; may be repeated",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="measure this address too; may be repeated",
    )
    parser.add_argument("--rounds", type=int, default=0, help="default: 7, with --quick 3")
    parser.add_argument(
        "--scale",
        type=float,
        default=0.0,
        help="multiplies the numbers of requests; default: 1, with --quick 0.3",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results", help="the directory for the report"
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
    wanted = {name for one in chosen if one.load != "start" for name in (one.targets or MAIN)}
    wanted.add("direct")
    return wanted & {"direct", *options.target} if options.target else wanted


def _prepare(field: targets.Field) -> None:
    """Prepare the keys that the traffic needs."""
    with field.redis.client() as client:
        client.flushall()
        client.xgroup_create(traffic.EVENTS, traffic.GROUP, id="$", mkstream=True)


def _measure(field: targets.Field, chosen: list[Workload], options: argparse.Namespace) -> Cells:
    peers = {peer.partition("=")[0] for peer in options.peer}
    cells: Cells = {}
    for workload in chosen:
        print(f"\n{workload.text}", flush=True)
        if workload.load == "start":
            cells |= _starts(field, workload, options.rounds)
            print(results.table(workload, [], cells), flush=True)
            continue
        measured = [
            target
            for name, target in field.targets.items()
            if name in (workload.targets or MAIN) or name in peers
        ]
        rounds: dict[str, list[Round]] = {target.name: [] for target in measured}
        failures: dict[str, str] = {}
        for _ in range(1 if workload.load == "idle" else options.rounds):
            for target in measured:
                if target.name in failures:
                    continue
                outcome = _one(field, target, workload, options.scale)
                if isinstance(outcome, str):
                    failures[target.name] = outcome
                else:
                    rounds[target.name].append(outcome)
        for target in measured:
            cells[workload.name, target.name] = Cell(
                tuple(rounds[target.name]), failures.get(target.name, "")
            )
        print(results.table(workload, [target.name for target in measured], cells), flush=True)
        if workload.load not in ("set", "get"):
            _prepare(field)  # large values and keys of other types would disturb the next workload
    return cells


def _starts(field: targets.Field, workload: Workload, rounds: int) -> Cells:
    """The starts as rounds: the time in `p50`, in milliseconds, and the CPU time in `cpu`, too."""
    return {
        (workload.name, kind): Cell(
            tuple(Round(0, one.seconds * 1e3, 0, 0, one.cpu * 1e3, 0, 0, 0) for one in measured)
        )
        for kind, measured in starts(field.redis, field.folder, rounds).items()
    }


def _one(field: targets.Field, target: targets.Target, workload: Workload, scale: float) -> Round | str:
    if workload.load != "idle":
        return run(field, target, workload, scale)
    if not target.pid:
        return "its memory is unknown"
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
    parts += ["## CubeSandbox's commonest commands", results.means(cells)]
    pictures = plots.draw(chosen, names, cells, stem)
    parts += [f"![{path.stem}]({path.name})" for path in pictures]
    for workload in chosen:
        parts += [f"## {workload.name}: {workload.text}", results.table(workload, names, cells)]
    report = stem.with_name(f"{stem.name}.md")
    report.write_text("\n\n".join(parts) + "\n")
    print(f"\n{results.goals(cells)}\n\n{results.means(cells)}\n\n{report}")
    if not pictures:
        print("no plots: pip install 'keyfence[bench]'")


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
