"""The interface through which sessions report; telemetry implements it.

Rule: a report never fails, and never changes the outcome of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.command_evidence import Evidence
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.verdict import Finding, Peer

# Why a session passes unread, as labels of `keyfence_sessions_opaque_total`: a closed set.
OPAQUE_REASONS = (
    "it changes which replies are sent inside MULTI",
    "its debugger reads lines that are not commands",
    "its deciding argument is too long to be evaluated",
    "its effect inside MULTI cannot be known after a script",
    "its replies cannot be followed",
    "keyfence cannot follow that many subscriptions",
    "only Redis knows which command it is",
    "request too large",
    "subscriptions inside MULTI cannot be followed",
    "the transaction has too many such commands",
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
        """One or several equal commands were `forwarded` or `refused`."""

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """`admitted.times` counts forwarded commands of this service. The observer gathers it from time to
        time; `is_gathered` is set while it does so."""

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
        """Return a counter for further commands with the same findings, valid while it is live. None: report
        each of them."""

    def final_shape(self, key: bytes) -> str | None:
        """Return the shape of a key that no entry covers, as counters have it; None if it is not final."""

    def judged_at_length(self, reason: str) -> None:
        """A command that the cache did not admit was evaluated. docs/operations.md lists the reasons."""

    def authorized(self, service: str, seconds: float) -> None:
        """Report how long it took to authorize a command of this service; called for a sample of commands."""

    def login_failed(self, service: str) -> None:
        """A client of this service gave a wrong password for a user that keyfence itself checks."""

    def upstream_error(self, word: str) -> None:
        """Redis answered with an error that begins with this word, one of `resp.replies.NOTED`."""

    def address_hidden(self, where: str) -> None:
        """An address was kept from a client: `INFO`, or one of `commands.addresses.NOTICE_WORDS`."""

    def upstream_shown(self, word: str) -> None:
        """Redis has shown what it is, in a reply that no client can word: `master` or `replica` to HELLO; or
        it has agreed to send `notices`."""

    def opaque(self, service: str, reason: str) -> None:
        """From now on, the session passes unread. `reason` is one of OPAQUE_REASONS."""

    def opaque_ended(self, service: str) -> None:
        """A session that passed unread has ended."""
