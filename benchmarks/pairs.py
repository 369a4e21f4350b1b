"""Measures what a setting of keyfence costs: `python -m benchmarks.pairs --with 'findings: …' --without …`.

Rule: two processes of one build differ by several per cent, because their memory lies elsewhere. So a setting
is measured in many pairs of new processes. Within a pair both take turns, in an order that changes, and only
the ratio of their CPU times per command counts. The result is the median of the ratios, with the interval
that holds the median with 95 % certainty (order statistics).

Without options it compares a keyfence that keeps findings with one that does not.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import targets
from benchmarks.processes import machine, nanoseconds, tree
from benchmarks.rows import WORKLOADS
from benchmarks.targets import Field, Target
from benchmarks.workloads import Workload, run
from tests.servers import running_redis

ROUNDS = 4  # of each workload with each process of a pair
SCALE = 0.3  # of the workloads' requests


def main() -> None:
    options = _options()
    quick = [one for one in WORKLOADS if one.is_quick and one.name != "entries"]
    chosen = [one for one in quick if not options.only or one.name in options.only]
    ratios: dict[str, list[float]] = {one.name: [] for one in chosen}
    print(machine(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfence-pairs-")))
        redis = stack.enter_context(running_redis(tcp=True))
        for pair in range(options.pairs):
            field = Field(redis, folder)
            with contextlib.ExitStack() as started:
                given = {"with": options.with_, "without": options.without}
                # The process that starts first has no advantage over all pairs.
                for name in sorted(given, reverse=pair % 2 == 0):
                    for rules in ("enforce", "observe"):
                        targets.start_keyfence(
                            started, field, f"{name}-{rules}", "", rules=rules, more=given[name]
                        )
                for workload in chosen:
                    ratios[workload.name].append(_ratio(field, workload, options.rounds, options.scale))
            print(f"pair {pair + 1} of {options.pairs}", flush=True)
    for name, found in ratios.items():
        low, high = interval(found)
        middle = statistics.median(found)
        print(f"{name:12} {middle:6.3f}  [{low:.3f}, {high:.3f}]  {' '.join(f'{one:.3f}' for one in found)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("--with", dest="with_", default="", help="lines of the configuration of one")
    parser.add_argument("--without", default="findings: none", help="lines of the configuration of the other")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes; default: 10")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each pair; default: {ROUNDS}")
    parser.add_argument("--scale", type=float, default=SCALE, help=f"of the requests; default: {SCALE}")
    parser.add_argument("--only", action="append", default=[], metavar="WORKLOAD", help="may be repeated")
    return parser.parse_args()


def _ratio(field: Field, workload: Workload, rounds: int, scale: float) -> float:
    """The CPU time per command of the process with the setting, of that of the one without."""
    rules = "observe" if "observe" in workload.targets else "enforce"
    pair = [field.targets[f"with-{rules}"], field.targets[f"without-{rules}"]]
    for target in pair:
        _cpu(field, target, workload, scale / 4)  # a first round fills caches
    spent = {target.name: 0.0 for target in pair}
    for number in range(rounds):
        for target in pair if number % 2 == 0 else reversed(pair):
            spent[target.name] += _cpu(field, target, workload, scale)
    return spent[pair[0].name] / spent[pair[1].name]


def _cpu(field: Field, target: Target, workload: Workload, scale: float) -> float:
    before = nanoseconds(tree(target.pid))
    found = run(field, target, workload, scale)
    if isinstance(found, str):
        raise SystemExit(f"{workload.name} with {target.name}: {found}")
    return (nanoseconds(tree(target.pid)) - before) / 1e9


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval between two of the values that holds their median with at least 95 % certainty; all of
    them if they are too few for that."""
    ordered, number = sorted(values), len(values)
    outside, cut = 0.0, 0
    while outside + math.comb(number, cut) / 2**number <= 0.025 and cut < number // 2:
        outside += math.comb(number, cut) / 2**number
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[number - 1 - cut]


if __name__ == "__main__":
    main()
