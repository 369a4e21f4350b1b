"""Where the upstream stands: alone or in a cluster, a primary or a replica.

Rule: what Redis says about itself (HELLO, asked by the prober) counts more than its errors to clients,
because a client's script can word such an error. So errors alone never make keyfence not ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from keyfence.resp.encode import command
from keyfence.resp.replies import READ_ONLY

# Every user may send it, and on a connection that speaks RESP2 it changes nothing. Its reply has `mode` and
# `role`.
HELLO = command(b"HELLO", b"2")
RECENT_SECONDS = 60.0  # after which a refused write says nothing any more


class Concern(NamedTuple):
    """Something about the upstream that operators should know."""

    kind: str  # a label of keyfence_upstream_standing
    text: str
    is_fatal: bool = False  # keyfence is not ready


_CLUSTER = Concern(
    "cluster",
    "is a node of a cluster: a client for clusters learns the nodes' addresses and can go past keyfence, and "
    "keys on other nodes cannot be reached through it",
)
_SENTINEL = Concern("sentinel", "is a Sentinel: it has no keys, and names the addresses of those that have")
_REPLICA = Concern("replica", "is a replica, which refuses writes")
_DEMOTED = Concern(
    "read_only",
    "was a primary and is a replica now: it refuses every write. Point keyfence at the primary",
    True,
)
_REFUSES = Concern(
    "read_only", "has refused writes within the last minute (READONLY): a replica answers clients"
)
KINDS = ("cluster", "sentinel", "replica", "read_only")


class Standing:
    """What is known about one upstream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.mode = ""  # standalone, cluster or sentinel, as HELLO says it; "": not known
        self.role = ""  # master or replica, as HELLO says it; "": not known
        self._was_primary = False
        self._redirected = False
        self._refused_write: float | None = None  # when it last did
        self._clock = clock

    def told(self, reply: object) -> None:
        """Take in the reply to HELLO. An error tells nothing: Redis may be too old, or want a login first."""
        if not isinstance(reply, list):
            return
        fields = dict(zip(reply[::2], reply[1::2], strict=False))
        self.mode, self.role = _word(fields.get(b"mode")), _word(fields.get(b"role"))
        if self.role == "master":
            self._was_primary = True

    def answered(self, word: str) -> None:
        """Redis has answered a client with an error that begins with one of `resp.replies.NOTED`."""
        if word == READ_ONLY:
            self._refused_write = self._clock()
        else:
            self._redirected = True

    def concerns(self) -> list[Concern]:
        """What operators should know now."""
        found = []
        if self.mode == "cluster" or (self._redirected and not self.mode):
            found.append(_CLUSTER)
        elif self.mode == "sentinel":
            found.append(_SENTINEL)
        if self.role == "replica":
            found.append(_DEMOTED if self._was_primary else _REPLICA)
        elif self._refused_write is not None and self._clock() - self._refused_write < RECENT_SECONDS:
            found.append(_REFUSES)
        return found


def _word(value: object) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else ""
