"""Asks the Sentinels which replicas there are.

Rule: the first Sentinel that answers is believed, because each replica is checked before it is used.
"""

from __future__ import annotations

import contextlib

import hiredis

from keyfence.upstream.address import Sentinels
from keyfence.upstream.health import Upstream

from .answers import replicas_in
from .conversation import conversation


async def named_replicas(upstream: Upstream, sentinels: Sentinels) -> list[tuple[str, int]] | None:
    """The replicas that Sentinels take for sound, each with its port; None: no Sentinel answers."""
    for host, port in sentinels.hosts:
        with contextlib.suppress(OSError):  # also if it refuses keyfence's login
            async with conversation(sentinels, host, port, upstream.tls, upstream.connect_timeout) as talk:
                reply = await talk.call("SENTINEL", "REPLICAS", sentinels.name)
            if not isinstance(reply, hiredis.ReplyError):
                return replicas_in(reply)
    return None
