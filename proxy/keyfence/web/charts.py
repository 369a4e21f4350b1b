"""Charts as SVG, made on the server.

Rule: a chart is never the only place of a number. Its label says in words what it shows, and each bar has a
title.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from keyfence.policy.units import counted

HOUR = 3600
DAY = 24 * HOUR
WIDTH, HEIGHT = 720, 120
SERIES = ("refused", "observed", "waived", "late")  # from the bottom


def bars(rows: Sequence[Mapping[str, Any]], begin: float, end: float, label: str) -> Markup:
    """Violations as stacked bars between two times, by hour or more. `rows` have `hour` (Unix seconds) and a
    number for each of SERIES."""
    size = HOUR if end - begin <= 3 * DAY else DAY if end - begin > 14 * DAY else 6 * HOUR
    first = int(begin // size)
    places = max(int(end // size) - first + 1, 1)
    sums: list[dict[str, int]] = [dict.fromkeys(SERIES, 0) for _ in range(places)]
    for row in rows:
        at = int(row["hour"] // size) - first
        if 0 <= at < places:
            for name in SERIES:
                sums[at][name] += row.get(name, 0)
    # Violations that moved to another finding are negative where they were.
    sums = [{name: max(number, 0) for name, number in one.items()} for one in sums]
    total = {name: sum(one[name] for one in sums) for name in SERIES}
    highest = max((sum(one.values()) for one in sums), default=0)
    if not highest:
        return Markup('<p class="about">{}: none.</p>').format(f"{label[:1].upper()}{label[1:]}")
    said = ", ".join(f"{number} {name}" for name, number in total.items() if number)
    width = WIDTH / places
    parts = []
    for index, one in enumerate(sums):
        number = sum(one.values())
        if not number:
            continue
        when = _when((first + index) * size, size)
        detail = ", ".join(f"{one[name]} {name}" for name in SERIES if one[name])
        parts.append(_bar(one, index * width, width, highest, f"{when}: {detail}"))
    axis = _axis(first * size, size, places)
    return Markup(
        '<figure class="chart">'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<line class="axis" x1="0" y1="{}" x2="{}" y2="{}"/>{}</svg>'
        "<figcaption><span>{}</span><span>{}</span><span>{}</span></figcaption></figure>"
    ).format(
        *(WIDTH, HEIGHT, f"{label}: {said}", HEIGHT, WIDTH, HEIGHT),
        Markup("").join(parts),
        *(axis[0], f"{label}: {said}; at most {highest} per {_unit(size)}", axis[1]),
    )


def _bar(one: Mapping[str, int], x: float, width: float, highest: int, title: str) -> Markup:
    pieces, top = [], float(HEIGHT)
    for name in SERIES:
        if not one[name]:
            continue
        height = max(one[name] / highest * (HEIGHT - 6), 1.5)
        top -= height
        pieces.append(
            Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                name, x + 0.5, top, max(width - 1, 0.8), height
            )
        )
    return Markup("<g><title>{}</title>{}</g>").format(title, Markup("").join(pieces))


def sparkline(numbers: Sequence[float], label: str) -> Markup:
    """A small line, for a cell of a table."""
    width, height = 96, 20
    highest = max(numbers, default=0) or 1
    step = width / max(len(numbers) - 1, 1)
    points = " ".join(
        f"{index * step:.1f},{height - 1 - number / highest * (height - 2):.1f}"
        for index, number in enumerate(numbers)
    )
    return Markup(
        '<svg class="sparkline" viewBox="0 0 {} {}" role="img" aria-label="{}"><polyline points="{}"/></svg>'
    ).format(width, height, label, points)


def _axis(begin: float, size: int, places: int) -> tuple[str, str]:
    return _when(begin, size), _when(begin + (places - 1) * size, size)


def _when(at: float, size: int) -> str:
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return f"{when:%Y-%m-%d}" if size == DAY else f"{when:%Y-%m-%d %H:%M}"


def _unit(size: int) -> str:
    return {HOUR: "hour", DAY: "day"}.get(size, counted(size // HOUR, "hour"))
