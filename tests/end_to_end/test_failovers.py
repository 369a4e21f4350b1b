"""Clients at work during real failovers: the short form of `python -m benchmarks.failovers`."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.failovers.measuring import measure
from benchmarks.failovers.outcomes import KINDS, read
from benchmarks.failovers.tables import COLUMNS, head, row, summary
from benchmarks.raw import write

# What each client calls a lost connection, and an attempt while it has none.
LOST = {
    "redis-py 2": {"ConnectionError"},
    "redis-py 3": {"ConnectionError"},
    "ioredis": {"MaxRetriesPerRequestError", "Stream isn't writeable"},
    "node-redis": {"SocketClosedUnexpectedlyError", "ClientOfflineError", "read ECONNRESET"},
    "redis-cli": {"Server closed the connection"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_client_sees_anything_but_lost_connections(kind: str, tmp_path: Path) -> None:
    failover = measure(kind, tmp_path, control=False)
    assert list(failover.faults()) == []
    for one in failover.outcomes:
        assert one.confirmed > 0
        assert set(one.errors) <= LOST[one.client] | {"READONLY"}, one

    write(tmp_path / "raw", failover)
    assert read((tmp_path / "raw").read_text().splitlines()) == [failover]
    lines = itertools.chain(
        [head([failover]), row(failover)], *(text.splitlines() for text in summary([failover]))
    )
    assert max(map(len, lines)) <= COLUMNS
