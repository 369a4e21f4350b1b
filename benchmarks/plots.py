"""Plots the results as bars for each target, with one picture for each kind of number.

Rule: a bar is a median, and the line on it is the spread. The plots show only numbers from the tables.
They need matplotlib (`pip install 'keyfence[bench]'`); without it there are only tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Cell, Cells
from benchmarks.workloads import Workload

PICTURES = (
    ("throughput", "rate", "commands per second"),
    ("cpu", "cpu", "CPU µs of the proxy for each command"),
    ("latency", "p99", "p99 latency, ms"),
)


def draw(workloads: Sequence[Workload], names: Sequence[str], cells: Cells, stem: Path) -> list[Path]:
    """Writes the pictures beside `stem`. Returns their paths; none if matplotlib is missing."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return []
    shown = [one for one in workloads if one.load not in ("idle", "start") and (one.name, "direct") in cells]
    if not shown:
        return []
    written = []
    for kind, of, label in PICTURES:
        targets = [name for name in names if kind != "cpu" or name != "direct"]
        figure, axes = pyplot.subplots(figsize=(max(7, 1.7 * len(shown)), 4.5), layout="constrained")
        width = 0.8 / len(targets)
        for index, name in enumerate(targets):
            found = [(at, cells.get((one.name, name))) for at, one in enumerate(shown)]
            measured = [(at, cell) for at, cell in found if cell is not None and cell.rounds]
            axes.bar(
                [at + (index - len(targets) / 2 + 0.5) * width for at, _ in measured],
                [cell.median(of) for _, cell in measured],
                width,
                yerr=_errors([cell for _, cell in measured], of),
                label=name,
                error_kw={"linewidth": 0.7},
            )
        axes.set_xticks(range(len(shown)), [one.name for one in shown], rotation=30, ha="right")
        axes.set_ylabel(label)
        if kind != "throughput":
            axes.set_yscale("log")
        axes.legend(fontsize="small", ncols=3)
        path = stem.with_name(f"{stem.name}-{kind}.png")
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
        written.append(path)
    return written


def _errors(cells: Sequence[Cell], of: str) -> list[list[float]]:
    below = [cell.median(of) - cell.spread(of)[0] for cell in cells]
    above = [cell.spread(of)[1] - cell.median(of) for cell in cells]
    return [below, above]
