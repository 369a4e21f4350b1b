"""Telemetry: takes what sessions decide, and passes it to counters, tally, decision log and other sinks.

Rule: every finding reaches every sink exactly once, and a decision id exists only for a line that is written
or promised. Telemetry never raises for reasons of its own. Findings that a session has only counted
(`ViolationCounter`) are gathered once a second, and before anyone reads counters or tally.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from keyfence.policy.engine.command_evidence import Evidence
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.verdict import Action, Finding, Peer, Violation, script_in
from keyfence.shapes.secrecy import Secrecy
from keyfence.shapes.shapes import Shapes

from .counters import OTHER, Counters, Outcome
from .decision_log import DecisionLog, new_decision_id
from .log_file import LogFile
from .sink import Group, Occurrence, Sink
from .tally import Tally
from .unsettled import Unsettled

MAX_RECURRING = 10_000
MAX_REPEATS = 4_096  # live at a time
MAX_SCRIPTS = 1_000
MAX_UNKNOWN = 500  # commands; the modules of Redis have some 350
RETIRED = 100  # repeats that end each second, oldest first: the next command of each is recorded in full
Schedule = Callable[[Callable[[], None]], object]
_S = TypeVar("_S", bound=Sink)
# An unknown command's name is the client's own text. It is shown only if it looks like a name.
_COMMAND_NAME = re.compile(r"[A-Z][A-Z0-9._-]{0,31}")


# A group's service, rule, shape, entry, label and action, to find it by.
_GroupKey = tuple[str, str, str, str, str, str]


class Beside(Protocol):
    """Further counts of the process, which are gathered and flushed together with its telemetry."""

    def gather(self) -> None: ...
    def flush(self) -> None: ...
    def mask(self, mask_keys: bool) -> None: ...
    def parts(self) -> Iterator[dict[str, Any]]: ...


class Sent(Protocol):
    """A command of a client, as sessions report it (session.conversation.observer)."""

    @property
    def policy(self) -> Any: ...
    @property
    def argv(self) -> Sequence[bytes]: ...
    @property
    def touches(self) -> Any: ...


class Named(NamedTuple):
    """How services are told apart by their clients: for processes that have no policy to name them."""

    service_of: Callable[[str, Peer], str]  # the service, of what sessions take it for
    # Called with each command that has findings, as `Telemetry.recorder` with every command.
    record: Callable[[Any, str, Sequence[bytes], Any], None]


class Telemetry:
    """Counters, tally, decision log and other sinks of one process. Used from its event loop's thread
    only."""

    def __init__(
        self,
        *,
        counters: Counters | None = None,
        log: DecisionLog | None = None,
        sinks: Sequence[Sink] = (),
        mask_keys: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        new_id: Callable[[], str] = new_decision_id,
    ) -> None:
        """`sinks` are further ones. Without a log, a refusal gets an id that is in no log. `mask_keys` is not
        for the log, which has its own setting."""
        self._counters = counters if counters is not None else Counters()
        self._tally = Tally()
        self._log = log
        self._others = tuple(sinks)
        self._sinks: tuple[Sink, ...] = ()
        self._order_sinks()
        # Called with each evaluated command (policy, service, argv, touches); None: there is no command log.
        self.recorder: Callable[[Any, str, Sequence[bytes], Any], None] | None = None
        self._named: Named | None = None
        # Describes a command of a finding (policy, service, argv, touches); None: findings have no examples.
        self.describe: Callable[[Any, str, Sequence[bytes], Any], dict[str, Any]] | None = None
        self._shown: dict[str, float] = {}  # words besides errors, and when they came last, for `take_shown`
        self._schedule: Schedule | None = None
        self._mask_keys = mask_keys
        self._tally.mask(mask_keys)
        self._clock = clock
        self._wall = wall
        self._new_id = new_id
        self._shapes = Shapes(trusting=not mask_keys)
        self._unsettled = Unsettled()
        self._scripts: set[str] = set()  # unregistered ones that have rows of their own
        self._unknown: set[str] = set()  # commands that are in no table, and have rows of their own
        # Groups that came more than once, and whose further findings every sink can count.
        self._recurring: dict[_GroupKey, Group] = {}
        self._repeats: deque[ViolationCounter] = deque()  # live ones, the oldest first
        self._admitted: list[tuple[str, Admitted]] = []  # (service, where its commands are counted)
        self._turns = 0  # `Shapes.turns` when repeats were last retired
        self.beside: Beside | None = None  # of a candidate policy; gathered and flushed together with this
        self._epoch = wall() - clock()  # added to the monotonic clock's time, gives Unix seconds

    def _order_sinks(self) -> None:
        log = () if self._log is None else (self._log,)
        # The log comes first, because it gives findings their decision ids.
        self._sinks = (*log, self._counters, self._tally, *self._others)

    @property
    def counters(self) -> Counters:
        """The counters, up to date. A caller that counts may keep the reference."""
        self.gather()
        return self._counters

    @property
    def tally(self) -> Tally:
        """The tally, up to date, with each key's findings under the shape that is known by now."""
        self.gather()
        self._unsettled.move(self._shapes, self._tally)
        return self._tally

    def sink(self, kind: type[_S]) -> _S | None:
        """The further sink of this class, up to date; None if there is none."""
        self.gather()
        return next((one for one in self._others if isinstance(one, kind)), None)

    @classmethod
    def to(
        cls,
        target: str | int | None,
        *,
        sinks: Sequence[Sink] = (),
        mask_keys: bool = False,
        schedule: Schedule | None = None,
    ) -> Telemetry:
        """With a decision log, see `log_to`, and with further sinks. `schedule` is the event loop's
        `call_soon`: then all lines of one turn go out in one write. Raises OSError if the file cannot be
        opened."""
        telemetry = cls(sinks=sinks, mask_keys=mask_keys)
        telemetry._schedule = schedule
        telemetry.log_to(target)
        return telemetry

    def log_to(self, target: str | int | None) -> None:
        """Write the decision log to a file, to standard output ("-"), into a pipe (a descriptor), or nowhere
        (None) from now on. Raises OSError if the file cannot be opened, and changes nothing then."""
        log = None
        if target is not None:
            file = LogFile(target, self._counters, self._schedule)
            log = DecisionLog(file, self._counters, mask_keys=self._mask_keys)
        self._close_log()
        self._log = log
        self._order_sinks()

    def name_by(self, named: Named) -> None:
        """Report findings under the services that `named` takes clients for, from now on."""
        self._named = named
        self.recorder = _passed_by  # so sessions report each command with its client, and count none

    def mask(self, mask_keys: bool) -> None:
        """Whether keys are masked in the log and in new rows of the tally, from now on."""
        if mask_keys != self._mask_keys:
            self._mask_keys = mask_keys
            self._reshape(self._shapes.secrecy)
            for sink in self._sinks:
                sink.mask(mask_keys)
            if self.beside is not None:
                self.beside.mask(mask_keys)

    def guard(self, secrecy: Secrecy | None) -> None:
        """Use the secrets that the policy in force declares: none of them becomes a word of a shape."""
        if secrecy != self._shapes.secrecy:
            self._reshape(secrecy)

    def _reshape(self, secrecy: Secrecy | None) -> None:
        self._unsettled.move(self._shapes, self._tally)
        self._unsettled.forget()
        self._shapes = Shapes(trusting=not self._mask_keys, secrecy=secrecy)

    # -- what sessions report (session.observer)

    def command(self, service: str, command: str, outcome: Outcome, times: int = 1) -> None:
        """Count a command, or several alike; `command` is a name of the command table, or `other`."""
        self._counters.command(service, command, outcome, times)

    def judged_at_length(self, reason: str) -> None:
        """Count a command that was evaluated on the slow path; `reason` is one of a closed set."""
        self._counters.at_length(reason)

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """Take over the count of these commands at the next `gather`."""
        admitted.is_gathered = True
        self._admitted.append((service, admitted))

    def authorized(self, service: str, seconds: float) -> None:
        """Record how long it took to authorize a command."""
        self._counters.took("decision", service, seconds)

    def login_failed(self, service: str) -> None:
        self._counters.login_failed(service)

    def opaque(self, service: str, reason: str) -> None:
        """Count a session that is passed on unread from now on; `reason` is one of a closed set."""
        self._counters.session_opaque(service, reason)

    def upstream_error(self, word: str) -> None:
        """Count an error of Redis that concerns Redis itself; `word` is one of `resp.replies.NOTED`."""
        self._counters.upstream_error(word)

    def address_hidden(self, where: str) -> None:
        self._counters.address_hidden(where)

    def upstream_shown(self, word: str) -> None:
        """Pass on what a session has seen of Redis itself; `word` is one of a closed set."""
        self._shown.pop(word, None)
        self._shown[word] = time.time()

    def take_shown(self) -> list[tuple[str, float]]:
        """The words of `upstream_shown` since the last call, each once with its time, the newest last."""
        words, self._shown = list(self._shown.items()), {}
        return words

    def opaque_ended(self, service: str) -> None:
        self._counters.session_opaque_ended(service)

    def asked(self, service: str, evidence: Evidence) -> None:
        """Pass on what a command is evidence of."""
        for sink in self._others:
            sink.asked(service, evidence, 1)

    def violations(
        self,
        service: str,
        client: Peer | str,
        command: str,
        findings: Sequence[Finding],
        revision: str,
        *,
        times: int = 1,
        sent: Sent | None = None,
    ) -> str:
        """Record the findings of one command, or of `times` commands alike. `command` is a name of the
        command table, or `other`; `sent` is the command itself, where it is known. Returns the decision id
        for the reply: the id of the first refused finding; "" if nothing was refused."""
        now = self._clock()
        at = self._epoch + now
        peer = client if isinstance(client, Peer) else Peer(client)
        if self._named is not None:
            service = self._named.service_of(service, peer)
            if sent is not None:
                self._named.record(sent.policy, service, sent.argv, sent.touches)
        describe: Callable[[], dict[str, Any]] | None = None
        if self.describe is not None and not self._mask_keys:
            # Of what is found late, the command is not known any more, only its name and key.
            describe = dict
            if sent is not None:
                # All findings of the command share one description.
                describe = cache(partial(self.describe, sent.policy, service, sent.argv, sent.touches))
        refused = ""
        for violation, action in findings:
            group = self._group(service, command, violation, action)
            more = times * (1 + violation.more)
            # The log gives a finding its id; without it, a refusal gets one that is in no log.
            decision = (refused or self._new_id()) if action == "refused" and self._log is None else ""
            found = Occurrence(violation, peer, revision, more, now, at, decision, describe)
            for sink in self._sinks:
                decision = sink.record(group, found)
                if decision:
                    found = found._replace(decision=decision)
            if group.shape and violation.key is not None and self._shapes.is_open:
                held = found if describe is None else found._replace(describe=None)
                self._unsettled.hold(group, violation.key, held)
            if action == "refused":
                refused = refused or found.decision
        return refused

    def repeats(self, service: str, command: str, findings: Sequence[Finding]) -> ViolationCounter | None:
        """A counter for further commands with the same findings, which were just recorded. It is valid while
        it is `live`. None: a sink cannot count them exactly, or a key's shape is not learned for good."""
        groups: list[Group] = []
        shapes: set[str] = set()
        for violation, action in findings:
            shape: str | None = ""
            if not violation.shape and violation.key is not None:
                shape = self._shapes.settled(violation.key)
            if shape is None:
                return None
            shapes.add(shape)
            group = self._recurring.get((service, violation.rule, shape, violation.entry, command, action))
            if group is None:
                return None
            groups += [group] * (1 + violation.more)
        if len(self._repeats) >= MAX_REPEATS:
            return None
        repeat = ViolationCounter(groups)
        if len(shapes) == 1:
            (repeat.shape,) = shapes
        self._repeats.append(repeat)
        return repeat

    def final_shape(self, key: bytes) -> str | None:
        """The final shape of a key that no entry covers, even if it is a new key; None if it has none yet."""
        return self._shapes.final(key)

    # -- groups

    def _group(self, service: str, command: str, violation: Violation, action: Action) -> Group:
        """The group that a finding is counted in."""
        rule = violation.rule
        shape = ""
        if violation.key is None:
            shape = self._script(script_in(rule, violation.shape))
        elif not violation.shape:
            shape = self._shapes.shape(violation.key)
        key = (service, rule, shape, violation.entry, command, action)
        return self._recurring.get(key) or self._new_group(key, violation, action)

    def _new_group(self, key: _GroupKey, violation: Violation, action: Action) -> Group:
        """A group that is not recurring yet. It is from now on if every sink can count further findings."""
        service, rule, shape, entry, label, _ = key
        command = label
        if label == OTHER and rule == "command.unknown":
            command = self._unknown_command(_unknown_name(violation))
        group = Group(service, rule, command, entry, shape, action, label)
        if command == label and all(sink.holds(group) for sink in self._sinks):
            if len(self._recurring) >= MAX_RECURRING:
                self._recurring.clear()
            self._recurring[key] = group
        return group

    def _script(self, script: str) -> str:
        """The name of an unregistered script in rows and lines. It is `other` once there are too many."""
        return _admitted(script, self._scripts, MAX_SCRIPTS) if script else ""

    def _unknown_command(self, name: str) -> str:
        """The name of an unknown command in rows and lines. It is `other` once there are too many."""
        return _admitted(name, self._unknown, MAX_UNKNOWN)

    def gather(self) -> None:
        """Take over everything that clients and sessions have only counted."""
        self._counters.collect()
        if self.beside is not None:
            self.beside.gather()
        now = self._clock()
        at = self._epoch + now
        for service, admitted in self._admitted:
            if admitted.name:
                self._counters.command(service, admitted.name, "forwarded", admitted.times)
            for sink in self._others:
                sink.asked(service, admitted.evidence, admitted.times)
            admitted.times = 0
            admitted.is_gathered = False
        self._admitted.clear()
        for repeat in self._repeats:
            times, repeat.times = repeat.times, 0
            if not times:
                continue
            groups = cast("list[Group]", repeat.rows)
            if repeat.refusal is not None:
                self._counters.command(groups[0].service, groups[0].label, "refused", times)
            for group in groups:
                for sink in self._sinks:
                    sink.repeat(group, times, now, at)

    # -- time

    def flush(self) -> None:
        """Called each second: gather, retire repeats, flush the sinks, and follow steps of the wall clock."""
        now = self._clock()
        self._epoch = self._wall() - now
        self.gather()
        is_stale = self._turns != self._shapes.resets
        self._turns = self._shapes.resets
        for _ in range(len(self._repeats) if is_stale else min(RETIRED, len(self._repeats))):
            self._repeats.popleft().live = False
        for sink in self._sinks:
            sink.flush(now)
        if self.beside is not None:
            self.beside.flush()

    def snapshot(self) -> dict[str, Any]:
        """Everything counted so far, as plain values: {"counters": …, "tally": […]}."""
        self.gather()
        return {"counters": self._counters.snapshot(), "tally": self.tally.snapshot()}

    def reopen(self) -> None:
        """Open the log file again, after it was moved."""
        for sink in self._sinks:
            sink.reopen()

    def close(self) -> None:
        """Gather, and close every sink."""
        self._close_log()
        for sink in self._sinks:
            sink.close()

    def _close_log(self) -> None:
        self.gather()
        if self._log is not None:
            self._log.close()
            self._log = None
            self._order_sinks()


def _admitted(name: str, known: set[str], most: int) -> str:
    """The name, if it is one of the first ones, which `known` keeps; otherwise `other`."""
    if name not in known:
        if len(known) >= most:
            return OTHER
        known.add(name)
    return name


def _unknown_name(violation: Violation) -> str:
    """The name of a command that is not in the table, which begins the message. Log and report show it,
    because they must tell FT.SEARCH from JSON.GET; metric labels never do."""
    name = violation.message.partition(" ")[0]
    return name if _COMMAND_NAME.fullmatch(name) else OTHER


def _passed_by(_policy: Any, _service: str, _argv: Sequence[bytes], _touches: Any) -> None:
    """Records nothing."""
