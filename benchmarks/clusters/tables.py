"""Changes in tables that fit in 80 columns."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.clusters.outcomes import CONTROL, LISTENERS, ONE_ADDRESS, Change, Outcome

HEAD = """\
                                     ms without service   beyond control
client       path        commands      med   p95    max      med     max broken"""
COLUMNS = 80
PATHS = (ONE_ADDRESS, LISTENERS, CONTROL)


def row(change: Change) -> str:
    """One change in one line: on each path the longest time without service, and how many commands."""
    cells = []
    for path in PATHS:
        of_path = [one for one in change.outcomes if one.path == path]
        longest = max(one.without_service for one in of_path)
        cells.append(f"{_ms(longest):9} ms {sum(one.commands for one in of_path):9}")
    return f"{change.kind:9}" + "".join(cells)


def head() -> str:
    """The line above the rows."""
    return f"{'':9}" + "".join(f"{path:>22}" for path in PATHS)


def summary(changes: Sequence[Change]) -> Iterator[str]:
    """The table of one kind of change."""
    yield HEAD
    libraries = dict.fromkeys(one.library for change in changes for one in change.outcomes)
    for library in libraries:
        for path in PATHS:
            yield from _rows(changes, library, path)


def _rows(changes: Sequence[Change], library: str, path: str) -> Iterator[str]:
    pairs = [
        (change, one)
        for change in changes
        for one in change.outcomes
        if (one.library, one.path) == (library, path)
    ]
    outcomes: list[Outcome] = [one for _, one in pairs]
    times = sorted(one.without_service for one in outcomes)
    line = f"{library:13}{path:12}{sum(one.commands for one in outcomes):9}"
    line += f"{_ms(statistics.median(times)):9}{_ms(times[int(0.95 * (len(times) - 1))]):6}{_ms(times[-1]):7}"
    if path != CONTROL:
        beyond = [change.beyond(one) for change, one in pairs]
        broken = sum(bool(change.faults_of(one)) for change, one in pairs)
        line += f"{_ms(statistics.median(beyond)):+9}{_ms(max(beyond)):+8}{broken:7}"
    yield line
    errors: Counter[str] = Counter()
    for one in outcomes:
        errors.update(one.errors)
    if errors:
        text = ", ".join(f"{name} {number}" for name, number in errors.most_common())
        yield textwrap.fill(text, COLUMNS, initial_indent=" " * 25, subsequent_indent=" " * 25)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
