"""The keys of a Redis, or of an RDB file, as a source of `keyfence draft`.

Rule: Redis is only read, at the pace of an audit, and no more keys than a draft can use.
"""

from __future__ import annotations

import itertools

from keyfence.audit.held import held_keys
from keyfence.audit.scan import in_order
from keyfence.audit.servers.links import CannotAsk, LinkError
from keyfence.audit.servers.nodes import Topology, inspect
from keyfence.authoring.learn.seen import MAX_KEYS, Evidence
from keyfence.cli.keyspace.asked import RATE, is_file
from keyfence.cli.keyspace.progress import watching
from keyfence.cli.keyspace.source import opened, settings_of
from keyfence.cli.terminal.output import fail, say
from keyfence.policy.units import counted


def add_keys(evidence: Evidence, source: str) -> None:
    """Adds what a Redis or an RDB file holds. A source that cannot be read ends the command."""
    settings = settings_of("", "", source, needs_policy=False)
    left_out: set[bytes] = set()
    try:
        with opened(settings, source) as endpoint, watching("keys") as watch:
            servers = in_order(map(inspect, Topology(endpoint).masters()))
            rate = 0 if is_file(source) else RATE
            for one in itertools.islice(held_keys(servers, rate, watch, left_out.add), MAX_KEYS):
                evidence.add_key(one.key, one.database, one.type, one.ttl, one.fields)
    except (LinkError, CannotAsk) as exc:
        fail(str(exc))
    if left_out:
        say(f"keyfence: {counted(len(left_out), 'key')} left out, because their hash slots move", err=True)
    held = sum(sum(server.keys.values()) for server in servers)
    if held > MAX_KEYS:
        say(f"keyfence: the first {MAX_KEYS:,} of {counted(held, 'key')} are read, in no order", err=True)
