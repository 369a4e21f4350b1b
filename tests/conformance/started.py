"""What the checks start by themselves: a Redis or a Redis Cluster on loopback, and keyfence in front of it.

Rule: keyfence enforces a policy that allows everything, so that each request is read and authorized.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import running_cluster
from tests.conformance.trial import Place, look
from tests.conformance.wire import Address
from tests.differential.pairs import configuration
from tests.servers import Keyfence, running_redis

_POLICY = Path(__file__).with_name("open")
ONE = "keyfence"
CLUSTER = "keyfence, expose: single"


@contextlib.contextmanager
def before_one_redis(folder: Path) -> Iterator[Place]:
    """keyfence before one Redis."""
    with running_redis(tcp=True) as server:
        path = configuration(folder, server.url, "shared", str(_POLICY))
        with Keyfence("--config", path, expect_stderr="(?s).*") as keyfence:
            assert server.port is not None
            yield look(
                Address(*keyfence.address()), Address("127.0.0.1", server.port), flush=False, disturbs=False
            )


@contextlib.contextmanager
def before_a_cluster(folder: Path, *, disturbs: bool) -> Iterator[Place]:
    """keyfence before a cluster, all of it behind one address."""
    with running_cluster(replicas=1, settings={"cluster-node-timeout": 2000}) as cluster:
        upstream = f'cluster: ["{cluster.url.removeprefix("redis://")}"], expose: single'
        path = configuration(folder, upstream, "shared", str(_POLICY))
        # Its notices are about the nodes that the checks move and end.
        with Keyfence("--config", path, expect_stderr="(?s).*") as keyfence:
            # The node that is asked is not the one that the checks end: that one has a replica.
            port = cluster.masters[1].port
            assert port is not None
            yield look(
                Address(*keyfence.address()), Address("127.0.0.1", port), flush=False, disturbs=disturbs
            )
