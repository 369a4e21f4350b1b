"""The services' traffic since keyfence began, for people.

Rule: rows come from the counters alone. A quantile is the upper bound of its bucket, so it is never too low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keyfence.telemetry.counters import BOUNDS, Counters

_TIMES = ("request", "upstream")


def service_rows(counters: Counters) -> list[dict[str, Any]]:
    """One row for each service that has had a connection or sent a command: its open connections, its
    commands by outcome, the bytes of its clients, and its times, counted by bucket of `counters.BOUNDS`."""
    rows: dict[str, dict[str, Any]] = {}

    def row(service: str) -> dict[str, Any]:
        found = rows.get(service)
        if found is None:
            found = rows[service] = {
                "service": service,
                "clients": 0,
                "forwarded": 0,
                "refused": 0,
                "local": 0,
                "bytes_in": 0,
                "bytes_out": 0,
                **{name: [0] * (len(BOUNDS[name]) + 1) for name in _TIMES},
            }
        return found

    for (service, _), number in counters.connections_open.items():
        row(service)["clients"] += number
    for (service, _, outcome), times in counters.commands.items():
        if outcome in ("forwarded", "refused", "local"):
            row(service)[outcome] += times
    for (service, direction), number in counters.traffic.items():
        if direction in ("client_in", "client_out"):
            row(service)["bytes_in" if direction == "client_in" else "bytes_out"] += number
    for (name, service, bucket), times in counters.timed.items():
        if name in _TIMES:
            row(service)[name][bucket] += times
    return [rows[service] for service in sorted(rows)]


def commands_of(row: Mapping[str, Any]) -> int:
    """All commands of a row."""
    return int(row["forwarded"] + row["refused"] + row["local"])


def quantile(name: str, counts: Sequence[int], share: float) -> float | None:
    """The time in seconds that a share of the counted ones did not exceed; None if nothing was counted. Times
    beyond the last bound are infinite."""
    total = sum(counts)
    if not total:
        return None
    seen = 0
    for bound, number in zip((*BOUNDS[name], float("inf")), counts, strict=True):
        seen += number
        if seen >= share * total:
            return bound
    return float("inf")
