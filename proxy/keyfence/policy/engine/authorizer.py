"""The authorizer: one policy under its modes, whose ruling a session carries out.

Rule: authorizing never raises. A fault on the way is a violation of `internal.error`: the command is
refused where that rule is enforced, and passes, counted and reported, where it is observed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from typing import NamedTuple, Protocol

from keyfence.commands.extract import extract
from keyfence.commands.model import MANY, Streamed, Touches
from keyfence.policy.budget import PAUSE_STEPS, driven
from keyfence.policy.compiled.key_targets import KeyTargets
from keyfence.policy.compiled.obstacles import Seen
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.sizes import Question, questions
from keyfence.policy.compiled.ttl import FINE, SETTLING, UNSIZED, TtlRule
from keyfence.policy.enforcement.changes import changes
from keyfence.policy.enforcement.modes import BreakGlass, Modes
from keyfence.policy.rules import RULES
from keyfence.policy.show import shown_name
from keyfence.policy.verdict import (
    PASS,
    Action,
    Changed,
    Finding,
    Gathering,
    Peer,
    Ruling,
    Verdict,
    Violation,
)
from keyfence.policy.wording.masking import masked_by
from keyfence.policy.wording.prepared import Draft

from .asker import Asker
from .counts import Admitted, ViolationCounter
from .decision_cache import DecisionCache
from .evaluation import NOTHING_KNOWN, Evaluation, Known
from .evaluator import Evaluator
from .forms import Lookup
from .pending import PendingTtls
from .writes import Write, new_write

# The rules of which a violation counts for all commands like the one that broke it …
ALIKE = frozenset(rule.name for rule in RULES.values() if rule.alike)
# … and those of them whose words are prepared, unless `forms.shows_more`.
PREPARED = frozenset(rule.name for rule in RULES.values() if rule.alike == "worded")


# An evaluation in steps: it yields nothing, and returns the ruling and the evaluation.
Steps = Generator[None, None, tuple[Ruling, Evaluation]]


class InForce:
    """The authorizer that is in force now. A reload replaces it."""

    __slots__ = ("authorizer",)

    def __init__(self, authorizer: Authorizer) -> None:
        self.authorizer = authorizer


class ChangeObserver(Protocol):
    """Takes what a candidate policy would change. No method may raise."""

    def command(self, service: str) -> None:
        """Both policies have evaluated a command."""

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """`admitted.times` counts commands of this service that both policies admit. The observer collects it
        from time to time, and sets `is_gathered` while it does."""

    def changes(self, service: str, client: Peer, command: str, found: Sequence[Changed]) -> None:
        """Report the changes of one command, of which there are some."""

    def rehearsed(self, service: str, seen: Seen) -> None:
        """Report what a command means on a cluster. Only the candidate of a rehearsal does so."""

    def counters(
        self, in_force: ViolationCounter | None, candidate: ViolationCounter | None
    ) -> tuple[ViolationCounter, ...] | None:
        """The live counters of the changes of commands whose violations under the two policies these count
        (None: there are none). None: report each command."""

    def count_alike(
        self,
        in_force: ViolationCounter | None,
        candidate: ViolationCounter | None,
        service: str,
        command: str,
        found: Sequence[Changed],
    ) -> None:
        """Further commands of this kind have the same changes, which were just reported."""


class Candidate(NamedTuple):
    """A policy that is evaluated beside the one in force, and changes nothing."""

    authorizer: Authorizer  # with the modes and break-glasses in force; it asks Redis nothing
    observer: ChangeObserver
    masks_alike: bool = False  # both policies mask the same parts of keys
    rehearses: bool = False  # it is the policy in force as a cluster would have it

    def changes(self, in_force: CompiledPolicy, ruling: Ruling, own: Ruling) -> list[Changed]:
        """Returns what the candidate's `own` ruling on a command changes about the one in force, masked by
        both policies."""
        found = changes(ruling, own)
        if self.masks_alike:
            return found
        candidate = self.authorizer.policy
        return [
            Changed(change, masked_by(candidate if change == "gone" else in_force, finding))
            for change, finding in found
        ]


def basis_of(policy: CompiledPolicy, modes: Modes) -> str:
    """The name of what evidence under a policy and modes is worth: equal names, equal answers."""
    return f"{policy.revision}{modes.label}"


class Authorizer:
    """A compiled policy, the modes of this environment, and the break-glass that is open.

    A reload makes a new authorizer, and so does a candidate that comes or goes. A transaction keeps the one
    that it began with.
    """

    def __init__(
        self,
        policy: CompiledPolicy,
        modes: Modes,
        glass: list[BreakGlass] | None = None,
        clock: Callable[[], float] = time.time,
        on_error: Callable[[Exception], None] = lambda _: None,
        pending: PendingTtls | None = None,
        candidate: Candidate | None = None,
    ) -> None:
        """`pending` is the process's table of keys to ask Redis about. Without it, Redis is not asked.
        `candidate` is the policy to compare this one with, which sessions do."""
        self.candidate = candidate
        self.policy = policy
        self.modes = modes
        self.glass = glass if glass is not None else []
        self.evaluator = Evaluator(policy, clock)
        self.basis = self.evaluator.basis = basis_of(policy, modes)
        self.pending = pending
        self._caches: dict[tuple[int, str], DecisionCache] = {}
        self._questions_known: dict[tuple[str, int], tuple[Question, ...]] = {}
        self._clock = clock
        self._on_error = on_error

    def failed(self, fault: Exception) -> None:
        """Report a fault of keyfence that concerns this authorizer."""
        self._on_error(fault)

    def forget_permissions(self) -> None:
        """Forgets what services may do: the command table has changed."""
        self.evaluator.forget_permissions()
        if self.candidate is not None:
            self.candidate.authorizer.forget_permissions()

    def number(self, service: str) -> int:
        """Returns the number that the other methods take for a service; unlisted ones share one."""
        return self.policy.number(service)

    def rule(self, asker: Asker, argv: Sequence[bytes]) -> Ruling:
        """Returns the ruling on a command, and keeps nothing."""
        return driven(self.rule_in_steps(asker, argv))[0]

    def authorize(
        self, asker: Asker, argv: Sequence[bytes], known: Known = NOTHING_KNOWN
    ) -> tuple[Ruling, Evaluation]:
        """Returns the ruling on a command, and its evaluation.

        A command that passes may leave questions open, such as whether its key gets a time to live. `pending`
        keeps them. A later command of the same sender answers them, or keyfence asks Redis.
        """
        return driven(self.authorize_in_steps(asker, argv, known))

    def authorize_in_steps(self, asker: Asker, argv: Sequence[bytes], known: Known = NOTHING_KNOWN) -> Steps:
        """Like `authorize`, but yields where it may pause. Other commands can be authorized meanwhile.

        Policy and modes stay those of the beginning. Break-glass is read at the end.
        """
        answer = yield from self.rule_in_steps(asker, argv, known)
        ruling, evaluation = answer
        if evaluation.left_open and self.pending is not None and ruling.refused_by is None:
            yield from self._follow(self.pending, asker, evaluation)
        return answer

    def cache(self, service: int, among: Container[str], whose: str = "") -> DecisionCache:
        """Returns the decision cache of a service, for the commands whose names are `among` these. Commands
        that are counted under different names (`whose`) have caches of their own.

        A command that the cache admits passes in every mode. If it leaves something open, call
        `PendingTtls.keep_open`.
        """
        known = self._caches.get((service, whose))
        if known is None or not known.validity.is_current:
            known = self._caches[service, whose] = DecisionCache(
                self.evaluator, service, among, self.modes.waived_keys(service)
            )
        return known

    def size_questions(self, command: str, position: int, target: int) -> tuple[Question, ...]:
        """Returns the questions about the size of a key that a command with one key, at `position`, has
        written; `target` is the index of the key's target."""
        known = self._questions_known.get((command, target))
        if known is None:
            entry = self.policy.targets[target].entry
            touches = extract([command.encode()] * (position + 1))
            known = questions(entry, touches.accesses[0]) if entry is not None and touches.accesses else ()
            self._questions_known[command, target] = known
        return known

    def common_outcome(
        self,
        cache: DecisionCache,
        lookup: Lookup,
        argv: list[bytes],
        evaluation: Evaluation,
        ruling: Ruling,
        by_shape: bool = False,
    ) -> int | None:
        """Returns the outcome for the key's time to live (`ttl.outcome`) that all commands like this one have
        in common; the cache admits none of them. None if one of them may have other findings or actions than
        this ruling. `by_shape`: the shapes of keys are known too.

        They are the same only if every broken rule depends on command and target alone. A refusal is the same
        as long as no break-glass is open.
        """
        service, touches = evaluation.asker.service, evaluation.touches
        for violation, action in ruling.findings:
            if violation.more > _MOST_MORE or not self._is_alike(violation, action, service):
                return None
        decision = lookup.decision
        if decision is None:
            return None
        if decision.target is not None and self.policy.depends_on_caller(decision.target):
            return None
        if len(touches.accesses) != 1 or not (
            cache.may_count(lookup, argv) or (by_shape and lookup.faults == 0 and not decision.is_covered)
        ):
            return None
        ttl = touches.accesses[0].ttl
        if ttl is not None and ttl.absolute:
            return None
        if not self.evaluator.fails_alike(service, decision.form.name):
            return None
        left = evaluation.left_open if ruling.refused_by is None else []
        return left[0].outcome if left else FINE

    def drafted(self, evaluation: Evaluation, refused_by: Violation) -> tuple[Violation, Draft] | None:
        """Returns the violation that refuses a command with one key, worded for any other key (`Draft`); None
        if its words depend on more than the key."""
        if refused_by.rule not in PREPARED:
            return None
        found = evaluation.refused
        if found is None or (found.rule, found.position) != (refused_by.rule, refused_by.position):
            return None
        return evaluation.drafted(found)

    def _is_alike(self, violation: Violation, action: Action, service: int) -> bool:
        """Whether all commands of a kind break the rule of this violation, and have this action on it: the
        action depends neither on the key nor on the time."""
        rule = violation.rule
        if rule not in ALIKE or not self.modes.tells_waived(service, rule):
            return False
        if action == "waived":
            return True
        if violation.severity == "should" or self.modes.mode(rule, service) == "observe":
            return action == "observed"
        return action == "refused" and not self.glass

    def _follow(self, pending: PendingTtls, asker: Asker, evaluation: Evaluation) -> Iterator[None]:
        """Record the questions that a command leaves open about times to live and sizes, and those that it
        settles."""
        touches = evaluation.touches
        name = touches.command.name if touches.command is not None else ""
        pending.dropped += evaluation.not_kept
        for number, open_key in enumerate(evaluation.left_open):
            if number % PAUSE_STEPS == PAUSE_STEPS - 1:
                yield
            access, entry = open_key.access, open_key.target.entry
            if isinstance(access.key, Streamed):
                continue  # only the beginning of the key is held, which is another key's name
            outcome = UNSIZED.get(open_key.outcome, open_key.outcome)
            if outcome in SETTLING and name in _MAY_LEAVE:
                continue
            where = asker.database
            if touches.databases and access.ttl is not None and access.ttl.kind == "carries":
                where = touches.databases[0][1]  # MOVE and COPY … DB write to another database
            write = new_write(self, asker, name, where, access.key, access.position, open_key.target)
            if open_key.outcome in UNSIZED and entry is not None:
                pending.sizes.ask(write, questions(entry, access))
            if open_key.rule is not None:
                pending.apply(write, open_key.rule, outcome)

    def late_ttl(self, write: Write, rule: TtlRule, everything: bool, remaining: int) -> tuple[Finding, ...]:
        """Returns the findings if Redis answers PTTL with `remaining`, a grace time after a write."""
        return self._late(self.evaluator.checks.keys.late_ttl(write, rule, everything, remaining), write)

    def late_size(self, write: Write, question: Question, size: int) -> tuple[Finding, ...]:
        """Returns the findings if Redis answers `question` with `size`, some time after a write."""
        return self._late(self.evaluator.checks.keys.late_size(write, question, size), write)

    def _late(self, violation: Violation | None, write: Write) -> tuple[Finding, ...]:
        if violation is None:
            return ()
        ruling = self._rule_on(Verdict((violation,)), write.asker.service, write.command)
        return tuple(
            Finding(found, "waived" if action == "waived" else "late") for found, action in ruling.findings
        )

    def rule_in_steps(self, asker: Asker, argv: Sequence[bytes], known: Known = NOTHING_KNOWN) -> Steps:
        """Like `rule`, but yields as `authorize_in_steps` does."""
        evaluator, service = self.evaluator, asker.service
        gathering: Gathering[Action] | None = None  # once there is a violation
        evaluation: Evaluation | None = None
        try:
            touches = extract(argv) if known.touches is None else known.touches
            evaluation = evaluator.evaluation(asker, argv, touches, known.keys)
            checks = evaluator.checks
            if len(touches.accesses) <= MANY and checks.admits(evaluation):
                return PASS, evaluation
            for found in checks.violations(evaluation):
                if found is None:
                    yield
                    continue
                if gathering is None:
                    gathering = Gathering()
                action = self.modes.action(found, service, evaluation.name)
                if action is not None:
                    gathering.take(found, action)
                if action == "refused" and evaluation.refused is None:
                    evaluation.refused = found
        except Exception as exc:
            if evaluation is None:
                wording = evaluator.checks.wording
                evaluation = Evaluation(wording, asker, argv, _NOTHING, KeyTargets(wording.policy))
            return self._rule_on(self._internal_error(argv, exc), service, evaluation.name), evaluation
        if gathering is None:
            return PASS, evaluation
        return self.modes.ruling(gathering.listed(), service, self._clock(), self.glass), evaluation

    def opaque(self, service: int, command: str, reason: str) -> Ruling:
        """Returns the ruling on a command that turns the session into one that keyfence cannot read."""
        violation = Violation(
            "session.opaque",
            "must",
            0,
            None,
            "",
            "",
            "",
            f"{self.evaluator.checks.wording.who(service)} may not use {command} through keyfence: {reason}",
            "in observe mode such a session passes unread",
        )
        return self._rule_on(Verdict((violation,)), service, command)

    def address(self, service: int, command: str) -> Ruling:
        """Returns the ruling on an answer of Redis that names addresses: to this command, or a redirect
        (MOVED, ASK, REDIRECT) in place of the answer to some command."""
        who = self.evaluator.checks.wording.who(service)
        hint = "use a client for a single Redis, and a Redis that is not a cluster"
        if command in ("MOVED", "ASK"):
            message = f"{who} may not follow {command} past keyfence: another node of the cluster has the key"
        elif command == "REDIRECT":
            message = f"{who} may not follow REDIRECT past keyfence: Redis is a replica"
            hint = "point keyfence at the primary"
        else:
            message = (
                f"{who} may not use {command} through keyfence: Redis answers with addresses that bypass it"
            )
        violation = Violation("redis.address", "must", 0, None, "", "", "", message, hint)
        return self._rule_on(Verdict((violation,)), service, command)

    def admits_address(self, service: int, command: str) -> bool:
        """Whether the client may know what the answer to this command names. Nothing is reported."""
        return self.address(service, command).refused_by is None

    def spells_out(self, service: int, command: str) -> bool:
        """Whether the policy allows the command to the service by its full name."""
        return self.evaluator.checks.permissions.spells_out(service, command)

    def strangers_connection(self, service: int, command: str, position: int) -> Ruling:
        """Returns the ruling on a command that names a connection of another service, by its id at
        `position`."""
        violation = Violation(
            "command.forbidden",
            "must",
            position,
            None,
            "",
            "",
            "",
            f"{self.evaluator.checks.wording.who(service)} may not use {command} to redirect to "
            "another service's connection",
            "a client may name its own and its service's, by the ids that CLIENT ID tells them",
        )
        return self._rule_on(Verdict((violation,)), service, command)

    def answers(self, service: int, argv: Sequence[bytes]) -> bool:
        """Whether keyfence itself answers a command that no server has (`commands.own`), because the policy
        grants it to the service."""
        return self.evaluator.checks.permissions.answers(service, argv, None)

    def enforces(self, service: int) -> bool:
        """Whether any rule is enforced for the service."""
        return self.modes.enforces(service)

    def _rule_on(self, verdict: Verdict, service: int, command: str) -> Ruling:
        return self.modes.rule_on(verdict, service, command, self._clock(), self.glass)

    def _internal_error(self, argv: Sequence[bytes], exc: Exception) -> Verdict:
        self._on_error(exc)
        name = shown_name(argv[0]) if argv else ""
        text = f"{name} cannot be authorized: keyfence failed ({type(exc).__name__})"
        violation = Violation("internal.error", "must", 0, None, "", "", "", text, "tell keyfence's operator")
        return Verdict((violation,))


_NOTHING = Touches(None)
# The number of unlisted violations. Commands with more are not counted together, because each count would add
# these one by one.
_MOST_MORE = 16
# They may leave the key in place: RENAMENX if the new name exists, MIGRATE with COPY.
_MAY_LEAVE = frozenset({"RENAMENX", "MIGRATE"})
