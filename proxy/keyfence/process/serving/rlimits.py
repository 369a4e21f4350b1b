"""File descriptors for as many clients as there may be, and for operators beside them.

Rule: what is accepted can be served. A client costs its own connection and one to Redis, so no more come in
than there are descriptors for both; where the system allows it, the process's limit is raised first. The
listeners that operators and scrapers use have descriptors of their own: neither can take the others'.

Redis does the same with `maxclients` (server.c, adjustOpenFilesLimit).
"""

from __future__ import annotations

import resource

from keyfence.admin.connections import ARRIVING as ADMIN_ARRIVING
from keyfence.admin.connections import CONNECTIONS as ADMIN

PER_CLIENT = 2
RESERVED = 64  # listeners, logs, the probe, what libraries open
ADMIN_SHARE = 16  # where not, each has one of so many descriptors
ADMIN_LEAST = 4


def room_for(connections: int, admin_listeners: int = 0) -> int:
    """Raise the limit as far as needed and possible; return how many connections of clients there is room
    for, at most `connections` and at least one."""
    needed = connections * PER_CLIENT + RESERVED + admin_listeners * (ADMIN + ADMIN_ARRIVING)
    soft = _raised(needed)
    if soft == resource.RLIM_INFINITY:
        return connections
    kept = RESERVED + admin_listeners * (_admin_room(soft) + ADMIN_ARRIVING)
    return max(min(connections, (soft - kept) // PER_CLIENT), 1)


def admin_room(admin_listeners: int) -> int:
    """How many connections each of the admin listeners may have, in a process that serves no clients too."""
    return _admin_room(_raised(RESERVED + admin_listeners * (ADMIN + ADMIN_ARRIVING)))


def _admin_room(limit: int) -> int:
    if limit == resource.RLIM_INFINITY:
        return ADMIN
    return max(min(limit // ADMIN_SHARE, ADMIN), ADMIN_LEAST)


def _raised(needed: int) -> int:
    """The process's limit, raised as far as needed and possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # then what there is has to do
    return soft
