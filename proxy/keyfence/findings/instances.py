"""What the instances that share a store say of themselves: one row for each keyfence, workers included.

Rule: values only. An instance's row is small, and it alone changes it; `store` writes it, `queries` reads it.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from .finding import DAY

Source = Literal["fresh", "copy", "stale", "refused"]
REPORT_SECONDS = 4.0  # between two reports in which nothing has changed; less than two writes of evidence
KEEP_SECONDS = 7 * DAY  # for which the row of an instance that is not heard of stays
EVERY_OTHER = "*"  # in modes: the services that a rule names no mode of their own for
MAX_REASON = 500  # characters


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """One keyfence. Times are Unix seconds."""

    id: str  # of this run of it
    name: str  # its host, and the port of its admin listener
    admin: str  # the URL of the admin listener; "": there is none
    environment: str
    policy: str  # "": it passes commands unread
    revision: str
    sequence: int  # of the signed policy; 0: it is not signed
    source: Source
    reason: str  # why the source is not fresh
    loaded: float  # when the policy was put in force
    confirmed: float  # when its server has confirmed it last; 0.0: it comes from files
    version: str  # of keyfence
    started: float
    modes: str  # as `process.reporting` describes them, JSON
    clients: int
    last: float = 0.0  # when it was heard of last

    def says_the_same(self, other: Instance) -> bool:
        """Whether only what changes all the time has changed."""
        return self == dataclasses.replace(
            other, clients=self.clients, confirmed=self.confirmed, last=self.last
        )
