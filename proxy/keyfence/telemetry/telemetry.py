"""Where the relay reports what was decided.

Rule: a violation is told once to each of counters, tally and log, and a decision id is made only for a line
that is written or promised; telling never raises for reasons of its own. What the session has only counted
(`Repeat`) is gathered once a second, and whenever counters or tally are asked for.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from keyfence.policy.engine.counts import Admitted, Repeat
from keyfence.policy.verdict import Finding, Peer, Violation, script_in
from keyfence.shapes.secrecy import Secrecy
from keyfence.shapes.shapes import Shapes

from .clients import listed, meet
from .counters import OTHER, Counters, Outcome
from .decision_log import DecisionLog, Group, Sink, mask, masked_hint, new_decision_id
from .tally import Row, Tally
from .unsettled import Place, Unsettled

MAX_KNOWN = 10_000
MAX_REPEATS = 4_096  # that live at a time
MAX_SCRIPTS = 1_000
RETIRED = 100  # of them in a second, the oldest first: of each the next command is told of in full
Schedule = Callable[[Callable[[], None]], object]
# What a client sent in place of a command is its own text; what doesn't read as a command's name isn't shown.
_COMMAND_NAME = re.compile(r"[A-Z][A-Z0-9._-]{0,31}")


_Rows = list[tuple[Group, tuple[str, str, str, str, str], Row]]


class _Known:
    """A row that is counted on, and the client that was met there last."""

    __slots__ = ("entry", "met", "row", "series")

    def __init__(self, entry: str, series: tuple[str, str, str, str, str], row: Row, met: Peer) -> None:
        self.entry, self.series, self.row, self.met = entry, series, row, met


class _Origin(NamedTuple):
    """Whose command it was, and by which revision of the policy it was judged."""

    service: str
    client: Peer
    command: str
    revision: str


class Telemetry:
    """Counters, tally and decision log of one process. To be used from its event loop's thread."""

    def __init__(
        self,
        *,
        counters: Counters | None = None,
        log: DecisionLog | None = None,
        mask_keys: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        new_id: Callable[[], str] = new_decision_id,
    ) -> None:
        """Without a log a refusal gets an id that is in no log. `mask_keys` is for the tally's examples; the
        log has its own setting."""
        self._counters = counters if counters is not None else Counters()
        self._tally = Tally()
        # Is told each command that is judged, as (policy, service, argv, touches); None where none is wanted.
        self.recorder: Callable[[Any, str, Sequence[bytes], Any], None] | None = None
        self._log = log
        self._schedule: Schedule | None = None
        self._mask_keys = mask_keys
        self._clock = clock
        self._wall = wall
        self._new_id = new_id
        self._shapes = Shapes(trusting=not mask_keys)
        self._unsettled = Unsettled()
        self._scripts: set[str] = set()  # unregistered ones that have rows of their own
        # The rows that the violations of a group count in, to find them with one look-up.
        self._known: dict[Group, _Known] = {}
        self._repeats: deque[Repeat] = deque()  # that live, the oldest first
        self._admitted: list[tuple[str, Admitted]] = []  # in which commands of a service are counted
        self._turns = 0  # of the shapes, as far as the repeats know
        self._epoch = wall() - clock()  # what makes Unix seconds of the monotonic clock's

    @property
    def counters(self) -> Counters:
        """The counters, up to date. Whoever counts in them may hold on to them."""
        self.gather()
        return self._counters

    @property
    def tally(self) -> Tally:
        """The tally, up to date; each key's findings under the shape that is known by now."""
        self.gather()
        self._unsettled.move(self._shapes, self._tally, self._row)
        return self._tally

    @classmethod
    def to(
        cls,
        target: str | int | None,
        *,
        mask_keys: bool = False,
        schedule: Schedule | None = None,
    ) -> Telemetry:
        """With a log as `log_to` has it. `schedule` is the event loop's `call_soon`: the lines of one turn
        then go out in one write. Raises OSError where the file can't be opened."""
        telemetry = cls(mask_keys=mask_keys)
        telemetry._schedule = schedule
        telemetry.log_to(target)
        return telemetry

    def log_to(self, target: str | int | None) -> None:
        """Log to a file, to standard output ("-"), into a pipe (a descriptor), or to nowhere (None), from now
        on. Raises OSError where the file can't be opened, and changes nothing then."""
        log = None
        if target is not None:
            sink = Sink(target, self._counters, self._schedule)
            log = DecisionLog(sink, self._counters, mask_keys=self._mask_keys)
        self.close()
        self._log = log

    def mask(self, mask_keys: bool) -> None:
        """Whether keys are masked in the log and in the tally's new rows, from now on."""
        if mask_keys != self._mask_keys:
            self._mask_keys = mask_keys
            self._reshape(self._shapes.secrecy)
            if self._log is not None:
                self._log.mask(mask_keys)

    def guard(self, secrecy: Secrecy | None) -> None:
        """What the policy that is in force says of its secrets: none becomes a word of a shape."""
        if secrecy != self._shapes.secrecy:
            self._reshape(secrecy)

    def _reshape(self, secrecy: Secrecy | None) -> None:
        self._unsettled.move(self._shapes, self._tally, self._row)
        self._unsettled.forget()
        self._shapes = Shapes(trusting=not self._mask_keys, secrecy=secrecy)

    def command(self, service: str, command: str, outcome: Outcome, times: int = 1) -> None:
        """Count a command, or several alike; `command` is a name of the command table, or `other`."""
        self._counters.command(service, command, outcome, times)

    def judged_at_length(self, reason: str) -> None:
        """Count a command that took more than a glance to judge; `reason` is one of the relay's own words."""
        self._counters.at_length(reason)

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """Take over what is counted there, when `gather` is called next."""
        admitted.is_gathered = True
        self._admitted.append((service, admitted))

    def decided(self, seconds: float) -> None:
        """Count a decision that took so long."""
        self._counters.observe_decision(seconds)

    def login_failed(self, service: str) -> None:
        self._counters.login_failed(service)

    def opaque(self, service: str, reason: str) -> None:
        """Count a session that is passed unread from here on; `reason` is one of the relay's own words."""
        self._counters.session_opaque(service, reason)

    def violations(
        self,
        service: str,
        client: Peer | str,
        command: str,
        findings: Sequence[Finding],
        revision: str,
        *,
        times: int = 1,
    ) -> str:
        """Record the findings of one command, or of `times` commands alike. `command` is a name of the
        command table, or `other`. Each finding has a line of its own in the log, which tells of those that
        are counted with it as merged. Returns the decision id for the reply, which is that of the first
        refused finding's line; "" if nothing was refused."""
        now = self._clock()
        origin = _Origin(service, client if isinstance(client, Peer) else Peer(client), command, revision)
        refused = ""
        for violation, action in findings:
            decision = self._tell(origin, violation, action, now=now, times=times * (1 + violation.more))
            if action == "refused" and not refused:
                refused = decision
        return refused

    def repeats(self, service: str, command: str, findings: Sequence[Finding]) -> Repeat | None:
        """Something to count more commands by that have these findings, told of just now, while it lives;
        None where it isn't known where they are counted, or their keys' shape isn't learnt for good."""
        rows = []
        for violation, action in findings:
            label: str | None = violation.entry
            if not violation.shape and violation.key is not None:
                label = self._shapes.settled(violation.key)
            group = (service, violation.rule, label or "", command, action)
            known = self._known.get(group)
            if label is None or known is None or known.entry != violation.entry:
                return None
            rows += [(group, known.series, known.row)] * (1 + violation.more)
        if len(self._repeats) >= MAX_REPEATS:
            return None
        repeat = Repeat(rows)
        self._repeats.append(repeat)
        return repeat

    def gather(self) -> None:
        """Take over what was only counted."""
        now = self._clock()
        at = self._epoch + now
        for service, admitted in self._admitted:
            self._counters.command(service, admitted.name, "forwarded", admitted.times)
            admitted.times = 0
            admitted.is_gathered = False
        self._admitted.clear()
        for repeat in self._repeats:
            times, repeat.times = repeat.times, 0
            if not times:
                continue
            for group, series, row in cast(_Rows, repeat.rows):
                self._counters.violations[series] += times
                row["count"] += times
                row["actions"][group[4]] += times
                row["last"] = at
                if self._log is not None:
                    self._log.repeat(group, times, now)

    def _tell(self, origin: _Origin, violation: Violation, action: str, *, now: float, times: int) -> str:
        service, client, command, revision = origin
        rule = violation.rule
        shape = ""
        if violation.key is None:
            shape = self._script(script_in(rule, violation.shape))
        elif not violation.shape:
            shape = self._shapes.shape(violation.key)
        group = (service, rule, shape or violation.entry, command, action)
        at = self._epoch + now
        known = self._known.get(group)
        if known is not None and known.entry == violation.entry:
            row = known.row
            self._counters.violations[known.series] += times
            row["count"] += times
            row["actions"][action] += times
            row["last"] = at
            if known.met is not client:
                known.met = client
                meet(row["clients"], listed(client))
            if violation.severity == "must":  # some of a row may be a should
                row["severity"] = "must"
        else:
            group = self._count(group, violation, shape, client, at=at, times=times)
        if shape and self._shapes.is_open and violation.key is not None:
            place = Place(service, rule, group[3], violation.entry, shape, violation.key, action)
            self._unsettled.hold(place, violation, times, at)
        if self._log is None:
            return self._new_id() if action == "refused" else ""
        return self._log.record(
            group,
            violation,
            client=client,
            revision=revision,
            now=now,
            at=at,
            shape=shape,
            times=times,
        )

    def _script(self, script: str) -> str:
        """Which script it is, as rows and lines name it; there may be as many as there are requests."""
        if script and script not in self._scripts:
            if len(self._scripts) >= MAX_SCRIPTS:
                return OTHER
            self._scripts.add(script)
        return script

    def _count(
        self, group: Group, violation: Violation, shape: str, client: Peer, *, at: float, times: int
    ) -> Group:
        """Count a violation where the tables may lack a row for it. Returns the group as the log names it."""
        service, rule, label, command, action = group
        self._counters.violation(service, rule, command, violation.entry, action, times=times)
        named = command
        if command == OTHER and rule == "command.unknown":
            named = _unknown_name(violation)
        row = self._tally.find(service, rule, named, violation.entry, shape)
        if row is None:
            row = self._row(service, named, violation, shape, at)
            row["count"] = row["actions"][action] = times
            row["clients"] = [listed(client)]
            self._tally.add(row)
            return service, rule, label, named, action
        self._tally.count(row, action, at, times)
        meet(row["clients"], listed(client))
        if violation.severity == "must":
            row["severity"] = "must"
        series = (service, rule, command, violation.entry, action)
        if named == command and series in self._counters.violations:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[group] = _Known(violation.entry, series, row, client)
        return service, rule, label, named, action

    def _row(self, service: str, command: str, violation: Violation, shape: str, at: float) -> Row:
        """A row of the tally that counts nothing yet."""
        example, hint = violation.shown, violation.hint
        if self._mask_keys:
            example = "" if violation.key is None else mask(violation.key)
            hint = masked_hint(violation)
        return Row(
            service=service,
            rule=violation.rule,
            severity=violation.severity,
            command=command,
            entry=violation.entry,
            shape=shape,
            count=0,
            actions={},
            first=at,
            last=at,
            example=example,
            hint=hint,
        )

    def flush(self) -> None:
        """To be called each second: gathers, lets out what the log has held back, and follows the wall
        clock's steps."""
        now = self._clock()
        self._epoch = self._wall() - now
        self.gather()
        is_stale = self._turns != self._shapes.resets
        self._turns = self._shapes.resets
        for _ in range(len(self._repeats) if is_stale else min(RETIRED, len(self._repeats))):
            self._repeats.popleft().live = False
        if self._log is not None:
            self._log.flush(now)

    def snapshot(self) -> dict[str, Any]:
        """What a worker hands to the parent: {"counters": …, "tally": […]}, as plain values."""
        self.gather()
        return {"counters": self._counters.snapshot(), "tally": self.tally.snapshot()}

    def reopen(self) -> None:
        """Open the log file anew, after it was moved."""
        if self._log is not None:
            self._log.reopen()

    def close(self) -> None:
        self.gather()
        if self._log is not None:
            self._log.close()
            self._log = None


def _unknown_name(violation: Violation) -> str:
    """The name of a command that isn't in the table, which the message begins with: the log and the report
    are there to tell FT.SEARCH from JSON.GET, though no metric label may."""
    name = violation.message.partition(" ")[0]
    return name if _COMMAND_NAME.fullmatch(name) else OTHER
