"""Fixtures of the audit's tests: a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[Cluster]:
    if cluster_binary() is None:
        pytest.skip(NO_CLUSTER)
    with running_cluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(_shared_cluster: Cluster) -> Cluster:
    """An empty cluster of three masters; the first one has a replica. Tests share it."""
    for server in _shared_cluster.masters:
        with server.client() as client:
            client.flushall()
    return _shared_cluster
