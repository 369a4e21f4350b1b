"""Turns rounds into tables: medians with their spread, and a comparison with the goals.

Rule: only ratios within one run count. A missed goal is reported as clearly as a goal that is reached.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.rows import COMMON, OTHERS, SEVERAL, WRITTEN
from benchmarks.workloads import Round, Workload


class Cell(NamedTuple):
    """All rounds of one workload with one target. `failure` says why there are none."""

    rounds: tuple[Round, ...]
    failure: str = ""

    def median(self, of: str) -> float:
        return statistics.median(getattr(one, of) for one in self.rounds)

    def spread(self, of: str) -> tuple[float, float]:
        values = [getattr(one, of) for one in self.rounds]
        return min(values), max(values)


Cells = dict[tuple[str, str], Cell]  # by workload and target


class Goal(NamedTuple):
    """A goal for a ratio: at least or at most `bound`."""

    text: str
    value: Callable[[Cells], float]
    bound: float
    at_least: bool

    def line(self, cells: Cells) -> str:
        try:
            value = self.value(cells)
        except (KeyError, statistics.StatisticsError, ZeroDivisionError):
            return f"| {self.text} | {self._sign} {self.bound} | not measured | |"
        reached = value >= self.bound if self.at_least else value <= self.bound
        return f"| {self.text} | {self._sign} {self.bound} | {value:.2f} | {'yes' if reached else '**no**'} |"

    @property
    def _sign(self) -> str:
        return "≥" if self.at_least else "≤"


def _ratio(workload: str, other: str, of: str = "rate", target: str = "keyfence") -> Callable[[Cells], float]:
    return lambda cells: cells[workload, target].median(of) / cells[workload, other].median(of)


def _across(first: tuple[str, str], second: tuple[str, str], of: str = "rate") -> Callable[[Cells], float]:
    return lambda cells: cells[first].median(of) / cells[second].median(of)


def _several(name: str, single: str) -> Callable[[Cells], float]:
    """The CPU time of a command with several keys, of that of as many single commands."""
    return lambda cells: (
        cells[f"several-{name}", "keyfence"].median("cpu")
        / (SEVERAL * cells[single, "keyfence"].median("cpu"))
    )


def _mean(of: str, other: str, target: str = "keyfence") -> Callable[[Cells], float]:
    """The geometric mean of a ratio over CubeSandbox's commonest commands."""
    return lambda cells: statistics.geometric_mean(
        _ratio(row, other, of, target)(cells) for row in COMMON_ROWS
    )


def _least(rows: Sequence[str], other: str) -> Callable[[Cells], float]:
    """The lowest ratio of throughputs among these rows."""
    return lambda cells: min(_ratio(row, other)(cells) for row in rows)


COMMON_ROWS = [f"common-{name}-50x{pipeline}" for pipeline in (1, 16) for name in COMMON]
PIPELINED_ROWS = [row for row in COMMON_ROWS if row.endswith("x16")]
_QUIET = {"violations": "keyfence", "reloads": "2000-entries", "slow-reader": "keyfence"}

GOALS = (
    Goal("50 clients × 1: throughput, of direct", _ratio("set-50x1", "direct"), 0.9, True),
    Goal("50 clients × 1: throughput, of twemproxy", _ratio("set-50x1", "twemproxy"), 1.15, True),
    Goal("50 clients × 1: throughput, of HAProxy", _ratio("set-50x1", "haproxy"), 1.7, True),
    Goal(
        "50 clients × 1: CPU per command, of twemproxy", _ratio("set-50x1", "twemproxy", "cpu"), 0.85, False
    ),
    Goal("500 clients × 1: throughput, of direct", _ratio("set-500x1", "direct"), 0.95, True),
    Goal("50 clients × 16: throughput, of direct", _ratio("set-50x16", "direct"), 0.95, True),
    Goal("50 clients × 100: throughput, of direct", _ratio("set-50x100", "direct"), 0.95, True),
    Goal(
        "50 clients × 16: CPU per command, of twemproxy", _ratio("set-50x16", "twemproxy", "cpu"), 0.35, False
    ),
    Goal(
        "50 clients × 100: CPU per command, of twemproxy",
        _ratio("set-50x100", "twemproxy", "cpu"),
        0.2,
        False,
    ),
    # One client waits for each reply, so its rate is the inverse of its mean latency.
    Goal(
        "1 client: mean latency, of HAProxy",
        _across(("set-1x1", "haproxy"), ("set-1x1", "keyfence")),
        1.1,
        False,
    ),
    Goal(
        "5 % refused: throughput, of the same with none refused",
        _across(("refused-5", "keyfence"), ("sets", "keyfence")),
        0.9,
        True,
    ),
    Goal(
        "every command violates an observed rule: throughput, of no violations",
        _across(("violated", "observe"), ("observed", "observe")),
        0.7,
        True,
    ),
    Goal(
        "every key is unknown (observed): throughput, of no violations",
        _across(("strange", "observe"), ("observed", "observe")),
        0.7,
        True,
    ),
    Goal("pipelines of 16 in MULTI: throughput, of direct", _ratio("multi-16", "direct"), 0.8, True),
    Goal(
        "2,000 entries: throughput, of 12 entries",
        _across(("entries", "2000-entries"), ("entries", "keyfence")),
        0.97,
        True,
    ),
    Goal(
        "an idle connection, KiB", lambda cells: cells["idle-5000", "keyfence"].median("resident"), 3.0, False
    ),
    Goal(
        "two workers: CPU per command, of one worker",
        _across(("workers", "2-workers"), ("workers", "keyfence"), "cpu"),
        1.1,
        False,
    ),
    Goal("the commonest commands: throughput, of direct", _mean("rate", "direct"), 0.9, True),
    Goal(
        "the commonest commands, 16 a round trip, the lowest: throughput, of direct",
        _least(PIPELINED_ROWS, "direct"),
        0.9,
        True,
    ),
    Goal("the commonest commands: throughput, of twemproxy", _mean("rate", "twemproxy"), 1.0, True),
    Goal("the same, the lowest of the rows", _least(COMMON_ROWS, "twemproxy"), 0.9, True),
    Goal("the commonest commands: CPU per command, of twemproxy", _mean("cpu", "twemproxy"), 0.55, False),
    *(
        Goal(
            f"{text}, 16 a round trip: CPU, of a plain SET",
            _across((row, target), ("set-50x16", "keyfence"), "cpu"),
            1.25,
            False,
        )
        for text, row, target in (
            ("HSET of a listed field", "common-hset-50x16", "keyfence"),
            ("SET … PX of listed words", "common-set-px-50x16", "keyfence"),
            *(
                (f"{name.upper()} with forms", f"written-{name}", target)
                for name, (_, target) in WRITTEN.items()
            ),
        )
    ),
    Goal(
        "with a candidate policy: CPU, of without",
        _across(("candidate", "candidate"), ("candidate", "keyfence"), "cpu"),
        1.3,
        False,
    ),
    *(
        Goal(
            f"{name.upper()} of {SEVERAL} keys: CPU, of {SEVERAL} single ones",
            _several(name, one),
            1.0,
            False,
        )
        for name, one in (("mset", "set-50x16"), ("mget", "get-50x16"), ("del", "several-del-1"))
    ),
    *(
        Goal(
            f"{name.upper()}: CPU, of a plain SET",
            _across((f"others-{name}", "others"), ("others-set", "others"), "cpu"),
            2.0,
            False,
        )
        for name in OTHERS
        if name != "set"
    ),
    *(
        Goal(
            f"a policy that asks for much, {text}: CPU, of a simple one",
            _across((f"rich-{name}", "rich"), ("rich-plain", "plain"), "cpu"),
            bound,
            False,
        )
        for name, text, bound in (
            ("same", "nothing broken", 1.1),
            ("should", "a rule under should broken", 2.0),
            ("waived", "all waived", 2.0),
        )
    ),
    Goal(
        "mode: dedicated: CPU per command, of HAProxy",
        _ratio("set-50x1", "haproxy", "cpu", "dedicated"),
        1.05,
        False,
    ),
    Goal(
        "a message to a subscriber: CPU, of HAProxy",
        _ratio("fan-out", "haproxy", "cpu", "others"),
        1.1,
        False,
    ),
    *(
        Goal(f"half the throughput: {text}, of HAProxy", _ratio("paced", "haproxy", of), bound, False)
        for of, text, bound in (("p50", "p50", 1.1), ("p99", "p99", 1.2), ("p999", "p99.9", 1.5))
    ),
    *(
        Goal(
            f"p99 beside {beside.replace('-', ' ')}, of its own quiet p99",
            _across((f"paced-{beside}", target), ("paced", target), "p99"),
            1.5,
            False,
        )
        for beside, target in _QUIET.items()
    ),
    Goal("the start, seconds", lambda cells: cells["start", "cubesandbox"].median("p50") / 1e3, 0.4, False),
    Goal(
        "the start with 2,000 entries, seconds",
        lambda cells: cells["start", "2,000 entries"].median("p50") / 1e3,
        1.0,
        False,
    ),
)


def goals(cells: Cells) -> str:
    lines = ["| what | goal | result | reached |", "|---|---|---|---|"]
    lines += [goal.line(cells) for goal in GOALS]
    return "\n".join(lines)


def means(cells: Cells) -> str:
    """Returns the geometric means over CubeSandbox's commonest commands, for each target that has all."""
    lines = ["| target | throughput, of direct | CPU, of keyfence |", "|---|---|---|"]
    for name in dict.fromkeys(target for _, target in cells):
        try:
            rate = _mean("rate", "direct", name)(cells)
            cpu = _mean("cpu", "keyfence", name)(cells) if name != "direct" else 0.0
        except (KeyError, statistics.StatisticsError, ZeroDivisionError):
            continue
        lines.append(f"| {name} | {rate:.2f} | {f'{cpu:.2f}' if cpu else ''} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured."


def table(workload: Workload, names: Sequence[str], cells: Cells) -> str:
    """Returns the result of one workload as a Markdown table."""
    if workload.load == "idle":
        return _idle_table(workload, names, cells)
    if workload.load == "start":
        return _start_table(workload, cells)
    lines = [
        "| target | commands/s (lowest to highest) | of direct | p50 ms | p99 ms | p99.9 ms "
        "| CPU µs | Redis CPU µs | MiB | errors |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    direct = cells.get((workload.name, "direct"))
    for name in names:
        cell = cells.get((workload.name, name))
        if cell is None:
            continue
        if not cell.rounds:
            lines.append(f"| {name} | – ({cell.failure}) | | | | | | | | |")
            continue
        lowest, highest = cell.spread("rate")
        share = f"{cell.median('rate') / direct.median('rate'):.2f}" if direct and direct.rounds else ""
        cpu = f"{cell.median('cpu'):.2f}" if cell.median("resident") else "–"
        memory = f"{cell.median('resident'):.0f}" if cell.median("resident") else "–"
        errors = f"{100 * cell.median('errors'):.1f} %" if cell.median("errors") else ""
        lines.append(
            f"| {name} | {cell.median('rate'):,.0f} ({lowest:,.0f} to {highest:,.0f}) | {share} "
            f"| {cell.median('p50'):.3f} | {cell.median('p99'):.3f} | {cell.median('p999'):.3f} "
            f"| {cpu} | {cell.median('redis_cpu'):.2f} | {memory} | {errors} |"
        )
    return "\n".join(lines)


def _idle_table(workload: Workload, names: Sequence[str], cells: Cells) -> str:
    lines = ["| target | KiB per connection |", "|---|---|"]
    for name in names:
        cell = cells.get((workload.name, name))
        if cell is not None:
            lines.append(f"| {name} | {cell.median('resident'):.1f} |" if cell.rounds else f"| {name} | – |")
    return "\n".join(lines)


def _start_table(workload: Workload, cells: Cells) -> str:
    lines = ["| start | seconds (lowest to highest) | CPU seconds |", "|---|---|---|"]
    for (name, kind), cell in cells.items():
        if name == workload.name:
            lowest, highest = (bound / 1e3 for bound in cell.spread("p50"))
            seconds, cpu = cell.median("p50") / 1e3, cell.median("cpu") / 1e3
            lines.append(f"| {kind} | {seconds:.2f} ({lowest:.2f} to {highest:.2f}) | {cpu:.2f} |")
    return "\n".join(lines)
