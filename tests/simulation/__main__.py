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
from collections.abc import Sequence
from typing import NamedTuple

from tests.simulation.cluster.schedule import ClusterSchedule
from tests.simulation.journal import Broken
from tests.simulation.schedule import Player, Schedule

KINDS: tuple[type[Player], ...] = (Schedule, ClusterSchedule)
SLICE_SECONDS = 20.0  # after which the count goes on, so that Ctrl-C loses little
MOST_REPORTS = 3  # of broken schedules in full; of the others, the first line of each


class Search(NamedTuple):
    """What to play, and until when."""

    end: float
    kinds: Sequence[type[Player]]


def played(seed: int, kind: type[Player]) -> str:
    """The report of a schedule; empty if all invariants hold."""
    try:
        kind(seed).run()
    except Broken as exc:
        return str(exc)
    return ""


def searched(search: Search) -> tuple[int, list[str]]:
    """Play new seeds for a slice of the time until the end. Returns how many, and the reports of those that
    broke."""
    count, broken = 0, []
    end = min(search.end, time.monotonic() + SLICE_SECONDS)
    while time.monotonic() < end:
        count += 1
        kind = search.kinds[count % len(search.kinds)]
        if report := played(random.SystemRandom().getrandbits(48), kind):
            broken.append(report)
    return count, broken


def _as_a_worker() -> None:
    """Leaves Ctrl-C to the parent, and what keyfence says about thousands of clusters to nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this schedule only")
    parser.add_argument("--minutes", type=float, default=1.0, help="search for so long (1)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each processor)"
    )
    parser.add_argument("--cluster", action="store_true", help="before a cluster (both, by default)")
    parser.add_argument("--one-redis", action="store_true", help="before one Redis with replicas")
    options = parser.parse_args()
    if options.seed is not None:
        report = played(options.seed, ClusterSchedule if options.cluster else Schedule)
        print(report or f"seed {options.seed}: all invariants hold")
        return bool(report)
    begun = time.monotonic()
    seconds, count, broken = 60 * options.minutes, 0, 0
    kinds = [ClusterSchedule] if options.cluster else [Schedule] if options.one_redis else KINDS
    search = Search(begun + seconds, kinds)
    slices = options.jobs * math.ceil(seconds / SLICE_SECONDS)
    with (
        contextlib.suppress(KeyboardInterrupt),
        multiprocessing.Pool(options.jobs, _as_a_worker) as pool,
    ):
        for played_now, broken_now in pool.imap_unordered(searched, [search] * slices):
            count += played_now
            for report in broken_now:
                broken += 1
                print(report if broken <= MOST_REPORTS else "\n".join(report.splitlines()[:2]), end="\n\n")
    rate = count / (time.monotonic() - begun)
    print(f"{count} schedules, {rate:.0f} a second in {options.jobs} processes, {broken} broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
