"""Clients at work during real failovers: the short form of `python -m benchmarks.failovers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.failovers import KINDS, measure


@pytest.mark.parametrize("kind", KINDS)
def test_no_client_sees_anything_but_lost_connections(kind: str, tmp_path: Path) -> None:
    [through] = measure(kind, tmp_path, control=False)
    assert through.faults(kind) == []
    assert through.confirmed > 0
    assert set(through.errors) <= {"ConnectionError", "READONLY"}
