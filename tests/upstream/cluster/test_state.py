"""What operators see of a cluster, and whether any client can be served."""

from __future__ import annotations

from collections import Counter

import pytest

from keyfence.upstream.cluster.state import ClusterState, NodeState

from .states import MASTER, REPLICA


@pytest.mark.parametrize(
    ("nodes", "slots", "reasons"),
    [
        ([MASTER, REPLICA], 16384, []),
        ([MASTER._replace(announced=None)], 5000, []),
        ([MASTER], 0, ["no hash slot of the cluster is served"]),
        ([], 0, ["no hash slot of the cluster is served"]),
        (
            [MASTER._replace(announced=""), REPLICA],
            16384,
            ["no master of the cluster has an address of keyfence"],
        ),
    ],
)
def test_a_cluster_that_serves_no_client_is_a_reason_not_to_be_ready(
    nodes: list[NodeState], slots: int, reasons: list[str]
) -> None:
    assert ClusterState(nodes, slots, 1.0, [], Counter()).reasons() == reasons
