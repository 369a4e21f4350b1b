"""What a session tells about itself, and to whom.

Rule: telling never fails and never changes what becomes of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.counts import Admitted, Repeat
from keyfence.policy.verdict import Finding, Peer


class Observer(Protocol):
    """What a session tells about itself. Telemetry implements it; none of these may raise."""

    # Is told each command that is judged; None where nobody wants to know.
    recorder: Callable[[CompiledPolicy, str, Sequence[bytes], Touches], None] | None

    def command(self, service: str, command: str, outcome: str, times: int = 1) -> None:
        """A command was `forwarded` or `refused`, or several alike were."""

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """`admitted.times` counts commands of this service that are forwarded. Whoever takes them over sets
        `is_gathered` for as long as it looks there."""

    def violations(
        self, service: str, client: Peer | str, command: str, findings: Sequence[Finding], revision: str
    ) -> str:
        """Violations were found in one command. Returns the decision's id, for the reply."""

    def repeats(self, service: str, command: str, findings: Sequence[Finding]) -> Repeat | None:
        """What further commands with the same findings may be counted by, as long as it lives; None: each is
        to be told of."""

    def judged_at_length(self, reason: str) -> None:
        """A command took more than a glance to judge; `reason` is one of a few (docs/operations.md)."""

    def decided(self, seconds: float) -> None:
        """A decision took so long; told for a sample of them."""

    def login_failed(self, service: str) -> None:
        """A client, so far this service, gave a wrong password for a user that keyfence itself checks."""

    def opaque(self, service: str, reason: str) -> None:
        """From here on the session is passed unread."""
