"""Failovers in tables that fit in 80 columns."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.failovers.outcomes import CONTROL, THROUGH, Failover, Outcome

TIMES = """\
                           without service    after report    beyond the control
client      path        n   min   med   max      med   max       med     max"""
COUNTS = "client      path      broken lost/confirmed sub max errors of clients"
COLUMNS = 80


def row(failover: Failover) -> str:
    """One failover in one line: each client's time without a confirmed write, through keyfence/as control. A
    star says that the Sentinels failed over more than once."""
    cells = []
    for client in _clients([failover]):
        times = (failover.without_service(client, path) for path in (THROUGH, CONTROL))
        cells.append("/".join("-" if time is None else f"{_ms(time)}" for time in times))
    mark = "*" if failover.switches > 1 else ""
    return f"{failover.kind + mark:10}" + "".join(f"{cell:>14}" for cell in cells)


def head(failovers: Sequence[Failover]) -> str:
    """The line above the rows."""
    return f"{'':10}" + "".join(f"{client:>14}" for client in _clients(failovers))


def summary(failovers: Sequence[Failover]) -> Iterator[str]:
    """The tables of one kind of failover. Times are milliseconds."""
    groups = [(c, p) for c in _clients(failovers) for p in (THROUGH, CONTROL)]
    yield TIMES
    yield from (_times(failovers, client, path) for client, path in groups)
    yield ""
    yield COUNTS
    for client, path in groups:
        yield from _counts(failovers, client, path)


def _times(failovers: Sequence[Failover], client: str, path: str) -> str:
    outcomes = _of(failovers, client, path)
    without = [one.without_service for one in outcomes]
    if not without:
        return f"{client:12}{path:9}{0:4}"
    report = [one.after_report for one in outcomes]
    line = f"{client:12}{path:9}{len(outcomes):4}{_ms(min(without)):6}"
    line += f"{_ms(statistics.median(without)):6}{_ms(max(without)):6}"
    line += f"{_ms(statistics.median(report)):9}{_ms(max(report)):6}"
    if path == THROUGH and (beyond := _beyond(failovers, client)):
        line += f"{_ms(statistics.median(beyond)):+10}{_ms(max(beyond)):+8}"
    return line


def _beyond(failovers: Sequence[Failover], client: str) -> list[float]:
    """How much longer it took through keyfence than as the control, in the same failover."""
    pairs = [[one.without_service(client, path) for path in (THROUGH, CONTROL)] for one in failovers]
    return [through - control for through, control in pairs if through is not None and control is not None]


def _counts(failovers: Sequence[Failover], client: str, path: str) -> Iterator[str]:
    outcomes = _of(failovers, client, path)
    if not outcomes:
        return
    broken = sum(bool(one.faults_of(outcome)) for one in failovers for outcome in _of([one], client, path))
    shares = f"{sum(one.lost for one in outcomes)}/{sum(one.confirmed for one in outcomes)}"
    errors: Counter[str] = Counter()
    for one in outcomes:
        errors.update(one.errors)
    start = f"{client:12}{path:9}{broken:7}{shares:>14}{_ms(max(one.subscriber for one in outcomes)):8} "
    text = ", ".join(f"{name} {number}" for name, number in errors.most_common()) or "none"
    indent = " " * len(start)
    yield textwrap.fill(text, COLUMNS, initial_indent=start, subsequent_indent=indent, break_long_words=False)


def _of(failovers: Sequence[Failover], client: str, path: str) -> list[Outcome]:
    return [
        one for failover in failovers for one in failover.outcomes if (one.client, one.path) == (client, path)
    ]


def _clients(failovers: Sequence[Failover]) -> list[str]:
    return list(dict.fromkeys(one.client for failover in failovers for one in failover.outcomes))


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
