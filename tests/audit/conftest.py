"""Fixtures of the audit's tests: a real server, the way to it, and a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from keyfence.audit.servers.nodes import Topology
from keyfence.audit.servers.router import Router
from tests.audit.shop import endpoint
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.servers import RedisServer


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client(decode_responses=True) as one:
        yield one


@pytest.fixture
def router(redis_server: RedisServer) -> Iterator[Router]:
    one = Router(Topology(endpoint(redis_server)))
    yield one
    one.close()


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
