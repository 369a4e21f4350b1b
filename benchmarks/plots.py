"""Plots the results as bars for each target, with one picture for each kind of number.

Rule: a bar is a median, and the line on it is the spread. The plots show only numbers from the tables, and of
these only the workloads that compare proxies. They need matplotlib (`pip install 'keyfence[bench]'`); without
it there are only tables.
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
OTHER_PROXIES = ("haproxy", "twemproxy")
_WIDE, _HIGH = 9.0, 0.16  # inches: of a picture, and of a bar


def draw(workloads: Sequence[Workload], names: Sequence[str], cells: Cells, stem: Path) -> list[Path]:
    """Writes the pictures beside `stem`. Returns their paths; none if matplotlib is missing."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return []
    shown = [one for one in workloads if one.load != "idle" and _compares(one, cells)]
    if not shown:
        return []
    written = []
    for kind, of, label in PICTURES:
        targets = [
            name
            for name in names
            if any((one.name, name) in cells for one in shown) and (kind != "cpu" or name != "direct")
        ]
        figure, axes = pyplot.subplots(
            figsize=(_WIDE, 1.5 + _HIGH * len(shown) * (len(targets) + 1)), layout="constrained"
        )
        width = 1 / (len(targets) + 1)
        for index, name in enumerate(targets):
            found = [(at, cells.get((one.name, name))) for at, one in enumerate(shown)]
            measured = [(at, cell) for at, cell in found if cell is not None and cell.rounds]
            axes.barh(
                [at + (index - len(targets) / 2 + 0.5) * width for at, _ in measured],
                [cell.median(of) for _, cell in measured],
                width,
                xerr=_errors([cell for _, cell in measured], of),
                label=name,
                error_kw={"linewidth": 0.7},
            )
        axes.set_yticks(range(len(shown)), [one.name for one in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)  # the first workload on top
        axes.set_xlabel(label)
        axes.set_xscale("log")
        axes.grid(axis="x", linewidth=0.3)
        figure.legend(loc="outside upper center", fontsize="small", ncols=len(targets))
        path = stem.with_name(f"{stem.name}-{kind}.png")
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
        written.append(path)
    return written


def _compares(workload: Workload, cells: Cells) -> bool:
    return any((workload.name, name) in cells for name in OTHER_PROXIES)


def _errors(cells: Sequence[Cell], of: str) -> list[list[float]]:
    below = [cell.median(of) - cell.spread(of)[0] for cell in cells]
    above = [cell.spread(of)[1] - cell.median(of) for cell in cells]
    return [below, above]
