"""Plays schedules: `python -m tests.simulation --seed N` one of them, `--minutes M` new ones."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator

from tests.simulation.journal import Broken
from tests.simulation.schedule import Schedule

MOST_REPORTS = 3  # of broken schedules in full; of the others, the first line of each


def played(seed: int) -> str:
    """The report of a schedule; empty if all invariants hold."""
    try:
        Schedule(seed).run()
    except Broken as exc:
        return str(exc)
    return ""


def searched(seeds: Iterator[int], end: float) -> tuple[int, list[tuple[int, str]]]:
    """Play seeds until `end`. Returns how many, and those that broke with their reports."""
    count, broken = 0, []
    for seed in seeds:
        count += 1
        if report := played(seed):
            broken.append((seed, report))
        if time.monotonic() > end:
            break
    return count, broken


def _search(arguments: tuple[int, float]) -> tuple[int, list[tuple[int, str]]]:
    first, end = arguments
    seeds = random.Random(first)
    return searched(iter(lambda: seeds.getrandbits(48), None), end)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this schedule only")
    parser.add_argument("--minutes", type=float, default=1.0, help="search for so long (1)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each processor)"
    )
    options = parser.parse_args()
    if options.seed is not None:
        report = played(options.seed)
        print(report or f"seed {options.seed}: all invariants hold")
        return bool(report)
    begun = time.monotonic()
    work = [
        (random.SystemRandom().getrandbits(48), begun + 60 * options.minutes) for _ in range(options.jobs)
    ]
    with multiprocessing.Pool(options.jobs) as pool, contextlib.suppress(KeyboardInterrupt):
        results = pool.map(_search, work)
    count, broken = sum(one for one, _ in results), [one for _, found in results for one in found]
    for number, (_, report) in enumerate(broken):
        print(report if number < MOST_REPORTS else "\n".join(report.splitlines()[:2]), end="\n\n")
    rate = count / (time.monotonic() - begun)
    print(f"{count} schedules, {rate:.0f} a second in {options.jobs} processes, {len(broken)} broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
