"""What a session reports about itself, as an interface that telemetry implements.

Rule: reporting never fails, and never changes what becomes of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.engine.evidence import Evidence
from keyfence.policy.verdict import Finding, Peer

# Why a session passes unread, as labels of `keyfence_sessions_opaque_total`: a closed set.
OPAQUE_REASONS = (
    "it changes which replies are sent inside MULTI",
    "its replies can't be followed",
    "only Redis knows what command it is",
    "request too large",
    "so many subscriptions can't be followed",
    "too many such commands are queued in one transaction",
    "what it depends on is too long to be judged",
    "what it does inside MULTI can't be told behind a script",
    "what it subscribes to inside MULTI can't be followed",
    "what its debugger is told isn't commands",
)


class Sent(NamedTuple):
    """A command of a client, and the policy that it was evaluated under."""

    policy: CompiledPolicy
    argv: Sequence[bytes]
    touches: Touches


class Observer(Protocol):
    """Takes a session's reports. No method may raise."""

    # Called with each command that is evaluated; None while commands are not recorded.
    recorder: Callable[[CompiledPolicy, str, Sequence[bytes], Touches], None] | None

    def command(self, service: str, command: str, outcome: str, times: int = 1) -> None:
        """A command was `forwarded` or `refused`, or several alike were."""

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """`admitted.times` counts forwarded commands of this service. The observer collects it from time to
        time, and sets `is_gathered` while it does."""

    def asked(self, service: str, evidence: Evidence) -> None:
        """A command was evaluated, and is evidence of this."""

    def violations(
        self,
        service: str,
        client: Peer | str,
        command: str,
        findings: Sequence[Finding],
        revision: str,
        *,
        sent: Sent | None = None,
    ) -> str:
        """Report the violations found in one command; `sent` is the command, where it is known. Returns the
        decision's id, for the reply."""

    def repeats(self, service: str, command: str, findings: Sequence[Finding]) -> ViolationCounter | None:
        """A counter for further commands with the same findings, valid while it is live; None: report each of
        them."""

    def judged_at_length(self, reason: str) -> None:
        """A command was evaluated, which the cache did not admit. `reason` is one of a few
        (docs/operations.md)."""

    def decided(self, service: str, seconds: float) -> None:
        """Report how long a decision on this service's command took; called for a sample of decisions."""

    def login_failed(self, service: str) -> None:
        """A client of this service gave a wrong password for a user that keyfence itself checks."""

    def opaque(self, service: str, reason: str) -> None:
        """From here on the session passes unread. `reason` is one of OPAQUE_REASONS."""

    def opaque_ended(self, service: str) -> None:
        """A session that passed unread has ended."""
