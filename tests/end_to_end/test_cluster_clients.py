"""Clients at work while a cluster changes: the short form of `python -m benchmarks.clusters`.

Through keyfence, by one address and by its listeners, they see what a control sees that speaks to the nodes
itself, and no more.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.clusters.measuring import installed, measured
from benchmarks.clusters.outcomes import CONTROL, read
from benchmarks.clusters.tables import COLUMNS, head, row, summary
from benchmarks.raw import write
from tests.cluster import NO_CLUSTER, cluster_binary
from tests.servers import PATIENCE_SECONDS

# node-redis 5.9 as a client for clusters waits for a node that has died until it is back.
LIBRARIES = {
    "reshard": ["redis-py 2", "ioredis", "node-redis 3"],
    "graceful": ["redis-py 3", "node-redis 2"],
    "crash": ["redis-py 2", "redis-cli"],
    "stop": ["ioredis"],
}

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_clients_see_no_more_than_a_control(kind: str, tmp_path: Path) -> None:
    libraries = [one for one in LIBRARIES[kind] if one in installed()]
    changes = measured(kind, tmp_path, libraries=libraries, back=PATIENCE_SECONDS)
    change = next(changes)
    changes.close()
    assert list(change.faults(timed=False)) == []
    assert all(one.commands for one in change.outcomes if one.path != CONTROL)

    write(tmp_path / "raw", change)
    assert read((tmp_path / "raw").read_text().splitlines()) == [change]
    lines = itertools.chain.from_iterable(text.splitlines() for text in summary([change]))
    assert max(map(len, [head(), row(change), *lines])) <= COLUMNS
