"""Why a client's connection is closed: the labels of `keyfence_closures_total`, and reasons that carry one.

Rule: the labels are a closed set. A reason is a text for people that carries its label from where it is
given; the text is never read to find the label.
"""

from __future__ import annotations

from typing import NamedTuple


class Closure(NamedTuple):
    """A label, and what it means."""

    label: str
    meaning: str

    def because(self, text: str) -> Reason:
        """A reason with this label."""
        return Reason(self, text)


class Reason(str):
    """A text for people that says why a connection ends. "" does not end it."""

    __slots__ = ("closure",)
    closure: Closure | None  # None: it ends nothing

    def __new__(cls, closure: Closure | None, text: str) -> Reason:
        made = super().__new__(cls, text)
        made.closure = closure
        return made


QUIT = Closure("quit", "the client sent QUIT")
PROTOCOL_ERROR = Closure("protocol_error", "a request is not RESP, or exceeds a limit")
HTTP = Closure("http", "the client speaks HTTP")
IDENTITY = Closure("identity", "keyfence cannot know which user Redis takes the client for")
UPSTREAM_PROTOCOL = Closure("upstream_protocol", "Redis sent a reply that cannot be passed on")
UPSTREAM_LOST = Closure("upstream_lost", "the connection to Redis is lost or cannot be used")
CREDENTIALS = Closure("credentials", "its login at Redis ends, and keyfence cannot renew it")
SHUTDOWN = Closure("shutdown", "the process ends")
IDLE = Closure("idle", "limits.idle")
REQUEST_TIME = Closure("request_time", "limits.request_time")
SERVICE_CONNECTIONS = Closure("service_connections", "limits.connections_per_service, after AUTH")
OUTPUT = Closure("output", "limits.client_output")
HALF_CLOSED = Closure("half_closed", "the client sent its end and waited too long for replies")
STALE = Closure("stale", "the policy is older than policy.stale_after, and then: refuse")
OTHER = Closure("other", "anything else")

CLOSURES = tuple(one for one in list(globals().values()) if isinstance(one, Closure))

STAYS_OPEN = Reason(None, "")


def lost(reason: str) -> Reason:
    """The reason for which a client loses its connection to Redis. A text without a label of its own says
    that the connection is lost or cannot be used."""
    return reason if isinstance(reason, Reason) else UPSTREAM_LOST.because(reason)


def upstream_sent(what: str) -> Reason:
    """The reason for which a client gets nothing of what Redis sent."""
    return UPSTREAM_PROTOCOL.because(f"upstream sent {what}")
