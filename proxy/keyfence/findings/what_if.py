"""What would break if a rule were enforced now, from what was seen.

Rule: only violations that enforcing would refuse are listed: not waived, not resolved, not a `should`, and
not found late. Where the policy has changed since something was seen, the answer says that nobody can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keyfence.policy.enforcement.modes import ModeRule, mode_of

from .filter import Filter
from .finding import Finding, Unjudged
from .proof.basis import InForce
from .proof.worth import Worth
from .queries import Reader
from .readiness import NOTHING_IN_FORCE, may_be_refused


@dataclasses.dataclass(frozen=True, slots=True)
class Break:
    """Commands of one finding that would be refused."""

    finding: Finding
    times: int  # since the time that was asked for

    @property
    def libraries(self) -> tuple[str, ...]:
        """The client libraries that sent them, with their versions."""
        found = (
            " ".join(filter(None, (one.get("library", ""), one.get("version", ""))))
            for one in self.finding.clients
        )
        return tuple(dict.fromkeys(filter(None, found)))

    def as_object(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"times": self.times, "libraries": list(self.libraries), **self.finding.as_object()}


def unjudged(
    reader: Reader, modes: Sequence[ModeRule], service: str, since: float, basis: str
) -> list[Unjudged]:
    """What nobody can tell of what was seen since a time, by service and rule. `basis` is the one in
    force."""
    worth = Worth(basis, reader.drawn(since), reader.bases)
    return [
        Unjudged(of, rule, began.at, began.why)
        for (of, rule), began in sorted(worth.all_began().items())
        if service in ("", of) and mode_of(modes, rule, of) == "enforce"
    ]


def what_if(
    reader: Reader,
    modes: Sequence[ModeRule],
    service: str,
    since: float,
    in_force: InForce = NOTHING_IN_FORCE,
) -> list[Break]:
    """What `modes` would refuse of what was seen since a time (Unix seconds), the most frequent first.
    `service` "" is every service."""
    counts = reader.violations_since(since)
    found = []
    for one in reader.findings(Filter(service=service, since=since)):
        seen = counts.get(one.id, {})
        times = seen.get("observed", 0) + seen.get("refused", 0)
        if times and may_be_refused(one, in_force) and mode_of(modes, one.rule, one.service) == "enforce":
            found.append(Break(one, times))
    return sorted(found, key=lambda one: -one.times)
