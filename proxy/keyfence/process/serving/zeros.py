"""The rows of metrics that are there from the start, at 0.

Rule: a row is declared if its count can rise under the policy and the modes in force. Prometheus takes no
increase from a series whose first sample is 1, so an alert on one would miss the first violation.
"""

from __future__ import annotations

from collections.abc import Iterator

from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.rules import RULES
from keyfence.resp.replies import NOTED
from keyfence.session.conversation.observer import OPAQUE_REASONS
from keyfence.telemetry.counters import Counters


def declare_zeros(counters: Counters, modes: Modes) -> None:
    """Declare the rows for these modes. Call it after each load; rows of earlier ones stay."""
    counters.declare("rule_violations", _violations(modes))
    counters.declare("upstream_errors", NOTED)
    counters.declare(
        "sessions_opaque", ((service, reason) for service in modes.services for reason in OPAQUE_REASONS)
    )


def _violations(modes: Modes) -> Iterator[tuple[str, str, str]]:
    """(service, rule, action) of each violation that can be counted."""
    for number, service in enumerate(modes.services):
        for name, rule in RULES.items():
            mode = modes.mode(name, number)
            if mode == "disabled":
                continue
            yield service, name, "observed"  # also in enforce: break-glass, and a `should`
            if mode == "enforce":
                yield service, name, "refused"
            if modes.may_waive(service, name):
                yield service, name, "waived"
            if rule.late:
                yield service, name, "late"
