"""File descriptors for clients, and for operators beside them.

Rule: every accepted connection can be served. A client needs a connection of its own and one to Redis, so
keyfence accepts only as many as there are descriptors for both. It raises the process's limit first, as far
as the system allows. The admin and metrics listeners have descriptors of their own: clients cannot take
these, and the listeners cannot take the clients'.

Redis does the same with `maxclients` (server.c, adjustOpenFilesLimit).
"""

from __future__ import annotations

import resource

from keyfence.admin.bounds import ARRIVING as ADMIN_ARRIVING
from keyfence.admin.bounds import CONNECTIONS as ADMIN

PER_CLIENT = 2
RESERVED = 64  # for listeners, logs, the probe and libraries
ADMIN_SHARE = 16  # with few descriptors, an admin listener has one of 16
ADMIN_LEAST = 4


def room_for(connections: int, admin_listeners: int = 0) -> int:
    """Raise the limit as far as needed and possible. Returns the number of clients that there is room for, at
    most `connections` and at least one."""
    needed = connections * PER_CLIENT + RESERVED + admin_listeners * (ADMIN + ADMIN_ARRIVING)
    soft = _raised(needed)
    if soft == resource.RLIM_INFINITY:
        return connections
    kept = RESERVED + admin_listeners * (_admin_room(soft) + ADMIN_ARRIVING)
    return max(min(connections, (soft - kept) // PER_CLIENT), 1)


def admin_room(admin_listeners: int) -> int:
    """The number of connections that each admin listener may have."""
    return _admin_room(_raised(RESERVED + admin_listeners * (ADMIN + ADMIN_ARRIVING)))


def _admin_room(limit: int) -> int:
    if limit == resource.RLIM_INFINITY:
        return ADMIN
    return max(min(limit // ADMIN_SHARE, ADMIN), ADMIN_LEAST)


def _raised(needed: int) -> int:
    """The process's limit, after raising it as far as needed and possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # the present limit must suffice
    return soft
