"""The interface of a sink: where findings are counted, listed or written.

Rule: a sink is one file that implements `Sink`, and `Telemetry` passes every finding to every sink. A sink
never raises and never blocks, and what it holds is bounded.

Counters, tally and decision log are the sinks that each process has. `telemetry_of` in
`process.serving.runtime` is the place for others. What a sink counts in a worker reaches the parent only if
`telemetry.increments` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from keyfence.policy.engine.command_evidence import Evidence
from keyfence.policy.verdict import Action, Peer, Violation


class Group(NamedTuple):
    """Findings that are counted together. The first five fields identify a row of the report."""

    service: str
    rule: str
    command: str  # as people read it
    entry: str  # a name of the policy; "" for none
    shape: str  # the learned shape of a key that no entry covers, or an unregistered script; else ""
    action: Action
    label: str  # the command as a metric label: a name of the command table, or `other`


class Occurrence(NamedTuple):
    """One finding, or several alike at once."""

    violation: Violation
    client: Peer
    revision: str  # of the policy
    times: int
    now: float  # seconds of a monotonic clock
    at: float  # Unix seconds
    decision: str = ""  # the id in the decision log, or in the reply
    # The command without its values and secrets, as `policy.wording.command_log` writes it. None: unknown.
    describe: Callable[[], dict[str, Any]] | None = None


class Sink:
    """A sink that does nothing. Subclasses override what they need."""

    __slots__ = ()

    def record(self, _group: Group, _found: Occurrence, /) -> str:
        """Take a finding. Returns the decision id under which this sink tells of it; "" for none."""
        return ""

    def repeat(self, _group: Group, _times: int, _now: float, _at: float, /) -> None:
        """Take further findings like the last one of the group. Their keys and values are not known.
        The times say when they were gathered: at most about a second after the first of them."""

    def asked(self, service: str, evidence: Evidence, times: int, /) -> None:
        """Take what `times` commands of a service are evidence of."""

    def holds(self, _group: Group, /) -> bool:
        """Whether `repeat` can count this group exactly. If not, each finding is recorded in full."""
        return True

    def mask(self, mask_keys: bool) -> None:
        """Whether keys are masked, from now on."""

    def flush(self, now: float) -> None:
        """Called each second."""

    def reopen(self) -> None:
        """Open a file again, after it was moved."""

    def close(self) -> None:
        """Write what is left, and end."""
