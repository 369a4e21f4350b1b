"""Where the upstream stands: alone or in a cluster, a primary or a replica.

Rule: what Redis says about itself counts more than its errors to clients, because a client's script can word
such an error. So errors alone never make keyfence not ready. Redis says it in its replies to HELLO, which the
prober asks; if Redis wants a login first, in those to clients that have logged in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from keyfence.resp.encode import command
from keyfence.resp.replies import READ_ONLY, TO_NODES
from keyfence.resp.role import MASTER, REPLICA

# Every user may send it, and on a connection that speaks RESP2 it changes nothing. Its reply has `mode` and
# `role`.
HELLO = command(b"HELLO", b"2")
RECENT_SECONDS = (
    60.0  # after which a refused write says nothing any more, if Redis says that it is a primary …
)
REFUSED_SECONDS = 3600.0  # … and if Redis does not say what it is
NOTICES_SECONDS = 86_400.0  # for which a client that gets notices is taken to be connected
# What sessions see besides errors and the role in a reply to HELLO: that a client gets notices.
NOTICES = "notices"


class Concern(NamedTuple):
    """Something about the upstream that operators should know."""

    kind: str  # a label of keyfence_upstream_standing
    text: str
    is_fatal: bool = False  # keyfence is not ready


_CLUSTER = Concern(
    "cluster",
    "is a node of a cluster: a client for clusters learns the nodes' addresses and can go past keyfence, and "
    "keys on other nodes cannot be reached through it. To serve all nodes, write "
    "upstream: {cluster: [HOST:PORT]}",
)
_SENTINEL = Concern("sentinel", "is a Sentinel: it has no keys, and names the addresses of those that have")
_REPLICA = Concern("replica", "is a replica, which refuses writes")
_DEMOTED = Concern(
    "read_only",
    "was a primary and is a replica now: it refuses every write. Point keyfence at the primary",
    True,
)
_REFUSES = Concern("read_only", "has refused writes (READONLY): a replica answers clients")
_NOTICES = Concern(
    "notices",
    "sends notices that name its addresses to a client (CLIENT MAINT_NOTIFICATIONS ON, within the last day): "
    "the client may go past keyfence",
)
ROLES = (MASTER, REPLICA, "unknown")
CREDENTIALS = "credentials"
KINDS = ("cluster", "sentinel", "replica", "read_only", "notices", CREDENTIALS)


class Standing:
    """What is known about one upstream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.moved()

    def moved(self) -> None:
        """Another node is the primary now: what was seen of the former one says nothing about it."""
        self.mode = ""  # standalone, cluster or sentinel, as HELLO says it; "": not known
        self.role = ""  # master or replica, as HELLO says it; "": not known
        self._role_shown_at = 0.0  # Unix time
        self._answers_prober = False  # to HELLO
        self._was_primary = False
        self._redirected = False
        self._refused_write: float | None = None  # when it last did
        self._sent_notices: float | None = None  # when a client last asked for them

    def told(self, reply: object) -> None:
        """Take in the reply to the prober's HELLO; None: there was none. An error tells nothing: Redis may be
        too old, or want a login first."""
        self._answers_prober = isinstance(reply, list) or (reply is None and self._answers_prober)
        if isinstance(reply, list):
            fields = dict(zip(reply[::2], reply[1::2], strict=False))
            self.mode = _word(fields.get(b"mode"))
            self._has_role(_word(fields.get(b"role")))

    def _has_role(self, role: str) -> None:
        self.role = role
        if role == MASTER:
            self._was_primary = True

    def shown(self, word: str, at: float) -> None:
        """A session has seen this at this Unix time: an error that begins with one of `resp.replies.NOTED`,
        MASTER, REPLICA or NOTICES. Workers tell it late, so an older role may come after a newer one."""
        if word == READ_ONLY:
            self._refused_write = self._clock()
        elif word == NOTICES:
            self._sent_notices = self._clock()
        elif word in TO_NODES:
            self._redirected = True
        elif word in (MASTER, REPLICA) and not self._answers_prober:
            self._was_primary = self._was_primary or word == MASTER
            if at >= self._role_shown_at:
                self._role_shown_at = at
                self._has_role(word)
                if word == MASTER:
                    self._refused_write = None

    @property
    def is_demoted(self) -> bool:
        """Whether it was a primary and is a replica now."""
        return self.role == REPLICA and self._was_primary

    def concerns(self) -> list[Concern]:
        """What operators should know now."""
        found = []
        if self.mode == "cluster" or (self._redirected and not self.mode):
            found.append(_CLUSTER)
        elif self.mode == "sentinel":
            found.append(_SENTINEL)
        if self.role == REPLICA:
            found.append(_DEMOTED if self.is_demoted else _REPLICA)
        seconds = RECENT_SECONDS if self.role == MASTER else REFUSED_SECONDS
        if self._was_within(self._refused_write, seconds) and not self.is_demoted:
            found.append(_REFUSES)
        if self._was_within(self._sent_notices, NOTICES_SECONDS):
            found.append(_NOTICES)
        return found

    def _was_within(self, time_: float | None, seconds: float) -> bool:
        return time_ is not None and self._clock() - time_ < seconds


def _word(value: object) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else ""
