"""What a candidate policy would change: how many commands both policies have evaluated, and the findings that
would be new, gone or the same.

Rule: these counts are kept apart from the findings of the policy in force. They begin when the comparison
begins; only the metrics outlast it. Every table is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keyfence.policy.compiled.obstacles import Seen
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.verdict import Change, Changed, Peer
from keyfence.shapes.secrecy import Secrecy
from keyfence.shapes.shapes import Shapes
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.increments import Sent, new_rows
from keyfence.telemetry.sink import Group, Occurrence, Sink
from keyfence.telemetry.tally import Tally
from keyfence.telemetry.telemetry import Telemetry

from .rehearsal import Rehearsal
from .rows import add_commands

MAX_KINDS = 4_096  # of commands that are only counted; beyond, all are forgotten and found anew

# The label of the metric for each change: whether the finding is there under each policy.
LABELS: Mapping[Change, str] = {
    "new": "new",
    "stricter": "same",
    "same": "same",
    "milder": "same",
    "gone": "gone",
}

_Kind = tuple[ViolationCounter | None, ViolationCounter | None]


class _Metric(Sink):
    """Counts the findings of one change in the process's counters."""

    def __init__(self, counters: Counters, change: Change) -> None:
        self._counters = counters
        self._label = LABELS[change]

    def record(self, group: Group, found: Occurrence) -> str:
        self._counters.changed(group.service, group.rule, self._label, found.times)
        return ""

    def repeat(self, group: Group, times: int, _now: float, _at: float) -> None:
        self._counters.changed(group.service, group.rule, self._label, times)


class Changes:
    """The comparison of one candidate with the policy in force, in one process."""

    def __init__(
        self,
        number: int,
        counters: Counters,
        *,
        mask_keys: bool = False,
        rehearses: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`number` tells this comparison from earlier ones. `counters` are the process's own. `rehearses`:
        the candidate is that of a rehearsal."""
        self.number = number
        self.rehearsal = Rehearsal() if rehearses else None
        self._shapes = Shapes(trusting=not mask_keys)  # of the keys that the rehearsal sees
        self.commands: dict[str, int] = {}  # by service
        self._counters = counters
        self._mask_keys = mask_keys
        self._clock = clock
        self._wall = wall
        self._secrecy: tuple[Secrecy | None, Secrecy | None] = (None, None)
        self._telemetry: dict[Change, Telemetry] = {}  # of those changes that there are
        self._admitted: list[tuple[str, Admitted]] = []
        self._kinds: dict[_Kind, tuple[ViolationCounter, ...]] = {}
        # What was taken as increments.
        self._commands_sent: dict[str, int] = {}
        self._rows_sent: dict[Change, Sent] = {}

    def guard(self, in_force: Secrecy | None, candidate: Secrecy | None) -> None:
        """Use the secrets that the two policies declare: none of them becomes a word of a shape."""
        self._secrecy = in_force, candidate
        if in_force != self._shapes.secrecy:
            self._shapes = Shapes(trusting=not self._mask_keys, secrecy=in_force)
        for change, telemetry in self._telemetry.items():
            telemetry.guard(self._secrecy_of(change))

    def _secrecy_of(self, change: Change) -> Secrecy | None:
        return self._secrecy[0 if change == "gone" else 1]

    # -- what sessions report (policy.engine.authorizer.ChangeObserver)

    def command(self, service: str) -> None:
        self._count(service, 1)

    def gather_from(self, service: str, admitted: Admitted) -> None:
        admitted.is_gathered = True
        self._admitted.append((service, admitted))

    def changes(self, service: str, client: Peer, command: str, found: Sequence[Changed]) -> None:
        for change, of_change in _by_change(found).items():
            findings = [one.finding for one in of_change]
            self._of(change).violations(service, client, command, findings, "")

    def rehearsed(self, service: str, seen: Seen) -> None:
        if self.rehearsal is not None:
            self.rehearsal.seen(service, seen, self._shapes)

    def counters(
        self, in_force: ViolationCounter | None, candidate: ViolationCounter | None
    ) -> tuple[ViolationCounter, ...] | None:
        known = self._kinds.get((in_force, candidate))
        if known is None:
            return None
        for one in known:
            if not one.live:
                del self._kinds[in_force, candidate]
                return None
        return known

    def count_alike(
        self,
        in_force: ViolationCounter | None,
        candidate: ViolationCounter | None,
        service: str,
        command: str,
        found: Sequence[Changed],
    ) -> None:
        repeats = []
        for change, of_change in _by_change(found).items():
            one = self._of(change).repeats(service, command, [changed.finding for changed in of_change])
            if one is None:
                return
            repeats.append(one)
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[in_force, candidate] = tuple(repeats)

    # -- together with the process's telemetry

    def gather(self) -> None:
        """Take over everything that sessions have only counted."""
        for service, admitted in self._admitted:
            self._count(service, admitted.times)
            if self.rehearsal is not None:
                self.rehearsal.admitted(service, admitted, admitted.times)
            admitted.times = 0
            admitted.is_gathered = False
        self._admitted.clear()
        for telemetry in self._telemetry.values():
            telemetry.gather()

    def flush(self) -> None:
        self.gather()
        for telemetry in self._telemetry.values():
            telemetry.flush()

    def mask(self, mask_keys: bool) -> None:
        self._mask_keys = mask_keys
        self._shapes = Shapes(trusting=not mask_keys, secrecy=self._secrecy[0])
        for telemetry in self._telemetry.values():
            telemetry.mask(mask_keys)

    def parts(self) -> Iterator[dict[str, Any]]:
        """What was counted since the last time, for `Comparisons.absorb`, as values that JSON can carry, in
        parts."""
        before, self._commands_sent = self._commands_sent, dict(self.commands)
        commands = [
            [name, n - before.get(name, 0)] for name, n in self.commands.items() if n != before.get(name)
        ]
        yield {"number": self.number, "commands": commands, "rows": [], "rehearsed": []}
        for part in self.rehearsal.parts() if self.rehearsal is not None else ():
            yield {"number": self.number, "commands": [], "rows": [], "rehearsed": part}
        for change, tally in self.tallies().items():
            for rows in new_rows(tally, self._rows_sent.setdefault(change, {})):
                yield {"number": self.number, "commands": [], "rows": [[change, rows]], "rehearsed": []}

    # -- what was found

    def tallies(self) -> dict[Change, Tally]:
        """The tally of each change that there is, up to date."""
        self.gather()
        return {change: telemetry.tally for change, telemetry in self._telemetry.items()}

    def _count(self, service: str, times: int) -> None:
        self._counters.compared(service, times)
        add_commands(self.commands, service, times)

    def _of(self, change: Change) -> Telemetry:
        known = self._telemetry.get(change)
        if known is None:
            known = self._telemetry[change] = Telemetry(
                sinks=(_Metric(self._counters, change),),
                mask_keys=self._mask_keys,
                clock=self._clock,
                wall=self._wall,
            )
            known.guard(self._secrecy_of(change))
        return known


def _by_change(found: Iterable[Changed]) -> dict[Change, list[Changed]]:
    sorted_out: dict[Change, list[Changed]] = {}
    for one in found:
        sorted_out.setdefault(one.change, []).append(one)
    return sorted_out
