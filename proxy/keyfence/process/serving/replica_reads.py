"""Reads from replicas, as one process is configured for them.

Rule: which replicas there are is fixed when the process starts, as the upstream is, or a cluster's topology
says it; which services read there changes with the configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from keyfence.config.settings import Settings
from keyfence.config.upstream import SENTINEL
from keyfence.session.conversation.reads import READS
from keyfence.telemetry.counters import Counters
from keyfence.upstream.health import Upstream
from keyfence.upstream.replicas.replicas import Replicas
from keyfence.upstream.sentinel.replicas import named_replicas
from keyfence.upstream.single.replicas import ShardReplicas


def replicas_of(settings: Settings, upstream: Upstream) -> Replicas | None:
    """The replicas of the upstream; None: nothing is read from any."""
    if settings.replicas != SENTINEL:
        if not settings.replicas or not settings.shared_connections:
            return None
        return Replicas(upstream, settings.shared_connections, READS, settings.replicas)
    sentinels = upstream.address.sentinels
    if sentinels is None:
        return None

    async def find() -> Sequence[tuple[str, int]] | None:
        return await named_replicas(upstream, sentinels)

    return Replicas(upstream, settings.shared_connections, READS, find=find)


def reads_from_replicas(settings: Settings) -> bool:
    """Whether any service reads from replicas."""
    return any(seconds is not None for seconds in settings.after_write.values())


def report(replicas: Replicas | ShardReplicas, counters: Counters) -> None:
    """Report how each replica stands, and what was read there since the last call."""
    now = asyncio.get_running_loop().time()
    counters.replicas_stand(
        ((one.shown, not one.why_not(now), one.behind, one.take_sent()) for one in replicas),
        replicas.take_reads().items(),
    )
