"""What failovers have shown, and which of it must not be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator

KINDS = ("graceful", "crash")
THROUGH, CONTROL = "keyfence", "control"
SUBSCRIBER_SECONDS = 1.0  # within which a subscriber receives again or is closed, once writes succeed


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one client has seen of one failover on one path."""

    client: str
    path: str
    without_service: float  # the longest time in seconds between two confirmed writes
    after_report: float  # seconds from the Sentinels' report until it had written again
    confirmed: int
    lost: int  # confirmed writes that the new primary does not have
    lost_before_kept: int  # of these, ones confirmed before one that was kept: replication cannot do this
    twice: int
    wrong: int
    falls: int
    subscriber: float  # seconds until its subscriber received again or was closed, after writes succeeded
    is_back: bool  # whether it wrote again
    errors: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Failover:
    """One failover, as all clients saw it.

    Sentinels that the machine lets wait fail over twice now and then: two of them lead, one after the other.
    Then Redis itself loses what the first new primary has confirmed.
    """

    kind: str
    switches: int  # how many nodes the Sentinels have reported as the primary
    outcomes: list[Outcome]

    def without_service(self, client: str, path: str) -> float | None:
        return next(
            (one.without_service for one in self.outcomes if (one.client, one.path) == (client, path)), None
        )

    def faults_of(self, one: Outcome) -> dict[str, int]:
        """What must not be, and how often this client saw it."""
        graceful, once = self.kind == "graceful", self.switches == 1
        checks = {
            "replies of other requests": one.wrong,
            "elements that stand twice": one.twice,
            "confirmed writes that are lost": once * (one.lost if graceful else one.lost_before_kept),
            "values that fell": once * graceful * one.falls,
            "subscribers that heard nothing": int(one.subscriber > SUBSCRIBER_SECONDS),
            "clients that never wrote again": int(not one.is_back),
        }
        return {what: number for what, number in checks.items() if number}

    def faults(self) -> Iterator[str]:
        """What must not be, of clients of keyfence."""
        for one in self.outcomes:
            if one.path == THROUGH:
                for what, number in self.faults_of(one).items():
                    yield f"{self.kind}, {one.client}: {number} {what}"


def read(lines: Iterable[str]) -> list[Failover]:
    """The failovers in the lines that `raw.write` has written."""
    found = [json.loads(line) for line in lines]
    return [
        Failover(one["kind"], one["switches"], [Outcome(**outcome) for outcome in one["outcomes"]])
        for one in found
    ]
