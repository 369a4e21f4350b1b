"""Plays schedules: `python -m tests.simulation --seed N` one of them, `--minutes M` new ones."""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import random
import signal
import sys
import time

from tests.simulation.journal import Broken
from tests.simulation.schedule import Schedule

SLICE_SECONDS = 20.0  # after which the count goes on, so that Ctrl-C loses little
MOST_REPORTS = 3  # of broken schedules in full; of the others, the first line of each


def played(seed: int) -> str:
    """The report of a schedule; empty if all invariants hold."""
    try:
        Schedule(seed).run()
    except Broken as exc:
        return str(exc)
    return ""


def searched(end: float) -> tuple[int, list[str]]:
    """Play new seeds for a slice of the time until `end`. Returns how many, and the reports of those that
    broke."""
    count, broken = 0, []
    end = min(end, time.monotonic() + SLICE_SECONDS)
    while time.monotonic() < end:
        count += 1
        if report := played(random.SystemRandom().getrandbits(48)):
            broken.append(report)
    return count, broken


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    seconds, count, broken = 60 * options.minutes, 0, 0
    slices = options.jobs * math.ceil(seconds / SLICE_SECONDS)
    with (
        contextlib.suppress(KeyboardInterrupt),
        multiprocessing.Pool(options.jobs, _leave_ctrl_c_to_the_parent) as pool,
    ):
        for played_now, broken_now in pool.imap_unordered(searched, [begun + seconds] * slices):
            count += played_now
            for report in broken_now:
                broken += 1
                print(report if broken <= MOST_REPORTS else "\n".join(report.splitlines()[:2]), end="\n\n")
    rate = count / (time.monotonic() - begun)
    print(f"{count} schedules, {rate:.0f} a second in {options.jobs} processes, {broken} broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
