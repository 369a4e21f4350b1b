"""Why keyfence closes a client's connection, as labels of `keyfence_closures_total`.

Rule: the labels are a closed set. A reason is a text for people; the beginning of the text decides its label,
and this table has all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.telemetry.counters import OTHER


class Closure(NamedTuple):
    """A label, and the beginning of every reason that has it."""

    label: str
    beginning: str
    meaning: str


# The first row whose beginning fits decides.
CLOSURES = (
    Closure("quit", "QUIT", "the client sent QUIT"),
    Closure("protocol_error", "protocol error", "a request is not RESP, or exceeds a limit"),
    Closure("http", "HTTP", "the client speaks HTTP"),
    Closure("identity", "identity", "keyfence cannot know which user Redis takes the client for"),
    Closure("upstream_protocol", "upstream sent", "Redis sent a reply that cannot be passed on"),
    Closure("upstream_lost", "upstream", "the connection to Redis is lost or cannot be used"),
    Closure("shutdown", "shutdown", "the process ends"),
    Closure("idle", "idle", "limits.idle"),
    Closure("request_time", "request_time", "limits.request_time"),
    Closure("service_connections", "service_connections", "limits.connections_per_service, after AUTH"),
    Closure("output", "output", "limits.client_output"),
    Closure("half_closed", "half_closed", "the client sent its end and waited too long for replies"),
)


def closure_label(reason: str) -> str:
    """The label of a reason; `other` for a reason that the table does not have."""
    for one in CLOSURES:
        if reason.startswith(one.beginning):
            return one.label
    return OTHER
