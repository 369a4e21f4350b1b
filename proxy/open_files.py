"""File descriptors for as many clients as there may be.

Rule: what is accepted can be served. A client costs its own connection and one to Redis, so no more come in
than there are descriptors for both; where the system allows it, the process's limit is raised first.

Redis does the same with `maxclients` (server.c, adjustOpenFilesLimit).
"""

from __future__ import annotations

import resource

PER_CLIENT = 2
RESERVED = 64  # listeners, the admin's connections, logs, the probe, what libraries open


def room_for(connections: int) -> int:
    """Raise the limit as far as needed and possible; return how many connections there is room for, at most
    `connections` and at least one."""
    needed = connections * PER_CLIENT + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # then what there is has to do
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(min(connections, (soft - RESERVED) // PER_CLIENT), 1)
